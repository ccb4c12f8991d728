"""Read and write a configuration as a YAML file, for `--config` and in the directory of each run."""

import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from typing import Any

from mtf_hetero import data
from mtf_hetero._support import loading, schema
from mtf_hetero._support.files import write_text
from mtf_hetero.cli.train.config import FIELDS, MOST_WHOLE, PLACED, Config, value_type

NAME = "config.yaml"  # in a model directory
_KINDS: dict[type, schema.Kind] = {
    bool: schema.Flag(),
    float: schema.Number(of_text=True),
    int: schema.Number(integer=True, most=MOST_WHOLE),
    str: schema.Text(description="text, in quotes where YAML would read a number or a list"),
    tuple: schema.Many(
        schema.Text(of_number=True), of_text=True, most=10_000, description="a list, such as [cpu:0, cpu:1]"
    ),
}


def _kind_in_file(field: dataclasses.Field) -> schema.Kind:
    kind = field.metadata["kind"] or _KINDS[value_type(field)]
    return schema.Maybe(kind) if field.default is None else kind


SCHEMA = schema.Record({name: _kind_in_file(field) for name, field in FIELDS.items()}, FIELDS, noun="flag")
_PATHS = {  # fields that may be a path -> whether a value is a path
    "data_dir": lambda value: True,
    "initial_weights": lambda value: True,
    "layout": os.path.isfile,
    "model": lambda value: value.endswith(".keras"),
}
_HEAD = """\
# Every flag of the run that last trained here, but for --model_dir. To repeat the run in another directory:
#   mtf-hetero train --config={path} --model_dir=ANOTHER_DIRECTORY
"""
_OF_PLACES = {*PLACED, "dense_rounds"}  # flags that fit each other
_OF_ONE_RUN = {"trace_steps"}


def load(path: str) -> dict[str, Any]:
    """Return {field of Config: value} of a file.

    Raises:
      ValueError: one line with the fault.
    """
    try:
        content = loading.load(os.path.expanduser(path), yaml_for="train")
        return {} if content is None else SCHEMA.read(content)
    except ValueError as error:
        raise ValueError(
            f"--config is {path!r}, which cannot be read: {error}; correct it, or name another file"
        ) from error


def check_resumed(model_dir: str, given: Collection[str]) -> None:
    """Raise ValueError if a directory is all that is given, and it has no run to resume."""
    if model_dir and {*given} <= {"model_dir", "quiet"} and not os.path.isfile(os.path.join(model_dir, NAME)):
        raise ValueError(
            f"--model_dir is {model_dir!r}, where there is no {NAME} of a run to resume; name another directory, or "
            "begin a training there with --model"
        )


def load_resumed(model_dir: str, given: Collection[str]) -> dict[str, Any]:
    """Return the values of MODEL_DIR/config.yaml for the flags that are not `given`; {}: there is no such file.

    Flags of devices and layouts fit each other: if one of them is given, the file gives none of them.

    Raises:
      ValueError: one line with the fault.
    """
    path = os.path.join(model_dir, NAME)
    if not model_dir or not os.path.isfile(path):
        return {}
    left_out = {*given, *_OF_ONE_RUN, *(_OF_PLACES if _OF_PLACES & {*given} else ())}
    return {name: value for name, value in load(path).items() if name not in left_out}


def describe_resumed(model_dir: str, values: Mapping[str, object]) -> str:
    """Return a line with the values of `load_resumed` that are no defaults; "": there are none."""
    flags = []
    for name, value in values.items():
        if value != FIELDS[name].default:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            flags.append(f"--{name}" if value is True else f"--{name}={text}")
    return f"from {os.path.join(model_dir, NAME)}: {' '.join(flags)}\n" if flags else ""


def save(config: Config, model_dir: str) -> None:
    """Write a configuration to MODEL_DIR/config.yaml, which replaces the file of an earlier run.

    Paths are written in full, so that the file works in any working directory.

    Raises:
      OSError: it cannot be written.
    """
    path = os.path.join(model_dir, NAME)
    lines = [_HEAD.format(path=path)]
    for name in FIELDS:
        if name != "model_dir":
            lines.append(f"{name}: {json.dumps(full_path(config, name), ensure_ascii=False)}\n")
    write_text(path, "".join(lines))  # JSON values are valid YAML


def full_path(config: Config, name: str) -> object:
    """Return a field's value for any working directory: a full path, and any other value unchanged."""
    value = getattr(config, name)
    if name == "dataset":
        return data.full_name(value, config.data_dir)
    if value is None or name not in _PATHS or not _PATHS[name](os.path.expanduser(value)):
        return value
    return os.path.abspath(os.path.expanduser(value))

"""A configuration as a YAML file: what `--config` reads, and what a run leaves in its directory."""

import dataclasses
import json
import os
import pathlib
from typing import Any

from mtf_hetero._support import extras
from mtf_hetero._support.files import write_text
from mtf_hetero.models.train.config import Config, kind_of

NAME = "config.yaml"  # in a model directory
_FIELDS = {field.name: field for field in dataclasses.fields(Config)}
_KINDS = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "text, in quotes where YAML would read a number or a list",
    tuple: "a list, such as [cpu:0, cpu:1]",
}
_PATHS = {  # fields that may be a path -> whether a value is one
    "data_dir": lambda value: True,
    "dataset": lambda value: os.path.isfile(os.path.join(value, "manifest.json")),
    "layout": os.path.isfile,
    "model": lambda value: value.endswith(".keras"),
}
_HEAD = """\
# Every flag of the run that last trained here, but for --model_dir. To repeat the run in another directory:
#   mtf-hetero train --config={path} --model_dir=ANOTHER_DIRECTORY
"""


def load(path: str) -> dict[str, Any]:
    """{field of Config: value} of a file.

    Raises:
      ValueError: in one line, what is wrong with it.
    """
    try:
        text = pathlib.Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"--config is {path!r}, which cannot be read: {reason}; name another file") from error
    try:
        return {name: _converted(name, value) for name, value in _entries(text, path)}
    except ValueError as error:
        raise ValueError(f"--config is {path!r}: {error}") from error


def _entries(text: str, path: str) -> list[tuple[str, Any]]:
    """The entries of a YAML mapping, of which none comes twice and each is a flag."""
    yaml = extras.import_package("yaml", extra="train", user=f"--config={path}")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{' '.join(str(error).split())}; write one flag a line, as in batch_size: 25") from error
    if node is None:
        return []
    if not isinstance(values, dict):
        raise ValueError("it is no list of flags; write one a line, as in batch_size: 25")
    names = [key.value for key, _ in node.value]
    for name in names:
        if name not in _FIELDS:
            raise ValueError(f"{name!r} is not a flag; the flags are {', '.join(_FIELDS)}")
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is there twice; keep one of the two lines")
    return list(values.items())


def _converted(name: str, value: Any) -> Any:
    """A value of the file as its field has it."""
    field = _FIELDS[name]
    kind, parse = kind_of(field), field.metadata["parse"]
    if value is None:
        if field.default is not None:
            raise ValueError(f"{name} is null; it must be {_KINDS[kind]}")
        return None
    if kind is tuple and isinstance(value, str):
        value = [part.strip() for part in value.split(",")]  # as on the command line
    if kind is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"{name} is {value!r}; it must be {_KINDS[float]}") from None
    if not _is(value, kind):
        raise ValueError(f"{name} is {value!r}; it must be {_KINDS[kind]}")
    if kind is tuple:
        value = [str(part) for part in value]
    if kind is float:
        value = float(value)
    return value if parse is None else parse(value)


def _is(value: Any, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, list) and all(_is(part, int) or _is(part, str) for part in value)
    kinds = {float: (int, float)}.get(kind, (kind,))
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


def save(config: Config, model_dir: str) -> None:
    """Writes a configuration to MODEL_DIR/config.yaml, in place of that of an earlier run.

    Files that it names are named in full, so that it means the same in any working directory.

    Raises:
      OSError: it cannot be written.
    """
    path = os.path.join(model_dir, NAME)
    lines = [_HEAD.format(path=path)]
    for name in _FIELDS:
        if name != "model_dir":
            lines.append(f"{name}: {json.dumps(in_full(name, getattr(config, name)), ensure_ascii=False)}\n")
    write_text(path, "".join(lines))  # JSON's values are YAML's


def in_full(name: str, value: Any) -> Any:
    """A value that means the same in any working directory: a path in full, anything else as it is."""
    if value is None or name not in _PATHS or not _PATHS[name](os.path.expanduser(value)):
        return value
    return os.path.abspath(os.path.expanduser(value))

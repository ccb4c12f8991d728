"""The requests of the three commands: a checkpoint, its configuration, and the devices to run on.

This module does not import TensorFlow, so that a mistake is reported at once.
"""

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mtf_hetero._support import command_line
from mtf_hetero.cli.train import config_file
from mtf_hetero.cli.train.config import FIELDS, Config, value_type
from mtf_hetero.placement.request import AUTO

# Read from the run's config.yaml
TRAINED = ("model", "dataset", "data_dir", "image_size", "seed", "batch_size", "compute_dtype")
PLACED = (  # never read from config.yaml: the devices of the training may be gone
    *("layout", "mesh_shape", "list_speed", "dense_shares", "dense_rounds"),
    *("devices", "workers", "port", "local_cluster"),
)


@dataclasses.dataclass(frozen=True)
class CheckpointRequest:
    """A request of a command.

    Args:
      config: of the network and its place; its `devices` are None if one plain device suffices.
      model_dir: directory of the run.
      checkpoint: path of the checkpoint; None: the newest intact one of the directory.
      is_plain: whether one plain device does all the work.
    """

    config: Config
    model_dir: str
    checkpoint: str | None
    is_plain: bool


def parser(program: str, description: str, *, placed: bool = True) -> command_line.Parser:
    """Return a parser with the flags that the commands share.

    Args:
      program: its name.
      description: its help text.
      placed: whether the flags for layout and devices are among them.
    """
    made = command_line.Parser(
        prog=program,
        usage="%(prog)s --model_dir=DIR [--FLAG=VALUE ...]",
        description=description,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("--model_dir", help="directory of a run of mtf-hetero train; its newest intact checkpoint")
    which.add_argument("--checkpoint", help="one checkpoint, such as MODEL_DIR/model.ckpt-500")
    made.add_argument(
        "--config",
        help="a YAML file of flags of mtf-hetero train, the layout and the devices among them; by default what the "
        "run's own config.yaml says of the network and the data",
    )
    for name in (*TRAINED, *(PLACED if placed else ())):
        _add_flag(made, FIELDS[name])
    return made


def _add_flag(made: argparse.ArgumentParser, field: dataclasses.Field) -> None:
    """Add the flag of a field of the training program's configuration."""
    kind = value_type(field)
    help_text = field.metadata["help"].replace("%", "%%")
    if kind is bool:
        made.add_argument(f"--{field.name}", action="store_true", help=help_text)
    else:
        parse = (lambda text: text.split(",")) if kind is tuple else kind
        made.add_argument(f"--{field.name}", type=parse, help=help_text)


def read_request(arguments: argparse.Namespace, *, placed: bool = True) -> CheckpointRequest:
    """Return the request of the flags and of the run's directory.

    Args:
      arguments: the flags.
      placed: whether layout and devices matter.

    Raises:
      ValueError: a directory or a file is missing or invalid, or values do not fit together.
    """
    checkpoint = getattr(arguments, "checkpoint", None)
    if checkpoint is None:
        model_dir = arguments.model_dir
        if not os.path.isdir(model_dir):
            raise ValueError(f"--model_dir is {model_dir!r}, which is not a directory; name the directory of a run")
    else:
        if not os.path.isfile(f"{checkpoint}.index"):
            raise ValueError(
                f"--checkpoint is {checkpoint!r}, where there is no checkpoint; name one, as in MODEL_DIR/model.ckpt-7"
            )
        model_dir = os.path.dirname(checkpoint)
    given = {name: getattr(arguments, name) for name in (*TRAINED, *PLACED) if hasattr(arguments, name)}
    values = {**_of_files(getattr(arguments, "config", None), model_dir, given), **given, "model_dir": None}
    if not placed:
        values = {name: values[name] for name in TRAINED if name in values}
    config = Config(**values)
    for name in ("layout", "list_speed"):
        if getattr(config, name) == AUTO:
            raise ValueError(
                f"--{name} is {AUTO!r}, which measures steps of training; give a recipe or speeds, or a plan, such as "
                "the MODEL_DIR/plan.json of a run with --layout=auto"
            )
    is_plain = not any(values.get(name) for name in PLACED)
    return CheckpointRequest(config, model_dir, checkpoint, is_plain)


def _of_files(path: str | None, model_dir: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of --config, or else the values of the run's config.yaml about its training."""
    if path is not None:
        return config_file.load(path)
    own = os.path.join(model_dir, config_file.NAME)
    if os.path.isfile(own):
        values = config_file.load(own)
        return {name: values[name] for name in TRAINED if name in values}
    if "model" not in given:
        raise ValueError(
            f"{model_dir or '.'} has no {config_file.NAME}, which says what was trained there; give --model, --dataset "
            "and --batch_size, or --config"
        )
    return {}


def check_suffix(flag: str, path: str, suffixes: Sequence[str]) -> None:
    """Raise ValueError unless a path ends in one of the suffixes."""
    if not path.endswith(tuple(suffixes)):
        raise ValueError(f"--{flag} is {path!r}; name a file that ends in {' or '.join(suffixes)}")

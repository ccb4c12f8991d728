"""The help of the training program: its flags in groups, and the next commands, in 80 columns. No TensorFlow."""

import argparse
import dataclasses
import textwrap
import types
from typing import Any

from mtf_hetero.cli.train.config import Config, value_type

GROUPS = types.MappingProxyType(  # title -> fields of Config, in the order of the help
    {
        "data": ("dataset", "data_dir", "image_size", "augment"),
        "model": ("model", "initial_weights", "compute_dtype", "recompute"),
        "layout": (
            *("layout", "list_speed", "mesh_shape", "dense_shares", "dense_rounds", "wire_dtype"),
            *("measure_seconds", "memory_limit", "dry_run", "simulate"),
        ),
        "devices": (
            *("devices", "workers", "port", "local_cluster"),
            *("wait_for_workers", "min_workers", "rebalance"),
        ),
        "training": (
            *("batch_size", "train_epochs", "max_steps", "optimizer", "learning_rate", "learning_rate_schedule"),
            *("seed", "eval_every", "patience", "verify"),
        ),
        "output": (
            *("model_dir", "save_checkpoints_secs", "quiet", "log_steps"),
            *("summary_steps", "busy_steps", "trace_steps"),
        ),
    }
)
CONFIG_HELP = (
    "A YAML file of flags, one per line, such as batch_size: 25. Flags on the command line win. Each run leaves such a "
    "file as MODEL_DIR/config.yaml."
)
_WIDTH, _INDENT = 80, 24
_METAVARS = {float: "NUMBER", int: "N", str: "TEXT", tuple: "A,B,..."}
_NEXT = """\
A flag that is on can be turned off: --noaugment. --helpfull lists the flags of
the libraries, too.

next:
  {program} devices                       what this machine has
  {program} evaluate --model_dir=DIR      test what was trained
  {program} predict --model_dir=DIR ...   predict for new data
  {program} export --model_dir=DIR ...    for plain TensorFlow

exit codes:
  0    done
  1    the loss is not a number, or the disk is full
  2    a wrong flag or value, damaged data, or a directory or a worker in use
  129, 130, 143
       ended by SIGHUP (a closed terminal), Ctrl-C or SIGTERM, and saved
  141  nobody reads the standard output any more
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Writes --name=VALUE like the documentation, and breaks no line within mtf-hetero."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH, max_help_position=_INDENT)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return "=".join([*action.option_strings, *([] if action.nargs == 0 else [str(action.metavar)])])

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def text(description: str, program: str) -> str:
    """Return the help.

    Args:
      description: of the program.
      program: its name, "mtf-hetero train".
    """
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [--FLAG=VALUE ...]",
        description=description,
        epilog=_NEXT.format(program=program.removesuffix(" train") if program.endswith(" train") else "mtf-hetero"),
        add_help=False,
        formatter_class=_Formatter,
    )
    fields = {field.name: field for field in dataclasses.fields(Config)}
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        if title == "output":
            group.add_argument("--config", metavar="FILE", help=_escaped(CONFIG_HELP))
        for name in names:
            if name in fields:
                _add(group, fields.pop(name))
    rest = parser.add_argument_group("other")  # argparse omits a group without a flag
    for field in fields.values():
        _add(rest, field)
    return parser.format_help()


def _add(group: argparse._ArgumentGroup, field: dataclasses.Field) -> None:
    """Add the flag of a field, with its default."""
    kind, default = value_type(field), field.default
    shown = "" if default in (None, False, ()) else f" (default: {default})"
    options: dict[str, Any] = {"action": "store_true"} if kind is bool else {"metavar": _METAVARS[kind]}
    group.add_argument(f"--{field.name}", help=_escaped(f"{field.metadata['help']}{shown}"), **options)


def _escaped(text: str) -> str:
    return text.replace("%", "%%")

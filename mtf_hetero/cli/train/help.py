"""The help of the training program: its flags in groups, and the next commands, in 80 columns. No TensorFlow."""

import dataclasses
import textwrap
import types

from mtf_hetero.cli.train.config import FIELDS, value_type

GROUPS = types.MappingProxyType(  # title -> fields of Config, in the order of the help
    {
        "data": ("dataset", "data_dir", "image_size", "augment"),
        "model": ("model", "initial_weights", "compute_dtype", "recompute"),
        "layout": (
            *("layout", "list_speed", "mesh_shape", "slots", "dense_shares", "dense_rounds", "wire_dtype"),
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
_WIDTH, _INDENT = 80, 24 * " "  # columns; argparse begins the texts of the other programs there too
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


def text(description: str, program: str) -> str:
    """Return the help."""
    parts = [f"usage: {program} [--FLAG=VALUE ...]", description.strip()]
    for title, names in GROUPS.items():
        entries = [_entry("--config=FILE", CONFIG_HELP)] if title == "output" else []
        parts.append("\n".join([f"{title}:", *entries, *(_describe(FIELDS[name]) for name in names)]))
    base = program.removesuffix(" train") if program.endswith(" train") else "mtf-hetero"
    return "\n\n".join([*parts, _NEXT.format(program=base)])


def _describe(field: dataclasses.Field) -> str:
    """Return the lines of a field's flag, with its default."""
    kind = value_type(field)
    shown = "" if field.default in (None, False, ()) else f" (default: {field.default})"
    flag = f"--{field.name}" if kind is bool else f"--{field.name}={_METAVARS[kind]}"
    return _entry(flag, f"{field.metadata['help']}{shown}")


def _entry(flag: str, help_text: str) -> str:
    """Return the lines of a flag; a long flag has a line of its own."""
    lines = textwrap.wrap(help_text, _WIDTH - len(_INDENT), break_on_hyphens=False)
    begin = f"  {flag}".ljust(len(_INDENT))
    first = f"{begin}{lines.pop(0)}" if begin.endswith("  ") else begin.rstrip()
    return "\n".join([first, *(f"{_INDENT}{line}" for line in lines)])

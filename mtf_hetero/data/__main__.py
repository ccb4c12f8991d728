"""Prepares data sets for training, out of files that are on this machine.

    python -m mtf_hetero.data prepare cifar10 --from=cifar-10-python.tar.gz
    python -m mtf_hetero.data list

Exit codes: 0, or 2 for a mistake (one line says which).
"""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any

from mtf_hetero import _command_line as command_line
from mtf_hetero.data import DATASETS
from mtf_hetero.data.known import KNOWN
from mtf_hetero.data.prepare import prepare
from mtf_hetero.data.prepared import DEFAULT_DIR, data_root, prepared_names


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line.Parser(prog="python -m mtf_hetero.data", description="Data sets for training.")
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="prepare|list")
    hints = "; ".join(f"{name}: {known.source} ({known.where})" for name, known in KNOWN.items())
    making = commands.add_parser(
        "prepare", help="writes a set as tensorflow-datasets would, from local files", epilog=hints
    )
    making.add_argument("name", metavar="NAME", help=f"one of {', '.join(KNOWN)}")
    making.add_argument(
        "--from", dest="source", metavar="PATH", required=True, help="directory, tar archive or .deb with the files"
    )
    listing = commands.add_parser("list", help="shows which sets there are")
    for command in (making, listing):
        command.add_argument("--data_dir", metavar="DIR", help=f"where prepared sets are (default: {DEFAULT_DIR})")
    return parser.parse_args(argv)


def _list(data_dir: str | None) -> str:
    root = data_root(data_dir)
    found = prepared_names(root)
    lines = [f"built in: {', '.join(DATASETS)}", f"prepared in {root}: {', '.join(found) or 'none'}"]
    lines += [
        f"not prepared: {name}; {known.command(root)} ({known.where})"
        for name, known in KNOWN.items()
        if not any(other.split("/")[0] == name for other in found)
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit code."""
    arguments = _parse(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was begun is removed
    logging.getLogger("absl").setLevel(logging.ERROR)  # of tensorflow-datasets, which shows a progress bar as well
    try:
        if arguments.command == "list":
            said = _list(arguments.data_dir)
        else:
            made = prepare(arguments.name, arguments.source, arguments.data_dir)
            said = f"{arguments.name} {'is there already' if made.was_there else 'is prepared'}: {made.directory}"
    except ValueError as error:
        command_line.say(error)
        return command_line.WRONG_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("stopped: nothing was prepared\n")
        return 130
    sys.stdout.write(said + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

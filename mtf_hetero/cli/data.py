"""Prepares data sets for training from files on this machine.

    mtf-hetero data prepare cifar10 --from=cifar-10-python.tar.gz
    mtf-hetero data convert universes --from a.h5 b.h5 --targets=unitPar --cube=128
    mtf-hetero data simulate universes --train=600 --test=100
    mtf-hetero data list

Exit codes: 0, or 2 for a mistake (one line says which).
"""

import argparse
import dataclasses
import importlib
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any

from mtf_hetero._support import command_line
from mtf_hetero.data import DATASETS
from mtf_hetero.data._volumes_files import Manifest, check_new
from mtf_hetero.data.known import PREPARED_SETS
from mtf_hetero.data.prepared import DEFAULT_DIR, data_root, prepared_names
from mtf_hetero.data.preparing.convert import Options, check_path, convert
from mtf_hetero.data.preparing.cosmology import check_numbers, write_universes
from mtf_hetero.data.preparing.prepare import check_name, prepare

PROGRAM = "mtf-hetero data"
_COMMANDS = "prepare|list|convert|simulate"


def _parse(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = command_line.Parser(prog=program, description="Prepares data sets for training from local files.")
    commands = parser.add_subparsers(dest="command", required=True, metavar=_COMMANDS)
    hints = "; ".join(f"{name}: {known.source} ({known.where})" for name, known in PREPARED_SETS.items())
    making = commands.add_parser(
        "prepare", help="write an image set in tensorflow-datasets' format from local files", epilog=hints
    )
    making.add_argument("name", metavar="NAME", help=f"the set: one of {', '.join(PREPARED_SETS)}")
    making.add_argument(
        "--from",
        dest="source",
        metavar="PATH",
        required=True,
        help="directory, tar archive or .deb package with its files",
    )
    listing = commands.add_parser("list", help="list the sets")
    for command in (making, listing):
        command.add_argument("--data_dir", metavar="DIR", help=f"where prepared sets are (default: {DEFAULT_DIR})")
    _add_convert(commands.add_parser("convert", help="write a set of volumes from HDF5, NumPy or NIfTI files"))
    _add_simulate(commands.add_parser("simulate", help="write a set of simulated dark-matter volumes"))
    return parser.parse_args(argv)


def _add_convert(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", metavar="DIR", help="directory to write; it must not exist")
    command.add_argument(
        "--from",
        dest="paths",
        metavar="FILE",
        nargs="+",
        required=True,
        help="files of volumes: .h5, .npy, .npz, .nii or .nii.gz",
    )
    command.add_argument("--key", help="the array in an .h5 or .npz file that holds the volumes")
    command.add_argument(
        "--axes", help="the axes of that array in order: N volumes, D depth, H height, W width, C channels"
    )
    command.add_argument(
        "--labels", metavar="FILE", nargs="+", default=(), help="one label file per file of volumes, or one key for all"
    )
    command.add_argument("--threshold", type=float, help="labels are 1 above this value and 0 otherwise")
    command.add_argument(
        "--targets", metavar="FILE", help="a .csv file with a header and one row per volume, or a key in the files"
    )
    command.add_argument("--cube", type=_cube, metavar="EDGE", help="cut volumes into cubes: 128, or 64,128,128")
    command.add_argument("--test", type=int, default=0, metavar="COUNT", help="keep the last COUNT volumes for testing")


def _add_simulate(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", metavar="DIR", help="directory to write; it must not exist")
    command.add_argument("--train", type=int, required=True, metavar="COUNT", help="number of training volumes")
    command.add_argument("--test", type=int, default=0, metavar="COUNT", help="number of test volumes (default: 0)")
    command.add_argument("--size", type=int, default=64, help="cells along each edge (default: 64)")
    command.add_argument("--cell", type=float, default=2.0, help="edge of one cell in Mpc/h (default: 2)")
    command.add_argument("--seed", type=int, default=0, help="random seed of all parameters and fields (default: 0)")


def _cube(text: str) -> tuple[int, int, int]:
    edges = [int(edge) for edge in text.split(",")]
    depth, height, width = edges * 3 if len(edges) == 1 else edges
    return depth, height, width


def _list(data_dir: str | None) -> str:
    root = data_root(data_dir)
    names = prepared_names(root)
    lines = [f"built in: {', '.join(DATASETS)}", f"prepared in {root}: {', '.join(names) or 'none'}"]
    lines += [
        f"not prepared: {name}; {known.command(root)} ({known.where})"
        for name, known in PREPARED_SETS.items()
        if not any(other.split("/")[0] == name for other in names)
    ]
    return "\n".join(lines)


def _check(arguments: argparse.Namespace) -> None:
    """Check the flags before TensorFlow is loaded, which takes seconds."""
    if arguments.command == "prepare":
        check_name(arguments.name)
        return
    check_new(arguments.directory)
    if arguments.command == "simulate":
        check_numbers(**_universes(arguments))
        return
    for path in arguments.paths:
        check_path(path)


def _universes(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("train", "test", "size", "cell", "seed")}


def _describe(directory: str, manifest: Manifest) -> str:
    shape = " x ".join(map(str, manifest.planes.shape))
    kind = f"{manifest.classes} classes" if manifest.classes else f"targets {', '.join(manifest.planes.targets)}"
    return (
        f"{directory}: {manifest.train_size:,} training and {manifest.test_size:,} test volumes of {shape}, "
        f"{manifest.planes.dtype}, {kind}"
    )


def _do(arguments: argparse.Namespace) -> str:
    if arguments.command == "list":
        return _list(arguments.data_dir)
    _check(arguments)
    with command_line.capture_stderr():
        importlib.import_module("mtf_hetero._compat")
    if arguments.command == "prepare":
        made = prepare(arguments.name, arguments.source, arguments.data_dir)
        return f"{arguments.name} {'already exists' if made.was_there else 'is prepared'}: {made.directory}"
    if arguments.command == "convert":
        options = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Options)}
        manifest = convert(arguments.directory, arguments.paths, Options(**options), progress=True)
    else:
        manifest = write_universes(arguments.directory, **_universes(arguments), progress=True)
    return _describe(arguments.directory, manifest)


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run the command line, and return the exit code."""
    arguments = _parse(argv, program)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # partial files are deleted
    logging.getLogger("absl").setLevel(logging.ERROR)  # tensorflow-datasets shows a progress bar too
    return command_line.print_result(lambda: f"{_do(arguments)}\n", stopped="nothing was prepared")

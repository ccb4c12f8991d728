"""Measures how fast each device is on the layers of a graph, and how fast the links between the devices are.

    mtf-hetero profile --graph=my_program:build --layout="hidden:all" --devices=gpu:0,cpu:0

prints a time per layer, device and size, the shares for --list_speed, and whether a
split pays and which.
`my_program.build` takes no argument, builds the mtf program in TensorFlow's default graph, and returns its mtf.Graph.
In place of rules, --recipe=module:function names a function (graph, mesh_shape="all:N") -> Layout.

What was measured is kept under ~/.cache/mtf_hetero (or XDG_CACHE_HOME) and used again for layers that are alike;
--fresh measures again. The devices are measured one after the other, and should have nothing else to do.

Exit codes: 0, 2 for a wrong flag or value (one line says which), 130 after Ctrl-C.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtf_hetero._support import command_line, functions
from mtf_hetero._support.schema import shown
from mtf_hetero.layout import Layout
from mtf_hetero.profile.effort import Effort

if TYPE_CHECKING:
    from mtf_hetero.profile.measurement import Measured


PROGRAM = "mtf-hetero profile"


def _parse(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = command_line.Parser(
        prog=program,
        description="Measures how fast each device is on the layers of a graph.",
        allow_abbrev=False,
    )
    parser.add_argument("--graph", required=True, help="module:function that builds and returns an mtf.Graph")
    rules = parser.add_mutually_exclusive_group(required=True)
    rules.add_argument("--layout", help="rules such as hidden:all;filters:all")
    rules.add_argument("--recipe", help='module:function from (graph, mesh_shape="all:N") to a Layout, layouts:filters')
    parser.add_argument("--devices", help="such as gpu:0,cpu:0, with workers also worker:0/gpu:0 (default: all)")
    parser.add_argument("--workers", help="host:port,host:port of running workers")
    parser.add_argument("--save", help="a file to write the profile to, as JSON")
    parser.add_argument("--cache_dir", help="where measurements are kept (default: ~/.cache/mtf_hetero)")
    parser.add_argument("--fresh", action="store_true", help="measure again what is known")
    for field in dataclasses.fields(Effort):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default, help="%(default)s")
    return parser.parse_args(argv)


def _check(arguments: argparse.Namespace) -> None:
    """Finds the mistakes that can be seen before TensorFlow is loaded, which takes seconds."""
    _effort(arguments)
    for flag in ("graph", "recipe"):
        if (text := getattr(arguments, flag)) is not None:
            functions.check_function(flag, text)
    if arguments.save is not None:
        command_line.check_output("save", arguments.save)
    if arguments.layout is not None:
        Layout(_mesh_shape(len(_devices(arguments) or ())), arguments.layout)


def _effort(arguments: argparse.Namespace) -> Effort:
    return Effort(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Effort)})


def _devices(arguments: argparse.Namespace) -> list[str] | None:
    return None if arguments.devices is None else [device.strip() for device in arguments.devices.split(",")]


def _mesh_shape(devices: int) -> str:
    return f"all:{max(devices, 2)}"


def _run(arguments: argparse.Namespace) -> "Measured":
    _check(arguments)
    with command_line.stderr_held_back():
        from mtf_hetero import speeds
        from mtf_hetero._compat import mtf, tf
        from mtf_hetero.cluster import Cluster, WorkerClaim, run_watched
        from mtf_hetero.profile.hardware import cache_directory
        from mtf_hetero.profile.measurement import measure

        devices = _devices(arguments)
        cluster = Cluster.from_workers(arguments.workers, devices) if arguments.workers else Cluster.local(devices)
    build = functions.function_of("graph", arguments.graph)
    recipe = None if arguments.recipe is None else functions.function_of("recipe", arguments.recipe)
    cache_dir = cache_directory(os.environ) if arguments.cache_dir is None else arguments.cache_dir

    def measured() -> "Measured":
        with tf.Graph().as_default():
            graph = build()
            if not isinstance(graph, mtf.Graph):
                raise ValueError(f"--graph is {arguments.graph!r}, which returned {shown(graph)}; return an mtf.Graph")
            mesh_shape = _mesh_shape(len(cluster.devices))
            layout = recipe(graph, mesh_shape=mesh_shape) if recipe else Layout(mesh_shape, arguments.layout)
            effort, fresh = _effort(arguments), arguments.fresh
            return measure(graph, layout, cluster, effort=effort, cache_dir=cache_dir, remeasure=fresh, progress=True)

    with WorkerClaim(cluster.workers_in_use):
        found = run_watched(measured, cluster.workers_in_use)
    if arguments.save is not None:
        speeds.save(found.profile, arguments.save)
    return found


def _report(arguments: argparse.Namespace) -> str:
    """The times and what follows from them, as text; what went wrong with what is kept goes to the standard error."""
    measured = _run(arguments)
    from mtf_hetero.profile.measurement import conclusion, table

    for note in measured.notes:
        sys.stderr.write(f"warning: {note}\n")
    return f"{table(measured)}\n\n{conclusion(measured)}\n"


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Measures as the command line says; returns the exit code."""
    arguments = _parse(argv, program)
    return command_line.print_result(lambda: _report(arguments))


def run(argv: Sequence[str] | None = None, program: str = PROGRAM) -> None:
    """The whole process: ends it with the exit code of `main`."""
    command_line.run(main, argv, program)


if __name__ == "__main__":
    run()

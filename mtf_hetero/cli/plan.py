"""Find the best layout of a network for devices that need not be here, and show it.

    mtf-hetero plan --model=vgg16 --batch_size=256 --simulate=devices.yaml --save=plan.json

The first line is the verdict: which devices to use, and how long a step takes on them. A table of layers and devices
follows: what is split, into which sizes, how long each device computes, and how much is sent. Nothing is lowered or
run. --picture=plan.png draws the plan (.svg and .pdf work too). --explain says why each layer is split as it is, and
what would make the devices worth using that are left out; that takes longer. In place of a model,
--graph=my_program:build names a function without arguments that builds the mtf program of a training step in
TensorFlow's default graph, and returns its mtf.Graph.

The file of devices is YAML or JSON. A device is a kind that `mtf-hetero plan --kinds` lists, or has figures:

    devices:
      - {kind: RTX-3090, count: 2}
      - {name: "cpu:0", flops_per_second: 8e11, bytes_per_second: 5e10, memory_bytes: 64e9}
    link: {latency_seconds: 5e-5, bytes_per_second: 1.2e9}

Exit codes: 0, 2 for a wrong flag or value (one line says which), 130 after Ctrl-C.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mtf_hetero._support import command_line, figures, functions
from mtf_hetero._support.schema import shorten
from mtf_hetero.cli.search_status import SearchStatus
from mtf_hetero.cli.train.config import MOST_WHOLE
from mtf_hetero.cost import devices_file, kinds
from mtf_hetero.cost.machines import Machines
from mtf_hetero.planner import picture
from mtf_hetero.planner import plan as plan_lib

if TYPE_CHECKING:
    from mtf_hetero._compat import mtf
    from mtf_hetero.models.registry import Model

PROGRAM = "mtf-hetero plan"
_LEFT_OUT_SECONDS = 20.0  # limit for the analysis of devices left out, if the search took no longer


class _ListKinds(argparse.Action):
    """Print the kinds of devices and end the program, as --help does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"{kinds.listing()}\n")
        parser.exit()


def _parse(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = command_line.Parser(
        prog=program, description="Find the best layout of a network for some devices.", allow_abbrev=False
    )
    parser.add_argument(
        "--kinds", action=_ListKinds, nargs=0, help="list the kinds of devices with their figures, and exit"
    )
    network = parser.add_mutually_exclusive_group(required=True)
    network.add_argument("--model", help="a CNN that `train` knows, such as vgg16, my.keras or keras:ResNet50")
    network.add_argument("--graph", help="module:function that builds and returns an mtf.Graph")
    parser.add_argument("--batch_size", type=int, default=128, help="images or volumes per step (%(default)s)")
    parser.add_argument("--optimizer", default="momentum", help="of the model (%(default)s)")
    parser.add_argument("--simulate", required=True, help="YAML or JSON file of devices and links")
    parser.add_argument("--save", help="file to write the plan to, as JSON; train --layout=FILE runs it")
    parser.add_argument("--picture", help=f"file to draw the plan in, {figures.ENDINGS}: who computes what, and when")
    parser.add_argument(
        "--explain", action="store_true", help="say why each layer is split so, and when other devices would pay off"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="limit of a search that is short of memory (%(default)s)"
    )
    return parser.parse_args(argv)


def _check(arguments: argparse.Namespace) -> None:
    """Find mistakes before TensorFlow is loaded, which takes seconds."""
    if arguments.graph is not None:
        functions.check_function("graph", arguments.graph)
    if arguments.batch_size > MOST_WHOLE:
        raise ValueError(f"--batch_size is {shorten(arguments.batch_size)}; it must be at most {MOST_WHOLE}")
    for flag in ("seconds", "batch_size"):
        if not getattr(arguments, flag) > 0:
            raise ValueError(f"--{flag} is {getattr(arguments, flag)!r}; it must be greater than zero")
    for flag, check in (("save", command_line.check_output), ("picture", figures.check_output)):
        if getattr(arguments, flag) is not None:
            check(flag, getattr(arguments, flag))


def _builder(arguments: argparse.Namespace) -> "Callable[[], mtf.Graph]":
    """Return the function that builds the graph of a training step."""
    if arguments.graph is not None:
        return functions.graph_function("graph", arguments.graph)
    from mtf_hetero.cli.train.config import OPTIMIZERS
    from mtf_hetero.models import named

    model = named.find(arguments.model).fitted()
    if arguments.optimizer not in OPTIMIZERS:
        raise ValueError(f"--optimizer is {arguments.optimizer!r}; it must be one of {', '.join(OPTIMIZERS)}")
    return functools.partial(build_step, model, arguments.batch_size, arguments.optimizer)


def build_step(model: "Model", batch_size: int, optimizer: str, **config: Any) -> "mtf.Graph":
    """Build the mtf.Graph of a training step on blank images or volumes, in the default graph.

    Args:
      model: of models.MODELS.
      batch_size: images or volumes.
      optimizer: a name in mtf_hetero.cli.train.config.OPTIMIZERS.
      **config: of the model's build.
    """
    from mtf_hetero._compat import tf
    from mtf_hetero.cli.train import program

    task = model.task.of_count(model.classes)
    tf.train.create_global_step()
    built = program.build_training(
        *program.blank(task, model.image_shape, batch_size),
        build=functools.partial(model.build, **{**task.config, **config}),
        optimizer=program.Optimizer(optimizer),
        task=task,
    )
    return built.graph


def _plan(arguments: argparse.Namespace) -> str:
    """Return the verdict and the tables of the plan, and save and draw the plan."""
    _check(arguments)
    machines = devices_file.load(arguments.simulate)
    with command_line.capture_stderr():
        from mtf_hetero._compat import tf
        from mtf_hetero.planner import fitting, left_out, show, verdict

        build = _builder(arguments)

    with SearchStatus(quiet=arguments.quiet) as status, tf.Graph().as_default():
        begin = time.monotonic()
        plan = fitting.find_fitting(build, machines, seconds=arguments.seconds, progress=status.report)
        others, graph = (), build() if arguments.explain else None
        if graph is not None:
            limit = max(_LEFT_OUT_SECONDS, time.monotonic() - begin)
            status.enter("looking for when the devices left out would pay off")
            search = fitting.repeated_search(graph, build, machines, plan)
            others = left_out.devices_left_out(graph, machines, plan, search, seconds=limit)
    parts = [verdict.verdict(plan, machines.names, others)]
    if graph is None and len(plan.devices) < len(machines.names):
        parts[0] += "\n--explain says when the devices that are not used would pay off."
    if len(plan.devices) > 1:
        parts.append(show.table(plan))
    if graph is not None:
        parts += _explain(graph, machines, plan, progress=sys.stderr.isatty() and not arguments.quiet)
        parts += [show.left_out_table(others)] if others else []
    _write(plan, arguments, machines)
    return "\n\n".join(parts) + "\n"


def _explain(graph: "mtf.Graph", machines: Machines, plan: plan_lib.Plan, *, progress: bool) -> list[str]:
    """Return the table with the reasons for each layer's split, or with the times on one device."""
    from mtf_hetero.planner import explain, show

    if len(plan.devices) > 1:
        return [show.alternatives(explain.explain(graph, machines, plan, progress=progress))]
    return [show.costs(explain.layer_costs(graph, machines, plan))]


def _write(plan: plan_lib.Plan, arguments: argparse.Namespace, machines: Machines) -> None:
    """Save and draw the plan if the command line asks for it."""
    if arguments.save is not None:
        plan_lib.save(plan, arguments.save)
    if arguments.picture is not None:
        network = arguments.graph or f"{arguments.model}, batches of {arguments.batch_size}"
        picture.draw(plan, arguments.picture, title=network, offered=machines.names)


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Plan by the command line, and return the exit code."""
    arguments = _parse(argv, program)
    return command_line.print_result(lambda: _plan(arguments))

"""Find the best layout of a network for devices that need not be here, and show it.

    mtf-hetero plan --model=vgg16 --devices="RTX 3090, GTX 1080 Ti" --link=pcie4 --save=plan.json

The first line is the verdict: which devices to use, and how long a step takes on them. Then comes what the plan takes
for granted, and where the verdict would be another one. A table of layers and devices follows: what is split, into
which sizes, how long each device computes, and how much is sent. Nothing is run. --picture=plan.png draws the plan
(.svg and .pdf work too). --explain says why each layer is split as it is, and what would make the devices worth using
that are left out; that takes longer.

--model=my.keras plans a Keras model. --step=my_program:step names a function without arguments that returns a step of
TensorFlow, and the tuple of its arguments. --graph=my_program:build names one that builds the mtf program of a training
step in TensorFlow's default graph, and returns its mtf.Graph.

A semicolon in --devices begins another machine; --link is then between machines, and --inner_link within each. In
place of --devices, --simulate=devices.yaml names a file, YAML or JSON. A device there is a kind that
`mtf-hetero plan --kinds` lists, or has figures:

    devices:
      - {kind: RTX-3090, count: 2}
      - {name: "cpu:0", flops_per_second: 8e11, bytes_per_second: 5e10, memory_bytes: 64e9}
    link: {latency_seconds: 5e-5, bytes_per_second: 1.2e9}

--objective=cost looks for the plan whose devices have the least price for a step, and --most_seconds=0.5 for the
cheapest one whose steps are no longer. Each device then has a price per hour, in any currency: --devices="A100 at 1.10,
2 x T4 at 0.35", or price_per_hour in the file.

Exit codes: 0, 2 for a wrong flag or value (one line says which), 130 after Ctrl-C.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from mtf_hetero._support import command_line, figures, garbage
from mtf_hetero.cli import network as network_lib
from mtf_hetero.cli.search_status import SearchStatus
from mtf_hetero.cost import devices_file, kinds, links
from mtf_hetero.planner import picture
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.objective import COST, TIME, Objective

if TYPE_CHECKING:
    from mtf_hetero.cost.machines import Machines
    from mtf_hetero.planner.answering import Planned

PROGRAM = "mtf-hetero plan"
T = TypeVar("T")
_HINT = "--explain says when the devices that are not used would pay off."


class _ListKinds(argparse.Action):
    """Print the kinds of devices and end the program, as --help does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"{kinds.listing()}\n")
        parser.exit()


def _parse(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = command_line.Parser(prog=program, description="Find the best layout of a network for some devices.")
    parser.add_argument(
        "--kinds", action=_ListKinds, nargs=0, help="list the kinds of devices with their figures, and exit"
    )
    network_lib.add_flags(parser)
    devices = parser.add_mutually_exclusive_group(required=True)
    devices.add_argument(
        "--devices", help='their kinds, "2 x RTX 3090, GTX 1080 Ti", or "T4 at 0.35", a price per hour'
    )
    devices.add_argument("--simulate", help="YAML or JSON file of devices and links")
    parser.add_argument("--link", help="of --devices: pcie4, nvlink, wifi, 10Gbit/s ... (default: 10Gbit/s)")
    parser.add_argument("--inner_link", help="of --devices in several machines, within each (default: pcie4)")
    parser.add_argument(
        "--objective", default=TIME, help=f"what is to be least: {TIME}, or {COST} of a step (%(default)s)"
    )
    parser.add_argument("--most_seconds", type=float, help=f"of --objective={COST}: limit of a step")
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
    network_lib.check_flags(arguments)
    network_lib.fill_in(arguments)
    if not arguments.seconds > 0:
        raise ValueError(f"--seconds is {arguments.seconds!r}; it must be greater than zero")
    _objective(arguments)
    for flag, check in (("save", command_line.check_output), ("picture", figures.check_output)):
        if getattr(arguments, flag) is not None:
            check(flag, getattr(arguments, flag))


def _of_flag(flag: str, value: str | None, read: Callable[[str], T]) -> T | None:
    """Return what a flag means; the flag is named in errors about it."""
    try:
        return None if value is None else read(value)
    except ValueError as error:
        raise ValueError(f"--{flag} is {value!r}: {error}") from error


def _objective(arguments: argparse.Namespace) -> Objective:
    try:
        return Objective(arguments.objective, arguments.most_seconds)
    except ValueError as error:
        raise ValueError(f"--{error}") from error  # it begins with the flag's name


def _machines(arguments: argparse.Namespace) -> "Machines":
    """Return the devices that the flags name."""
    if arguments.devices is not None:
        given = {flag: _of_flag(flag, getattr(arguments, flag), links.parse_link) for flag in ("link", "inner_link")}
        found = _of_flag("devices", arguments.devices, functools.partial(devices_file.parse_devices, **given))
        assert found is not None
        return found
    for flag in ("link", "inner_link"):
        if getattr(arguments, flag) is not None:
            raise ValueError(f"--{flag} is of --devices, but there is --simulate; write it into that file")
    return devices_file.load(arguments.simulate)


@garbage.without_collection()
def _plan(arguments: argparse.Namespace) -> str:
    """Return the verdict and the tables of the plan, and save and draw the plan."""
    _check(arguments)
    machines, objective = _machines(arguments), _objective(arguments)
    objective.check(machines)
    with SearchStatus("building the network", quiet=arguments.quiet) as status:
        with command_line.capture_stderr():
            from mtf_hetero.planner import answering

            network = network_lib.find(arguments)
        shown = {"progress": status.report, "enter": status.enter, "hint": _HINT}
        how = {"explains": arguments.explain, "seconds": arguments.seconds, "objective": objective}
        planned = answering.answer(network, machines, **how, **shown)
    parts = [planned.text]
    if arguments.explain:
        parts += _explain(planned, progress=sys.stderr.isatty() and not arguments.quiet)
    _write(planned, arguments)
    return "\n\n".join(parts) + "\n"


def _explain(planned: "Planned", *, progress: bool) -> list[str]:
    """Return the table with the reasons for each layer's split, or with the times on one device."""
    from mtf_hetero.planner import explain, show

    about = planned.graph, planned.machines, planned.plan
    if len(planned.plan.devices) == 1:
        parts = [show.costs(explain.layer_costs(*about))]
    elif planned.plan.layout.slots:
        parts = [show.turns(planned.plan)]
    else:
        parts = [show.alternatives(explain.explain(*about, progress=progress))]
    return [*parts, show.left_out_table(planned.others)] if planned.others else parts


def _write(planned: "Planned", arguments: argparse.Namespace) -> None:
    """Save and draw the plan if the command line asks for it."""
    if arguments.save is not None:
        plan_lib.save(planned.plan, arguments.save)
    if arguments.picture is not None:
        network = f"{arguments.model}, batches of {arguments.batch_size}"
        title = network if arguments.model is not None else arguments.graph or arguments.step
        picture.draw(planned.plan, arguments.picture, title=title, offered=planned.machines.names)


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Plan by the command line, and return the exit code."""
    arguments = _parse(argv, program)
    return command_line.print_result(lambda: _plan(arguments))

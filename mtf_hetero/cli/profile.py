"""Measures the devices of a cluster on the training step of a network.

    mtf-hetero profile --model=my.keras --batch_size=64 --devices=gpu:0,cpu:0 --save=devices.json

prints how fast each device is, how long it takes for a whole step alone, how fast the links between the devices are,
and the speeds for --list_speed. `mtf-hetero plan --simulate=devices.json` plans with the figures. The network is named
as for `plan`: by --model, by --step=my_program:step, or by --graph=my_program:build, a function without arguments that
builds the mtf program of a training step in TensorFlow's default graph, and returns its mtf.Graph.

The measurements are those of --list_speed=auto, and are kept under ~/.cache/mtf_hetero (or XDG_CACHE_HOME) for the next
run; --fresh measures again. The devices should have nothing else to do meanwhile.

Exit codes: 0, 2 for a wrong flag or value (one line says which), 130 after Ctrl-C.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._support import command_line, extras, tables
from mtf_hetero._support.units import bytes_text, seconds_text
from mtf_hetero.cli import network as network_lib
from mtf_hetero.cost.devices_file import dumps
from mtf_hetero.cost.machines import Machines
from mtf_hetero.placement.request import Request

if TYPE_CHECKING:
    from mtf_hetero._compat import mtf
    from mtf_hetero.cluster import Cluster

PROGRAM = "mtf-hetero profile"


def _parse(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = command_line.Parser(prog=program, description="Measures the devices of a cluster on a training step.")
    network_lib.add_flags(parser)
    parser.add_argument("--devices", help="such as gpu:0,cpu:0, with workers also worker:0/gpu:0 (default: all)")
    parser.add_argument("--workers", help="host:port,host:port of running workers")
    parser.add_argument(
        "--port", type=int, help="port of this process, to which workers connect (default: any free one)"
    )
    parser.add_argument("--save", help="a file to write the devices to, as JSON, for plan --simulate")
    parser.add_argument("--cache_dir", help="where measurements are kept (default: ~/.cache/mtf_hetero)")
    parser.add_argument("--fresh", action="store_true", help="measure again devices that were measured before")
    return parser.parse_args(argv)


def measure(
    build: "Callable[[], mtf.Graph]",
    cluster: "Cluster",
    *,
    cache_dir: str | os.PathLike | None = None,
    fresh: bool = False,
    progress: bool = False,
) -> tuple[Machines, bool]:
    """Measure the devices of a cluster on a program, or read the measurements of an earlier run.

    Args:
      build: builds a new training step in TensorFlow's default graph, and returns its mtf.Graph.
      cluster: the devices, each its own hardware.
      cache_dir: directory of cached measurements; None: no cache.
      fresh: whether to measure again, and not to read the cache.
      progress: whether to show a bar, or lines without a terminal.

    Returns:
      The devices, and whether their measurements were cached.

    Raises:
      ValueError: the graph assigns no variable, so that it is no training step.
    """
    from mtf_hetero.cost import calibration
    from mtf_hetero.cost.known import Known

    known = Known(build, cluster, cache_dir)
    if not fresh and (loaded := known.load()):
        return loaded[0], True
    hide = None if progress else True  # None: shown on a terminal
    total = calibration.parts(len(cluster.devices))
    with extras.progress_bar(total=total, desc="measuring", unit="part", disable=hide, leave=False) as bar:
        machines = calibration.calibrate(build, cluster, done=lambda _: bar.update())
    known.save(machines)
    return machines, False


def table(machines: Machines, steps_per_second: Sequence[float]) -> str:
    """Return the figures of devices and links as text."""
    rows = [("device", "a step alone", "compute", "memory", "capacity")]
    for machine, speed in zip(machines.devices, steps_per_second, strict=True):
        capacity = "not known" if machine.memory_bytes is None else bytes_text(machine.memory_bytes)
        compute = f"{machine.flops_per_second / 1e9:.4g} GFLOP/s"
        rows.append((machine.name, seconds_text(1 / speed), compute, _rate(machine.bytes_per_second), capacity))
    lines = tables.lines(rows, "<>>>>")
    links = [("link", "latency", "bandwidth")]
    for (a, b), link in machines.links.items():
        links.append((f"{a} - {b}", f"{link.latency_seconds * 1e6:.0f} us", _rate(link.bytes_per_second)))
    if len(links) > 1:
        lines += ["", *tables.lines(links, "<>>")]
    return "\n".join(lines)


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_text(bytes_per_second)}/s"


def _check(arguments: argparse.Namespace) -> Request:
    """Find mistakes before TensorFlow is loaded, which takes seconds; return the requested devices."""
    network_lib.check_flags(arguments)
    network_lib.fill_in(arguments)
    if arguments.save is not None:
        command_line.check_output("save", arguments.save)
    return Request(devices=arguments.devices, workers=arguments.workers, port=arguments.port, are_flags=True)


def _report(arguments: argparse.Namespace) -> str:
    """Return the figures, the speeds, and the next command, as text."""
    request = _check(arguments)
    with command_line.capture_stderr():
        from mtf_hetero._compat import tf
        from mtf_hetero.cluster import Cluster, WorkerClaim
        from mtf_hetero.cluster.devices import shorten
        from mtf_hetero.cluster.watch import run_watched
        from mtf_hetero.cost import calibration
        from mtf_hetero.cost.hardware import cache_directory, representatives
        from mtf_hetero.graph.walk import updates
        from mtf_hetero.placement import requested_cluster

        cluster = requested_cluster(request) if request.workers else Cluster.local(request.devices)
        network = network_lib.find(arguments)
    build = network.build
    with tf.Graph().as_default():
        graph = build()
    if not updates(graph):
        raise ValueError(f"{network_lib.flags(arguments)} assigns no variable in a step; apply an optimizer")
    first = representatives(cluster.devices)
    shared = [f"{device} shares the cores of {other}" for device, other in first.items() if device != other]
    cluster = dataclasses.replace(cluster, devices=tuple(dict.fromkeys(first.values())))
    cache_dir = cache_directory(os.environ) if arguments.cache_dir is None else arguments.cache_dir

    def measured() -> tuple[Machines, bool]:
        return measure(build, cluster, cache_dir=cache_dir, fresh=arguments.fresh, progress=True)

    with WorkerClaim(cluster.workers_in_use):
        machines, is_known = run_watched(measured, cluster.workers_in_use)
    if arguments.save is not None:
        command_line.write_output("save", arguments.save, dumps(machines).encode())
    speeds = calibration.speeds(graph, machines)
    shares = ",".join(f"{100 * speed / sum(speeds):.3g}" for speed in speeds)
    notes = [*shared, *["measured before: --fresh measures again"] * is_known]
    lines = [table(machines, speeds), *[""] * bool(notes), *notes, ""]
    lines.append(f"speeds: --devices={','.join(machines.names)} --list_speed={shares}")
    saved = arguments.save or "devices.json"
    hint = "" if arguments.save else f" (after profile --save={saved})"
    lines.append(f"next: mtf-hetero plan {network_lib.flags(arguments)} --simulate={saved}{hint}")
    return shorten("\n".join(lines)) + "\n"


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Measure by the command line, and return the exit code."""
    arguments = _parse(argv, program)
    return command_line.print_result(lambda: _report(arguments))

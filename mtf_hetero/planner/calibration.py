"""Machines as they are: their rates, measured on the program that is to be planned.

A step of it is run on each device in turn, while all others are busy with theirs, each with an equal part and nothing
added up or sent, and traced: how long each operation took, over what the rates of its device say of its arithmetic and
its memory, is the factor of its kind there. Devices that share a bus, or the halves of a core, are slower so than
alone: the whole step is traced on the fastest one while the others rest, too, which is taken to hold for its
neighbours. Between these traces the links are timed, and what a byte costs the processor at either end.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from mtf_hetero import trace
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.cluster import Cluster
from mtf_hetero.cluster.devices import Device, complete
from mtf_hetero.cluster.probe import split_address
from mtf_hetero.layout import Layout
from mtf_hetero.planner import rates, work
from mtf_hetero.planner.machines import Machine, Machines
from mtf_hetero.planner.problem import AXIS, Problem
from mtf_hetero.planner.quick import Figure
from mtf_hetero.planner.rates import OPERATION_SECONDS, Rated
from mtf_hetero.profile.granule import measure_granule
from mtf_hetero.profile.hardware import memory_limits
from mtf_hetero.profile.link import Link
from mtf_hetero.profile.messages import measure_link, measure_processor
from mtf_hetero.profile.trial import Trial
from mtf_hetero.profile.work import live

WARM_UP = 1
LEAST_STEPS, MOST_STEPS = 2, 20
_ALL_PAIRS = 3  # devices, up to which each pair's link is timed; of more, those of neighbours
_EMPTY_STEPS = 20
_REACHED = 0.5  # of the rate of large matrix products, by a step, at least
_LONG_SECONDS = 2e-5  # of an operation that does next to nothing, at most
_FLOPS_PER_BYTE = 6.0  # of a CPU's rates, about, where only one of them is known
_IN_MEMORY = Link(0.0, 1e13)
_UNKNOWN = Link(1e-4, 1e9)  # where there was no time to measure a link


@dataclasses.dataclass(frozen=True)
class Effort:
    """Effort with which devices are measured.

    Args:
      name: in the names of files that keep measurements.
      trace_seconds: for how long steps are traced.
      turns: in how many turns, since machines are shared, and noisy.
      repeats: of each size of message, at most.
      message_seconds: after which no size of message is repeated more than twice.
      granule_repeats: of convolutions to few filters.
    """

    name: str
    trace_seconds: float
    turns: int
    repeats: int
    message_seconds: float
    granule_repeats: int


THOROUGH = Effort("", 3.0, 3, 5, 5.0, 20)
LIGHT = Effort("-light", 1.0, 1, 2, 0.5, 8)


def calibrate(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    *,
    done: Callable[[str], None] = lambda what: None,
) -> Machines:
    """Measures the devices of a cluster on a program, thoroughly.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: the devices, each hardware of its own.
      done: called with each part that is done.

    Raises:
      ValueError: the graph assigns no variable.
    """
    seconds = THOROUGH.trace_seconds
    rated = _rated(build, cluster, THOROUGH, done)
    fastest = max(rated, key=lambda device: rated[device][0])
    alone = Trial(build, Layout([(AXIS, 1)], ()), [fastest], cluster) if len(rated) > 1 else contextlib.nullcontext()
    with alone as trial:
        steps = _traced(trial.run_traced, seconds) if trial else []
        links = _links(cluster, THOROUGH, done)
        machines = _machines(cluster, rated, THOROUGH, done)
        if trial:
            steps += _traced(trial.run_traced, seconds)  # once more, some time later: machines are shared, and noisy
            measured = rates.typical_seconds([rates.own_events(trial, events, 0) for events in steps])
            machines = _with_alone_factor(machines, cluster, fastest, trial.graph, measured)
            done("alone")
    return _joined(machines, links, _empty_step(cluster))


def calibrate_quickly(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    figure: Figure,
    *,
    done: Callable[[str], None] = lambda what: None,
) -> Machines:
    """As `calibrate`, in a few seconds: fewer steps, of parts by the first figure. It keeps a time limit.

    Args:
      build: as of `calibrate`.
      cluster: likewise.
      figure: the first figure.
      done: as of `calibrate`.

    Raises:
      deadline.OutOfTimeError: no operation could be measured in time; of what else could not, typical figures stand in.
    """
    rated = _rated(build, cluster, LIGHT, done, figure.rates)
    links = _links(cluster, LIGHT, done)
    step_seconds = _empty_step(cluster)
    machines = _machines(cluster, rated, LIGHT, done)
    with tf.Graph().as_default():
        measured = figure.step_seconds - step_seconds
        machines = _with_alone_factor(machines, cluster, figure.fastest, build(), measured)
    done("alone")
    return _joined(machines, links, step_seconds)


def guess(graph: mtf.Graph, cluster: Cluster, rates: Mapping[str, float]) -> Figure:
    """A figure before any step has been run, with a step that is rather too long than too short.

    Args:
      graph: mtf.Graph of a training step.
      cluster: the devices.
      rates: as of `quick.measure_rates`.
    """
    return Figure(rates, 1.0 / max(speeds(graph, unmeasured(cluster, rates))), 0.0)


def estimate(graph: mtf.Graph, cluster: Cluster, figure: Figure, *, with_links: bool = True) -> Machines:
    """The devices by the first figure alone: as fast as they multiply matrices.

    Args:
      graph: mtf.Graph of a training step.
      cluster: the devices.
      figure: the first figure.
      with_links: whether the links are measured, for a few seconds at most.
    """
    machines = [dataclasses.replace(m, operation_seconds=0.0) for m in unmeasured(cluster, figure.rates).devices]
    scale = max(speeds(graph, Machines(tuple(machines)))) * figure.step_seconds
    scaled = [
        dataclasses.replace(m, flops_per_second=m.flops_per_second / scale, bytes_per_second=m.bytes_per_second / scale)
        for m in machines
    ]
    return _joined(scaled, _links(cluster, LIGHT, lambda what: None) if with_links else {}, 0.0)


def _joined(machines: Sequence[Machine], links: Mapping[tuple[str, str], Link], step_seconds: float) -> Machines:
    slowest = max(links.values(), key=lambda link: link.seconds(2**20), default=_IN_MEMORY)
    return Machines(tuple(machines), slowest, links, step_seconds)


def _links(cluster: Cluster, effort: Effort, done: Callable[[str], None]) -> dict[tuple[str, str], Link]:
    """{devices: the link between them}."""
    links, config = {}, cluster.session_config()
    for a, b in pairs(len(cluster.devices)):
        ends = cluster.devices[a], cluster.devices[b]
        links[ends] = _UNKNOWN
        with contextlib.suppress(OutOfTimeError):
            links[ends] = measure_link(
                *ends, target=cluster.target, config=config, repeats=effort.repeats, seconds=effort.message_seconds
            )
        done("link")
    return links


def _machines(
    cluster: Cluster, rated: Mapping[str, Rated], effort: Effort, done: Callable[[str], None]
) -> list[Machine]:
    """The devices, with what messages cost each of them."""
    config, devices = cluster.session_config(), cluster.devices
    with tf.Graph().as_default(), tf.Session(cluster.target, config=config) as session:
        limits = memory_limits(cluster, session)
    machines = []
    for number, device in enumerate(devices):
        others = [pair for pair in pairs(len(devices)) if number in pair]
        per_message, per_byte, granule = 0.0, 0.0, 1
        with contextlib.suppress(OutOfTimeError):
            if others:
                (other,) = {devices[end] for end in others[0]} - {device}
                per_message, per_byte = measure_processor(
                    device,
                    other,
                    target=cluster.target,
                    config=config,
                    repeats=effort.repeats,
                    seconds=effort.message_seconds,
                )
            granule = measure_granule(device, target=cluster.target, config=config, repeats=effort.granule_repeats)
        if others:
            done("processor")
        flops, moved, factors = rated[device]
        machines.append(
            Machine(
                device,
                flops,
                moved,
                limits[device],
                operation_seconds=OPERATION_SECONDS,
                seconds_per_byte=per_byte,
                seconds_per_message=per_message,
                factors=factors,
                granule=granule,
            )
        )
    return machines


def parts(count: int) -> int:
    """How often `calibrate` says that a part is done, of so many devices."""
    return 1 + len(pairs(count)) + (count + 1 if count > 1 else 0)


def pairs(count: int) -> list[tuple[int, int]]:
    """The pairs of devices whose links are timed."""
    if count <= _ALL_PAIRS:
        return list(itertools.combinations(range(count), 2))
    return [(number, (number + 1) % count) for number in range(count)]


def _empty_step(cluster: Cluster) -> float:
    """Seconds of a step in which each device does next to nothing."""
    with tf.Graph().as_default():
        numbers = []
        for device in cluster.devices:
            with tf.device(device):
                numbers.append(tf.random.uniform([]).op)
        with tf.Session(cluster.target, config=cluster.session_config()) as session:
            call = session.make_callable(tf.group(numbers))
            times = []
            for _ in range(_EMPTY_STEPS):
                begin = time.perf_counter()
                call()
                times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _rated(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    effort: Effort,
    done: Callable[[str], None],
    parts: Mapping[str, float] | None = None,
) -> dict[str, Rated]:
    """{device: (flops per second, bytes per second, factors)}, of equal parts of a step, or in these proportions."""
    devices, seconds = cluster.devices, effort.trace_seconds
    for layout in _parts(build, [1.0 if parts is None else parts[device] for device in devices]):
        try:
            with Trial(build, layout, devices, cluster, alone=True) as trial:
                trial.run()  # TensorFlow prepares the graph
                traced = _traced_beside_others(trial, effort)
                rated = {device: rates.rates_of(trial, traced[pnum], pnum) for pnum, device in enumerate(devices)}
        except NotImplementedError:
            continue
        done("step")
        return rated
    rated = {}
    for device in devices:
        with Trial(build, Layout([(AXIS, 1)], ()), [device], cluster) as trial:
            rated[device] = rates.rates_of(trial, _traced(trial.run_traced, seconds), 0)
    done("step")
    return rated


def _traced_beside_others(trial: Trial, effort: Effort) -> list[list[tuple[trace.Event, ...]]]:
    """The events of each device's parts of steps, while all others are busy with theirs.

    They take turns, for machines are shared, and noisy; one whose steps are long needs no more than the least of them.
    """
    steps: list[list[tuple[trace.Event, ...]]] = [[] for _ in trial.devices]
    spent, seconds = [0.0] * len(steps), effort.trace_seconds
    for turn, (pnum, mine) in itertools.product(range(effort.turns), enumerate(steps)):
        if len(mine) >= LEAST_STEPS and spent[pnum] >= seconds:
            continue
        with trial.busy([other for other in range(len(steps)) if other != pnum]):
            begin = time.monotonic()
            run = functools.partial(trial.run_traced_on, pnum)
            mine += _traced(run, seconds / effort.turns, warm_up=0 if turn else WARM_UP, least=1)
            spent[pnum] += time.monotonic() - begin
    return steps


def _with_alone_factor(
    machines: Sequence[Machine], cluster: Cluster, fastest: str, graph: mtf.Graph, measured: float
) -> list[Machine]:
    """The devices with what a whole step takes while the others rest, over what the rates say.

    They may share a bus; and an operation on all examples may take less than as many times as long as on a part.

    Args:
      machines: the devices.
      cluster: where they are.
      fastest: the device on which a whole step was measured; its neighbours are as it is.
      graph: the step.
      measured: its seconds.
    """
    (machine,) = (machine for machine in machines if machine.name == fastest)
    predicted = 1.0 / speeds(graph, Machines((machine,)))[0]
    factor = measured / predicted if measured > 0 and predicted else 1.0
    neighbours = _neighbours(cluster, fastest)
    return [dataclasses.replace(m, alone_factor=factor) if m.name in neighbours else m for m in machines]


def _neighbours(cluster: Cluster, name: str) -> set[str]:
    """The devices of the same kind on the same host as one of them, itself included: they are alone as it is."""

    def place(device: Device) -> tuple[str | None, str]:
        is_worker = device.job == "worker"
        return device.kind, split_address(cluster.workers[device.task or 0])[0] if is_worker else ""

    places = {other: place(device) for other, device in complete(cluster.devices).items()}
    return {other for other in places if places[other] == places[name]}


def _parts(build: Callable[[], mtf.Graph], proportions: Sequence[float]) -> Iterator[Layout]:
    """Layouts that divide a dimension in these proportions, of those dimensions with most work first."""
    if len(proportions) == 1:
        return
    slow = [part / max(proportions) for part in proportions]  # so that the start of an operation costs next to nothing
    with tf.Graph().as_default():
        machines = Machines(tuple(Machine(str(number), rate, rate) for number, rate in enumerate(slow)))
        problem = Problem(live(build()), machines)
        menus = problem.menus([range(len(slow))])
        for family in sorted(problem.families, key=problem.work_of, reverse=True):
            if sizes := problem.allowed_of(family, menus):
                yield problem.layout(sizes)


def _traced(
    run: Callable[[], tuple[trace.Event, ...]], seconds: float, *, warm_up: int = WARM_UP, least: int = LEAST_STEPS
) -> list[tuple[trace.Event, ...]]:
    """The events of steps, of which the first ones are not counted."""
    for _ in range(warm_up):
        run()
    steps: list[tuple[trace.Event, ...]] = []
    end = time.monotonic() + seconds
    while len(steps) < least or (len(steps) < MOST_STEPS and time.monotonic() < end):
        steps.append(run())
    return steps


def speeds(graph: mtf.Graph, machines: Machines) -> tuple[float, ...]:
    """Steps of a graph a second that each device would do alone."""
    whole, operations = Layout([(AXIS, 1)], ()), live(graph)
    amounts = [(*work.of_operation(op, whole, 0), work.kind_of(op)) for op in operations]
    return tuple(1.0 / math.fsum(machine.seconds(*amount) for amount in amounts) for machine in machines.devices)


def unmeasured(cluster: Cluster, rates: Mapping[str, float]) -> Machines:
    """Devices of which no more is known than how fast they multiply matrices, and their memory."""
    with tf.Graph().as_default(), tf.Session(cluster.target, config=cluster.session_config()) as session:
        limits = memory_limits(cluster, session)
    flops = {device: _REACHED * rates[device] for device in cluster.devices}
    machines = [Machine(d, rate, rate / _FLOPS_PER_BYTE, limits[d], _LONG_SECONDS) for d, rate in flops.items()]
    return Machines(tuple(machines), _UNKNOWN)

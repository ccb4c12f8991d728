"""Measure the rates of devices on the program that is to be planned.

Each device in turn runs its part of a step, which is traced, while all others are busy with theirs. Nothing is added up
or sent. The factor of a kind of operation is its time, over that by the device's rates. Devices that share a bus or a
core are slower so than alone. So the whole step is also traced on the fastest device while the others rest; its
neighbours are assumed to be alike. Between these traces the links are timed, and the processor time of messages.
"""

import contextlib
import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.cluster import Cluster
from mtf_hetero.cluster.devices import Device, complete
from mtf_hetero.cluster.probe import split_address
from mtf_hetero.cost import rates, trace, work
from mtf_hetero.cost.hardware import memory_limits
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.cost.microbenchmarks import measure_granule, measure_link, measure_processor
from mtf_hetero.cost.model import ALONE, AXIS, Model
from mtf_hetero.cost.quick import Figure
from mtf_hetero.cost.rates import OPERATION_SECONDS, Rated, Traced
from mtf_hetero.cost.trial import Trial
from mtf_hetero.graph import live_operations
from mtf_hetero.graph.families import Families
from mtf_hetero.layout import CannotSplitError, Layout
from mtf_hetero.layout.partition import split_among_positive

WARM_UP = 1
LEAST_STEPS, MOST_STEPS = 2, 20
_ALL_PAIRS = 3  # devices, up to which each pair's link is timed; of more, the links of neighbours
_EMPTY_STEPS = 20
_SLOTS = 8  # of a device's part, for the time of small parts
_REACHED = 0.5  # the least part of the rate of large matrix products that a step reaches
_LONG_SECONDS = 2e-5  # of an operation that does next to nothing, at most
_FLOPS_PER_BYTE = 6.0  # of a CPU's rates, about, if only one of them is known
_IN_MEMORY = Link(0.0, 1e13)  # between devices of one process: too fast to be measured
_UNKNOWN = Link(1e-4, 1e9)  # without time to measure a link


@dataclasses.dataclass(frozen=True)
class Effort:
    """Effort with which devices are measured.

    Args:
      name: in the names of files that keep measurements.
      trace_seconds: for tracing steps.
      turns: into which this time is divided, since machines are shared and noisy.
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
    figure: Figure | None = None,
    done: Callable[[str], object] = lambda what: None,
) -> Machines:
    """Measure the devices of a cluster on a program.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: the devices, each hardware of its own.
      figure: the first figure, for which a few seconds are enough: fewer steps are measured, of parts by its rates.
        Typical figures stand in for links, messages and granules that could not be measured within the time limit.
        None: the devices are measured thoroughly.
      done: called with each part that is done.

    Raises:
      ValueError: the graph assigns no variable.
      deadline.OutOfTimeError: no operation could be measured within the time limit.
    """
    effort = THOROUGH if figure is None else LIGHT
    rated = _rated(build, cluster, effort, done, None if figure is None else figure.rates)
    fastest = max(rated, key=lambda device: rated[device][0]) if figure is None else figure.fastest
    is_traced = figure is None and len(rated) > 1
    with Trial(build, ALONE, [fastest], cluster) if is_traced else contextlib.nullcontext() as trial:
        steps = _traced(trial.run_traced, effort.trace_seconds) if trial else []
        links, step_seconds = _links(cluster, effort, done), _empty_step(cluster)
        machines = _machines(cluster, rated, effort, done)
        if trial:
            steps += _traced(trial.run_traced, effort.trace_seconds)  # some time later: machines are shared, and noisy
    if len(rated) > 1:
        alone = [rates.own_events(trial, events, 0) for events in steps] if trial else []
        measured = rates.typical_seconds(alone) if figure is None else figure.step_seconds - step_seconds
        with tf.Graph().as_default():
            machines = _with_alone_factor(machines, cluster, fastest, trial.graph if trial else build(), measured)
        done("alone")
    return _join(machines, links, step_seconds)


def guess(graph: mtf.Graph, cluster: Cluster, rates: Mapping[str, float]) -> Figure:
    """Return a figure before any step has run, by the rates of `quick.measure_rates`; its step is rather too long."""
    return Figure(rates, 1.0 / max(speeds(graph, unmeasured(cluster, rates))), 0.0)


def estimate(graph: mtf.Graph, cluster: Cluster, figure: Figure, *, with_links: bool = True) -> Machines:
    """Return the devices by the first figure alone: as fast as they multiply matrices.

    Args:
      graph: mtf.Graph of a training step.
      cluster: the devices.
      figure: the first figure.
      with_links: whether to measure the links, for a few seconds at most.
    """
    machines = [dataclasses.replace(m, operation_seconds=0.0) for m in unmeasured(cluster, figure.rates).devices]
    scale = max(speeds(graph, Machines(tuple(machines)))) * figure.step_seconds
    scaled = [
        dataclasses.replace(m, flops_per_second=m.flops_per_second / scale, bytes_per_second=m.bytes_per_second / scale)
        for m in machines
    ]
    return _join(scaled, _links(cluster, LIGHT, lambda what: None) if with_links else {}, 0.0)


def _join(machines: Sequence[Machine], links: Mapping[tuple[str, str], Link], step_seconds: float) -> Machines:
    slowest = max(links.values(), key=lambda link: link.seconds(2**20), default=_IN_MEMORY)
    return Machines(tuple(machines), slowest, links, step_seconds)


def _links(cluster: Cluster, effort: Effort, done: Callable[[str], object]) -> dict[tuple[str, str], Link]:
    """Return {devices: the link between them}."""
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
    cluster: Cluster, rated: Mapping[str, Rated], effort: Effort, done: Callable[[str], object]
) -> list[Machine]:
    """Return the devices, with the processor time of messages."""
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
        flops, moved, factors, moved_factors = rated[device]
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
                moved_factors=moved_factors,
                granule=granule,
            )
        )
    return machines


def parts(count: int) -> int:
    """Return how often `calibrate` calls `done` for so many devices."""
    return 1 + len(pairs(count)) + (count + 1 if count > 1 else 0)


def pairs(count: int) -> list[tuple[int, int]]:
    """Return the pairs of devices whose links are timed."""
    if count <= _ALL_PAIRS:
        return list(itertools.combinations(range(count), 2))
    return [(number, (number + 1) % count) for number in range(count)]


def _empty_step(cluster: Cluster) -> float:
    """Return the seconds of a step in which each device does next to nothing."""
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
    done: Callable[[str], object],
    parts: Mapping[str, float] | None = None,
) -> dict[str, Rated]:
    """Return {device: rates} by parts of a step, equal ones or in these proportions."""
    devices, seconds = cluster.devices, effort.trace_seconds
    for layout in _parts(build, [1.0 if parts is None else parts[device] for device in devices]):
        try:
            with Trial(build, layout, devices, cluster, alone=True) as trial:
                large = _traced_beside_others(trial, effort)
        except CannotSplitError:
            continue
        small: Sequence[Traced | None] = [None] * len(devices)
        if effort is THOROUGH:
            small = _traced_in_slots(build, layout, devices, cluster)
        done("step")
        of_devices = zip(devices, large, small, strict=True)
        return {device: rates.find_rates(traced, part) for device, traced, part in of_devices}
    rated = {}
    for device in devices:
        with Trial(build, ALONE, [device], cluster) as trial:
            rated[device] = rates.find_rates(Traced(trial, _traced(trial.run_traced, seconds), 0))
    done("step")
    return rated


def _traced_in_slots(
    build: Callable[[], mtf.Graph], layout: Layout, devices: Sequence[str], cluster: Cluster
) -> list[Traced]:
    """Return the events of a small part of a step on each device: that of the first of its slots."""
    count = min(_SLOTS, *(min(sizes) for _, sizes in layout.sizes))
    sizes = {
        name: [part for size in sizes for part in split_among_positive(size, [1] * count)]
        for name, sizes in layout.sizes
    }
    in_slots = Layout([(AXIS, count * len(devices))], layout.rules, (), sizes, {AXIS: [count] * len(devices)})
    with Trial(build, in_slots, devices, cluster, alone=True) as trial:
        return _traced_beside_others(trial, dataclasses.replace(THOROUGH, turns=1))


def _traced_beside_others(trial: Trial, effort: Effort) -> list[Traced]:
    """Return the events of each device's parts of steps, while all others are busy with theirs.

    Devices take turns, since machines are shared and noisy. A device with long steps needs the fewest of them.
    """
    trial.run()  # TensorFlow prepares the graph
    steps: list[list[tuple[trace.Event, ...]]] = [[] for _ in trial.devices]
    spent, seconds = [0.0] * len(steps), effort.trace_seconds
    for turn, (number, mine) in itertools.product(range(effort.turns), enumerate(steps)):
        if len(mine) >= LEAST_STEPS and spent[number] >= seconds:
            continue
        with trial.busy([other for other in range(len(steps)) if other != number]):
            begin = time.monotonic()
            run = functools.partial(trial.run_traced_on, number)
            mine += _traced(run, seconds / effort.turns, warm_up=0 if turn else WARM_UP, least=1)
            spent[number] += time.monotonic() - begin
    return [Traced(trial, mine, trial.layout.places.index(number)) for number, mine in enumerate(steps)]


def _with_alone_factor(
    machines: Sequence[Machine], cluster: Cluster, fastest: str, graph: mtf.Graph, measured: float
) -> list[Machine]:
    """Return the devices with their factor while the others rest.

    Args:
      machines: the devices.
      cluster: where they are.
      fastest: the device on which a whole step was measured; its neighbours are alike.
      graph: the step.
      measured: its seconds.
    """
    (machine,) = (machine for machine in machines if machine.name == fastest)
    predicted = 1.0 / speeds(graph, Machines((machine,)))[0]
    factor = min(measured / predicted, 1.0) if measured > 0 and predicted else 1.0  # slower alone: a noisy measurement
    neighbours = _neighbours(cluster, fastest)
    return [dataclasses.replace(m, alone_factor=factor) if m.name in neighbours else m for m in machines]


def _neighbours(cluster: Cluster, name: str) -> set[str]:
    """Return the devices of the same kind on the same host as one of them, and itself."""

    def place(device: Device) -> tuple[str | None, str]:
        return device.kind, "" if device.worker is None else split_address(cluster.workers[device.worker])[0]

    places = {other: place(device) for other, device in complete(cluster.devices).items()}
    return {other for other in places if places[other] == places[name]}


def _parts(build: Callable[[], mtf.Graph], proportions: Sequence[float]) -> Iterator[Layout]:
    """Yield layouts that divide a dimension in these proportions, those with most work first."""
    if len(proportions) == 1:
        return
    with tf.Graph().as_default():
        families = Families(live_operations(build()))
    work_of = {op: work.of_operation(op, ALONE, 0)[0] for op in families.operations}

    def find_sizes(name: str) -> tuple[int, ...] | None:
        if name in families.widths or min(families.extents[name]) < len(proportions):
            return None
        return split_among_positive(max(families.extents[name]), proportions)

    for family in sorted(
        families.families, key=lambda f: sum(work_of[op] for op in families.list_operations(f)), reverse=True
    ):
        if sizes := families.together(family, find_sizes):
            yield Layout([(AXIS, len(proportions))], dict.fromkeys(sizes, AXIS), (), sizes)


def _traced(
    run: Callable[[], tuple[trace.Event, ...]], seconds: float, *, warm_up: int = WARM_UP, least: int = LEAST_STEPS
) -> list[tuple[trace.Event, ...]]:
    """Return the events of steps, without those that warm up."""
    for _ in range(warm_up):
        run()
    steps: list[tuple[trace.Event, ...]] = []
    end = time.monotonic() + seconds
    while len(steps) < least or (len(steps) < MOST_STEPS and time.monotonic() < end):
        steps.append(run())
    return steps


def speeds(graph: mtf.Graph, machines: Machines) -> tuple[float, ...]:
    """Return the steps of a graph that each device alone runs in a second."""
    return tuple(1.0 / seconds for seconds in Model(graph, machines).unsplit_seconds())


def unmeasured(cluster: Cluster, rates: Mapping[str, float]) -> Machines:
    """Return devices of which only the rate of matrix products and the memory are known."""
    with tf.Graph().as_default(), tf.Session(cluster.target, config=cluster.session_config()) as session:
        limits = memory_limits(cluster, session)
    flops = {device: _REACHED * rates[device] for device in cluster.devices}
    machines = [Machine(d, rate, rate / _FLOPS_PER_BYTE, limits[d], _LONG_SECONDS) for d, rate in flops.items()]
    return Machines(tuple(machines), _UNKNOWN)

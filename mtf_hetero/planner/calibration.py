"""Machines as they are: their rates, measured on the program that is to be planned.

A step of it is run on each device in turn, while all others are busy with theirs, each with an equal part and nothing
added up or sent, and traced: how long each operation took, over what the rates of its device say of its arithmetic and
its memory, is the factor of its kind there. Devices that share a bus, or the halves of a core, are slower so than
alone: the whole step is traced on the fastest one while the others rest, too, which is taken to hold for its
neighbours. Between these traces the links are timed, and what a byte costs the processor at either end.
"""

import collections
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
from mtf_hetero.cluster import Cluster
from mtf_hetero.cluster.devices import Device, complete
from mtf_hetero.cluster.probe import split_address
from mtf_hetero.layout import Layout
from mtf_hetero.planner import work
from mtf_hetero.planner.machines import Machine, Machines
from mtf_hetero.planner.problem import AXIS, Problem
from mtf_hetero.profile.granule import measure_granule
from mtf_hetero.profile.hardware import memory_limits
from mtf_hetero.profile.link import measure_link, measure_processor
from mtf_hetero.profile.trial import Trial
from mtf_hetero.profile.work import live
from mtf_hetero.speeds import Link

WARM_UP = 1
LEAST_STEPS, MOST_STEPS = 2, 20
_TURNS = 3
_ALL_PAIRS = 3  # devices, up to which each pair's link is timed; of more, those of neighbours
_OPERATION_SECONDS = 5e-6  # of a kernel that does nothing, and what it takes to start it
_EMPTY_STEPS = 20
_DEFAULT_RATE = 1e10  # where no operation of a kind was seen
_IN_MEMORY = Link(0.0, 1e13)


def calibrate(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    *,
    seconds: float = 3.0,
    done: Callable[[str], None] = lambda what: None,
) -> Machines:
    """Measures the devices of a cluster on a program.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: the devices, each hardware of its own.
      seconds: for how long to trace steps, of which there are at least two.
      done: called with each part that is done.

    Raises:
      ValueError: the graph assigns no variable.
    """
    rated = _rated(build, cluster, seconds, done)
    fastest = max(rated, key=lambda device: rated[device][0])
    alone = Trial(build, Layout([(AXIS, 1)], ()), [fastest], cluster) if len(rated) > 1 else contextlib.nullcontext()
    with alone as trial:
        steps = _traced(trial.run_traced, seconds) if trial else []
        links = _links(cluster, done)
        machines = _machines(cluster, rated, done)
        if trial:
            steps += _traced(trial.run_traced, seconds)  # once more, some time later: machines are shared, and noisy
            factor = _alone_factor(trial, steps, next(m for m in machines if m.name == fastest))
            neighbours = _neighbours(cluster, fastest)
            machines = [dataclasses.replace(m, alone_factor=factor) if m.name in neighbours else m for m in machines]
            done("alone")
    slowest = max(links.values(), key=lambda link: link.seconds(2**20), default=_IN_MEMORY)
    return Machines(tuple(machines), slowest, links, _empty_step(cluster))


def _links(cluster: Cluster, done: Callable[[str], None]) -> dict[tuple[str, str], Link]:
    """{devices: the link between them}."""
    links, config = {}, cluster.session_config()
    for a, b in pairs(len(cluster.devices)):
        ends = cluster.devices[a], cluster.devices[b]
        links[ends] = measure_link(*ends, target=cluster.target, config=config, repeats=5)
        done("link")
    return links


def _machines(cluster: Cluster, rated: "Mapping[str, _Rated]", done: Callable[[str], None]) -> list[Machine]:
    """The devices, with what messages cost each of them."""
    config, devices = cluster.session_config(), cluster.devices
    with tf.Graph().as_default(), tf.Session(cluster.target, config=config) as session:
        limits = memory_limits(cluster, session)
    machines = []
    for number, device in enumerate(devices):
        others = [pair for pair in pairs(len(devices)) if number in pair]
        per_message = per_byte = 0.0
        if others:
            (other,) = {devices[end] for end in others[0]} - {device}
            per_message, per_byte = measure_processor(device, other, target=cluster.target, config=config)
            done("processor")
        flops, moved, factors = rated[device]
        machines.append(
            Machine(
                device,
                flops,
                moved,
                limits[device],
                operation_seconds=_OPERATION_SECONDS,
                seconds_per_byte=per_byte,
                seconds_per_message=per_message,
                factors=factors,
                granule=measure_granule(device, target=cluster.target, config=config),
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


_Rated = tuple[float, float, Mapping[str, float]]


def _rated(
    build: Callable[[], mtf.Graph], cluster: Cluster, seconds: float, done: Callable[[str], None]
) -> dict[str, _Rated]:
    """{device: (flops per second, bytes per second, factors)}."""
    devices = cluster.devices
    for layout in _equal_parts(build, len(devices)):
        try:
            with Trial(build, layout, devices, cluster, alone=True) as trial:
                trial.run()  # TensorFlow prepares the graph
                traced = _traced_beside_others(trial, seconds)
                rated = {device: _rates(trial, traced[pnum], pnum) for pnum, device in enumerate(devices)}
        except NotImplementedError:
            continue
        done("step")
        return rated
    rated = {}
    for device in devices:
        with Trial(build, Layout([(AXIS, 1)], ()), [device], cluster) as trial:
            rated[device] = _rates(trial, _traced(trial.run_traced, seconds), 0)
    done("step")
    return rated


def _traced_beside_others(trial: Trial, seconds: float) -> list[list[tuple[trace.Event, ...]]]:
    """The events of each device's parts of steps, while all others are busy with theirs.

    They take turns, for machines are shared, and noisy; one whose steps are long needs no more than the least of them.
    """
    steps: list[list[tuple[trace.Event, ...]]] = [[] for _ in trial.devices]
    spent = [0.0] * len(steps)
    for turn, (pnum, mine) in itertools.product(range(_TURNS), enumerate(steps)):
        if len(mine) >= LEAST_STEPS and spent[pnum] >= seconds:
            continue
        with trial.busy([other for other in range(len(steps)) if other != pnum]):
            begin = time.monotonic()
            run = functools.partial(trial.run_traced_on, pnum)
            mine += _traced(run, seconds / _TURNS, warm_up=0 if turn else WARM_UP, least=1)
            spent[pnum] += time.monotonic() - begin
    return steps


def _alone_factor(trial: Trial, steps: Sequence[Sequence[trace.Event]], machine: Machine) -> float:
    """What a whole step takes while the other devices rest, over what the rates say.

    They may share a bus; and an operation on all examples may take less than as many times as long as on a part.
    """
    measured = _typical_seconds([_own_events(trial, events, 0) for events in steps])
    kinds = ((work.of_operation(op, trial.layout, 0), work.kind_of(op)) for op in live(trial.graph))
    predicted = math.fsum(machine.seconds(*amount, kind) for amount, kind in kinds)
    return measured / predicted if measured and predicted else 1.0


def _neighbours(cluster: Cluster, name: str) -> set[str]:
    """The devices of the same kind on the same host as one of them, itself included: they are alone as it is."""

    def place(device: Device) -> tuple[str | None, str]:
        is_worker = device.job == "worker"
        return device.kind, split_address(cluster.workers[device.task or 0])[0] if is_worker else ""

    places = {other: place(device) for other, device in complete(cluster.devices).items()}
    return {other for other in places if places[other] == places[name]}


def _equal_parts(build: Callable[[], mtf.Graph], count: int) -> Iterator[Layout]:
    """Layouts that give each device as much of a dimension, of those with most work first."""
    if count == 1:
        return
    with tf.Graph().as_default():
        alike = Machines(tuple(Machine(str(number), 1.0, 1.0) for number in range(count)))
        problem = Problem(live(build()), alike)
        menus = problem.menus([range(count)])
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


def _rates(trial: Trial, steps: Sequence[Sequence[trace.Event]], pnum: int) -> _Rated:
    """What a device reaches: of contractions, of all else, and of each kind of operation over these."""
    seconds = operation_seconds(trial, steps, pnum)
    amounts = {op: work.of_operation(op, trial.layout, pnum) for op in live(trial.graph)}
    spent = {True: [0.0, 0.0], False: [0.0, 0.0]}  # {is it a contraction: [amount, seconds]}
    for op, (flops, moved) in amounts.items():
        of_class = spent[work.is_contraction(op)]
        of_class[0] += flops or moved
        of_class[1] += seconds.get(op, 0.0)
    flops_per_second, bytes_per_second = (
        amount / taken if amount and taken else _DEFAULT_RATE for amount, taken in spent.values()
    )
    plain = Machine("rates", flops_per_second, bytes_per_second, operation_seconds=0.0)
    of_kind: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for op, amount in amounts.items():
        if any(amount):
            totals = of_kind[work.kind_of(op)]
            totals[0] += max(seconds.get(op, 0.0) - _OPERATION_SECONDS, 0.0)
            totals[1] += plain.seconds(*amount)
    return flops_per_second, bytes_per_second, {kind: taken / rated for kind, (taken, rated) in of_kind.items()}


def operation_seconds(trial: Trial, steps: Sequence[Sequence[trace.Event]], pnum: int) -> dict[mtf.Operation, float]:
    """{operation: seconds of a step} of a processor that waits for no other, which add up to the time that it takes.

    What TensorFlow fuses with a convolution or a product counts as a part of that; what belongs to no operation, what
    passes between two and what went on side by side is spread.
    """
    seconds: dict[mtf.Operation, float] = collections.defaultdict(float)
    own = [_own_events(trial, events, pnum) for events in steps]
    for event in itertools.chain.from_iterable(own):
        op = trial.operation_of(event.name)
        if op is not None and event.work in ("convolution", "matrix product"):
            op = _contraction_before(op)
        if op is not None:
            seconds[op] += event.seconds
    total = math.fsum(seconds.values())
    scale = _typical_seconds(own) / total if total else 0.0
    return {op: taken * scale for op, taken in seconds.items()}


def _own_events(trial: Trial, events: Sequence[trace.Event], pnum: int) -> list[trace.Event]:
    """What a processor computes."""
    places = complete([*{event.device for event in events}, trial.devices[pnum]])
    mine = places[trial.devices[pnum]]
    return [e for e in events if places[e.device] == mine and not trace.TRANSFER.search(e.kind)]


def _typical_seconds(steps: Sequence[Sequence[trace.Event]]) -> float:
    """From the first event of a step to the end of the last, of a processor that waits for no other.

    What passes between operations counts: a CPU quota stops a processor in there too, and where operations are small,
    a fifth of a step is lost so.
    """
    return statistics.median(
        max(e.end_seconds for e in step) - step[0].begin_seconds if step else 0.0 for step in steps
    )


def _contraction_before(op: mtf.Operation) -> mtf.Operation:
    """The contraction that an operation follows; itself where there is none."""
    before = op
    while not work.is_contraction(before):
        if not before.inputs:
            return op
        before = before.inputs[0].operation
    return before


def speeds(graph: mtf.Graph, machines: Machines) -> tuple[float, ...]:
    """Steps of a graph a second that each device would do alone."""
    whole, operations = Layout([(AXIS, 1)], ()), live(graph)
    amounts = [(*work.of_operation(op, whole, 0), work.kind_of(op)) for op in operations]
    return tuple(1.0 / math.fsum(machine.seconds(*amount) for amount in amounts) for machine in machines.devices)


def unmeasured(device: str) -> Machines:
    """A device of which nothing is known."""
    return Machines((Machine(device, _DEFAULT_RATE, _DEFAULT_RATE),))

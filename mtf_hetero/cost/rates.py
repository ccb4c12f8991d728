"""Rates of a device, and seconds of each operation, from traced steps."""

import collections
import itertools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from mtf_hetero._compat import mtf
from mtf_hetero._support.alike import is_cpu
from mtf_hetero.cluster.devices import complete
from mtf_hetero.cost import trace, work
from mtf_hetero.cost.machines import Machine
from mtf_hetero.cost.trial import Trial
from mtf_hetero.graph import live_operations
from mtf_hetero.graph.identity import operation_key
from mtf_hetero.ops.traits import is_contraction

OPERATION_SECONDS = 5e-6  # to start a kernel that does nothing
DEFAULT_RATE = 1e10  # where no operation of a kind was seen
# Of the bytes of a product on a CPU, over the factor of its arithmetic: most of what others move is in a cache
_TYPICAL = 4.0
_PROCESSOR = re.compile(r"/parallel_(\d+)/")  # in the name of an operation of one processor
_Measured: TypeAlias = tuple[mtf.Operation, int, int, float]  # its floating-point operations, bytes and seconds


class Traced(NamedTuple):
    """Traced steps, and the processor whose part of them is meant."""

    trial: Trial
    steps: Sequence[Sequence[trace.Event]]
    pnum: int


class Rated(NamedTuple):
    """The rates of a device and the factors on them, as of a Machine."""

    flops_per_second: float
    bytes_per_second: float
    factors: Mapping[str, float]
    moved_factors: Mapping[str, float]


class _Kind:
    """Operations of one kind: their seconds by a device's rates, and measured ones."""

    def __init__(self) -> None:
        self.computing = self.moving = self.taken = 0.0

    def add(self, computing: float, moving: float, taken: float) -> None:
        self.computing, self.moving, self.taken = self.computing + computing, self.moving + moving, self.taken + taken


def find_rates(traced: Traced, small: Traced | None = None) -> Rated:
    """Return a device's rates of contractions and of other operations, and the factors on them.

    Args:
      traced: its part of steps.
      small: a much smaller part, which says how much of a product's time is for the bytes that it moves; None: a
        typical part is.
    """
    measured = _measure(traced)
    spent = {True: [0.0, 0.0], False: [0.0, 0.0]}  # {is it a contraction: [amount, seconds]}
    for op, flops, moved, seconds in measured:
        of_class = spent[is_contraction(op)]
        of_class[0] += flops if is_contraction(op) else moved
        of_class[1] += seconds
    flops_per_second, bytes_per_second = (
        amount / taken if amount and taken else DEFAULT_RATE for amount, taken in spent.values()
    )
    plain = Machine("rates", flops_per_second, bytes_per_second)
    kinds, smaller = _sum_up(measured, plain), {} if small is None else _sum_up(_measure(small), plain)
    typical = _TYPICAL if is_cpu(traced.trial.devices[traced.trial.layout.places[traced.pnum]]) else 1.0
    factors, moved_factors = {}, {}
    for key, kind in kinds.items():
        if kind.computing:
            factors[key], moved_factors[key] = _fit(kind, smaller.get(key), typical)
        else:
            factors[key] = kind.taken / kind.moving
    return Rated(flops_per_second, bytes_per_second, factors, moved_factors)


def _fit(large: _Kind, small: _Kind | None, typical: float) -> tuple[float, float]:
    """Return the factors on the times of arithmetic and of memory with which both parts of a product take as measured.

    Neither is negative: if need be, the larger part alone takes as measured. Without a small part, the typical ratio of
    both holds.
    """
    if small is None:
        factor = large.taken / (large.computing + typical * large.moving)
        return factor, typical * factor
    determinant = large.computing * small.moving - small.computing * large.moving
    factor = large.taken * small.moving - small.taken * large.moving
    moved_factor = large.computing * small.taken - small.computing * large.taken
    if determinant <= 0 or moved_factor <= 0:
        return large.taken / large.computing, 0.0
    if factor <= 0:
        return 0.0, large.taken / large.moving
    return factor / determinant, moved_factor / determinant


def _measure(traced: Traced) -> list[_Measured]:
    """Return the work and the seconds of each operation of a processor."""
    trial, _, pnum = traced
    seconds, operations = operation_seconds(*traced), live_operations(trial.graph)
    return [(op, *work.of_operation(op, trial.layout, pnum), seconds.get(op, 0.0)) for op in operations]


def _sum_up(measured: Iterable[_Measured], plain: Machine) -> dict[str, _Kind]:
    """Return {kind: its operations}."""
    kinds = collections.defaultdict[str, _Kind](_Kind)
    for op, flops, moved, seconds in measured:
        if flops or moved:
            taken = max(seconds - OPERATION_SECONDS, 0.0)
            kinds[operation_key(op)].add(flops / plain.flops_per_second, moved / plain.bytes_per_second, taken)
    return kinds


def operation_seconds(trial: Trial, steps: Sequence[Sequence[trace.Event]], pnum: int) -> dict[mtf.Operation, float]:
    """Return {operation: seconds of a step} of a processor that waits for no other.

    An operation that TensorFlow fuses with a convolution or a product counts as a part of that. The seconds are scaled
    so that those of all operations of the device add up to the whole step: gaps and parallel work are spread. Of other
    slots of the device, nothing else counts.
    """
    seconds: dict[mtf.Operation, float] = collections.defaultdict(float)
    own, total = [own_events(trial, events, pnum) for events in steps], 0.0
    for event in itertools.chain.from_iterable(own):
        op = trial.find_operation(event.name)
        if op is not None and event.work in ("convolution", "matrix product"):
            op = _contraction_before(op)
        if op is not None:
            total += event.seconds
            if not trial.layout.slots or _is_of_processor(event.name, pnum):
                seconds[op] += event.seconds
    scale = typical_seconds(own) / total if total else 0.0
    return {op: taken * scale for op, taken in seconds.items()}


def _is_of_processor(name: str, pnum: int) -> bool:
    match = _PROCESSOR.search(name)
    return match is None or int(match[1]) == pnum


def own_events(trial: Trial, events: Sequence[trace.Event], pnum: int) -> list[trace.Event]:
    """Return the events of a processor's work."""
    device = trial.devices[trial.layout.places[pnum]]
    places = complete([*{event.device for event in events}, device])
    mine = places[device]
    return [e for e in events if places[e.device] == mine and not trace.TRANSFER.search(e.kind)]


def typical_seconds(steps: Sequence[Sequence[trace.Event]]) -> float:
    """Return the median time from the first event of a step to the end of the last.

    Gaps between operations count: a CPU quota stops a processor there too.
    """
    return statistics.median(
        max(e.end_seconds for e in step) - step[0].begin_seconds if step else 0.0 for step in steps
    )


def _contraction_before(op: mtf.Operation) -> mtf.Operation:
    """Return the contraction that an operation follows, or the operation itself."""
    before = op
    while not is_contraction(before):
        if not before.inputs:
            return op
        before = before.inputs[0].operation
    return before

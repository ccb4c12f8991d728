"""Rates of a device, and seconds of each operation, from traced steps."""

import collections
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mtf_hetero._compat import mtf
from mtf_hetero.cluster.devices import complete
from mtf_hetero.cost import trace, work
from mtf_hetero.cost.machines import Machine
from mtf_hetero.cost.trial import Trial
from mtf_hetero.graph import live_operations
from mtf_hetero.graph.identity import operation_key
from mtf_hetero.ops.traits import is_contraction

OPERATION_SECONDS = 5e-6  # to start a kernel that does nothing
DEFAULT_RATE = 1e10  # where no operation of a kind was seen
Rated: TypeAlias = tuple[float, float, Mapping[str, float]]  # flops and bytes per second, and the factor of each kind


def find_rates(trial: Trial, steps: Sequence[Sequence[trace.Event]], pnum: int) -> Rated:
    """Return a device's rates of contractions and of other operations, and the factor of each kind."""
    seconds = operation_seconds(trial, steps, pnum)
    amounts = {op: work.of_operation(op, trial.layout, pnum) for op in live_operations(trial.graph)}
    spent = {True: [0.0, 0.0], False: [0.0, 0.0]}  # {is it a contraction: [amount, seconds]}
    for op, (flops, moved) in amounts.items():
        of_class = spent[is_contraction(op)]
        of_class[0] += flops if is_contraction(op) else moved
        of_class[1] += seconds.get(op, 0.0)
    flops_per_second, bytes_per_second = (
        amount / taken if amount and taken else DEFAULT_RATE for amount, taken in spent.values()
    )
    plain = Machine("rates", flops_per_second, bytes_per_second, operation_seconds=0.0)
    of_kind: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for op, amount in amounts.items():
        if any(amount):
            totals = of_kind[operation_key(op)]
            totals[0] += max(seconds.get(op, 0.0) - OPERATION_SECONDS, 0.0)
            totals[1] += plain.seconds(*amount)
    return flops_per_second, bytes_per_second, {kind: taken / rated for kind, (taken, rated) in of_kind.items()}


def operation_seconds(trial: Trial, steps: Sequence[Sequence[trace.Event]], pnum: int) -> dict[mtf.Operation, float]:
    """Return {operation: seconds of a step} of a processor that waits for no other.

    An operation that TensorFlow fuses with a convolution or a product counts as a part of that. The seconds are scaled
    to add up to the whole step: gaps and parallel work are spread.
    """
    seconds: dict[mtf.Operation, float] = collections.defaultdict(float)
    own = [own_events(trial, events, pnum) for events in steps]
    for event in itertools.chain.from_iterable(own):
        op = trial.find_operation(event.name)
        if op is not None and event.work in ("convolution", "matrix product"):
            op = _contraction_before(op)
        if op is not None:
            seconds[op] += event.seconds
    total = math.fsum(seconds.values())
    scale = typical_seconds(own) / total if total else 0.0
    return {op: taken * scale for op, taken in seconds.items()}


def own_events(trial: Trial, events: Sequence[trace.Event], pnum: int) -> list[trace.Event]:
    """Return the events of a processor's work."""
    places = complete([*{event.device for event in events}, trial.devices[pnum]])
    mine = places[trial.devices[pnum]]
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

"""Moments: a mean, and the mean of the squared differences from it, become one operation, which needs one exchange.

Batch norm, layer norm and group norm have this pattern in Keras and in TensorFlow. The mean is needed for the
differences, so that two exchanges would follow one after the other.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero.importer.program import Operation, Value
from mtf_hetero.importer.signature import axis_numbers
from mtf_hetero.importer.table import MOMENTS

_DTYPES = (tf.float32, tf.float64)

Makers = Mapping[Value, Operation]


def join(operations: Iterable[Operation]) -> list[Operation]:
    """Return operations in which each mean with a variance is one operation; the differences may be needed no more."""
    operations = list(operations)
    makers = {value: op for op in operations for value in op.outputs}
    variance_of: dict[Operation, Operation] = {}
    for op in operations:
        mean = _find_mean(op, makers)
        if mean is not None:
            variance_of.setdefault(mean, op)
    joined = set(variance_of.values())
    return [_moments(op, variance_of[op]) if op in variance_of else op for op in operations if op not in joined]


def find_unjoined(operations: Iterable[Operation]) -> list[Operation]:
    """Return the operations that average squared differences from a mean, and were not joined with it."""
    operations = list(operations)
    makers = {value: op for op in operations for value in op.outputs}
    return [op for op in operations if _averaged(op) and _has_mean(op, makers)]


def _has_mean(variance: Operation, makers: Makers) -> bool:
    """Return whether an operation averages squared differences of numbers from a mean of them."""
    for x, other in _differences(variance.inputs[0], makers):
        mean = makers.get(_before_regrouping(other, makers))
        if mean is not None and mean.type == "Mean" and mean.inputs[0] is x and x.shape != other.shape:
            return True
    return False


def _moments(mean: Operation, variance: Operation) -> Operation:
    outputs = [*mean.outputs, *variance.outputs]
    return Operation(MOMENTS, mean.inputs, outputs, mean.attributes, source=mean.source)


def _find_mean(variance: Operation, makers: Makers) -> Operation | None:
    """Return the mean from which an operation averages the squared differences; None if it does not."""
    axes = _averaged(variance)
    if not axes or variance.inputs[0].dtype not in _DTYPES:
        return None
    for x, other in _differences(variance.inputs[0], makers):
        mean = makers.get(_before_regrouping(other, makers))
        # x itself, averaged over the same axes, which are kept with the size 1: so each x meets its own mean
        is_single = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
        if mean is not None and mean.inputs[0] is x and _averaged(mean) == axes and list(other.shape) == is_single:
            return mean if math.prod(x.shape[axis] for axis in axes) > 1 else None
    return None


def _averaged(op: Operation) -> set[int]:
    """Return the axes over which an operation averages; none if it does something else."""
    if op.type != "Mean" or op.inputs[1].array is None:
        return set()
    return set(axis_numbers(op.inputs[1], len(op.inputs[0].shape)))


def _differences(squares: Value, makers: Makers) -> Sequence[tuple[Value, Value]]:
    """Return both readings of a squared difference, (x, mean) and (mean, x)."""
    op = makers.get(squares)
    if op is not None and op.type == "Square":
        op = makers.get(op.inputs[0])
        op = op if op is not None and op.type == "Sub" else None
    elif op is not None and op.type != "SquaredDifference":
        op = None
    if op is None:
        return []
    a, b = op.inputs
    return [(a, b), (b, a)]


def _before_regrouping(value: Value, makers: Makers) -> Value:
    while (op := makers.get(value)) is not None and op.type in facts.REGROUPING:
        value = op.inputs[0]
    return value

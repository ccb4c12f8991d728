"""Broadcasts as late as they can be: what is the same for all pixels is computed once, not once per pixel.

TensorFlow's gradient of a mean repeats a value over an image, then divides and scales each repetition. Here the value
is divided and scaled, and whoever reads it beside the image broadcasts it by itself.
"""

import math
from collections.abc import Iterable

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.importer import table
from mtf_hetero.importer.program import Operation, Value, literal, replacing, synthetic


def delay(operations: Iterable[Operation]) -> list[Operation]:
    """Return operations in which those on elements come before a broadcast of all that they read.

    Args:
      operations: each after those that it reads.

    Example:
      tf.nn.relu(tf.broadcast_to(bias, [32, 60])) becomes tf.broadcast_to(tf.nn.relu(bias), [32, 60]), which computes
      60 numbers instead of 1,920.
    """
    smaller: dict[Value, Value] = {}  # of a broadcast value, the one that is broadcast
    delayed: list[Operation] = []
    for op in operations:
        for each in _additions(op, smaller):
            delayed += _delayed(each, smaller)
    return delayed


def _additions(op: Operation, smaller: dict[Value, Value]) -> list[Operation]:
    """Return a sum of addends as additions of two, which broadcast by themselves; another operation as it is."""
    if op.type != "AddN" or len(op.inputs) < 2 or smaller.keys().isdisjoint(op.inputs):
        return [op]
    total, *addends, last = op.inputs
    additions = []
    for addend in addends:
        additions.append(synthetic("AddV2", [total, addend], [op.outputs[0].shape], op.outputs[0].name))
        (total,) = additions[-1].outputs
    return [*additions, replacing("AddV2", [total, last], op.outputs[0], op.source)]


def _delayed(op: Operation, smaller: dict[Value, Value]) -> list[Operation]:
    """Return an operation, or one on smaller values and a broadcast of its result."""
    if op.type in ("BroadcastTo", "Tile"):
        x, (y,) = op.inputs[0], op.outputs
        if op.type == "Tile" and any(a not in (1, b) for a, b in zip(x.shape, y.shape, strict=True)):
            return [op]
        smaller[y] = smaller.get(x, x)
        return [_broadcast(smaller[y], y, op)]
    if smaller.keys().isdisjoint(op.inputs) or not table.is_elementwise(op) or op.type == "BiasAdd":
        return [op]
    (result,) = op.outputs  # a bias would need the axis of channels, which a smaller value may not have
    inputs = [smaller.get(value, value) for value in op.inputs]
    shape = np.broadcast_shapes(*(value.shape for value in inputs))
    if math.prod(shape) == math.prod(result.shape):
        return [op]
    small = Value(shape, result.dtype, name=result.name)
    smaller[result] = small
    return [Operation(op.type, inputs, [small], op.attributes, source=op.source), _broadcast(small, result, op)]


def _broadcast(small: Value, result: Value, op: Operation) -> Operation:
    return replacing("BroadcastTo", [small, literal(result.shape)], result, op.source, Tidx=tf.int32)

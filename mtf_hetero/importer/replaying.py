"""Operations of a program made again: in a graph, on other tensors; or eagerly, where all that they read is known."""

from collections.abc import Sequence

import numpy as np

from mtf_hetero._compat import execute, tf
from mtf_hetero._support.ops import create
from mtf_hetero.importer.program import Operation


def replay(op: Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Make an operation again in the default graph, on other tensors."""
    if op.island is not None:
        made = dict(zip(op.island.parameters, inputs, strict=True))
        for each in op.island.operations:
            tensors = [tf.constant(x.array, x.dtype) if x.array is not None else made[x] for x in each.inputs]
            made |= zip(each.outputs, replay(each, tensors), strict=True)
        return [made[value] for value in op.island.results]
    return create(op.type, list(inputs), [v.dtype for v in op.outputs], op.type, op.attributes).outputs


def evaluate(op: Operation) -> list[np.ndarray]:
    """Compute an operation of which all inputs are known. Call it eagerly."""
    values = {name: op.attr(name) for name in op.attributes}
    values = {name: value.as_datatype_enum if isinstance(value, tf.DType) else value for name, value in values.items()}
    attributes = [part for pair in values.items() for part in pair]
    with tf.device("cpu:0"):
        tensors = [tf.constant(v.array, v.dtype) for v in op.inputs]
        made = execute(op.type, len(op.outputs), tensors, attributes)
        return [np.asarray(y.numpy(), y.dtype.as_numpy_dtype) for y in made]

"""Operations of a program made again: in a graph, on other tensors; or eagerly, where all that they read is known."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mtf_hetero._compat import execute, tf
from mtf_hetero._support.ops import create
from mtf_hetero.importer.program import Block, Meaning, Operation, Value


def replay(op: Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Make an operation again in the default graph, on other tensors."""
    if op.island is not None:
        made = _run(op.island, dict(zip(op.island.parameters, inputs, strict=True)))
        pairs = zip(made, op.outputs, strict=True)
        return [x if x.shape.is_fully_defined() else tf.ensure_shape(x, value.shape) for x, value in pairs]
    if op.type == "While":
        return _repeat(op, inputs)
    if op.blocks:
        return _choose(op, inputs)
    return create(op.type, list(inputs), [v.dtype for v in op.outputs], op.type, op.attributes).outputs


def replay_all(operations: Iterable[Operation], tensors: dict[Meaning, tf.Tensor]) -> None:
    """Make operations again, in their order; adds the tensors of their results to those of what they read."""
    for op in operations:
        tensors |= zip(op.outputs, replay(op, [_find(x, tensors) for x in op.inputs]), strict=True)


def _find(x: Meaning, tensors: Mapping[Meaning, tf.Tensor]) -> tf.Tensor:
    return tf.constant(x.array, x.dtype) if isinstance(x, Value) and x.array is not None else tensors[x]


def _run(block: Block, tensors: dict[Meaning, tf.Tensor]) -> list[tf.Tensor]:
    """Make the operations of a block again, given the tensors of what it reads; returns its results."""
    replay_all(block.operations, tensors)
    return [_find(x, tensors) for x in block.results]


def _repeat(op: Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    condition, body = op.blocks
    count = len(body.parameters)
    outside = dict(zip(op.inputs[count:], inputs[count:], strict=True))

    def run(block: Block, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return _run(block, outside | dict(zip(block.parameters, tensors, strict=True)))

    shapes = [tf.TensorShape(None if x.refused is not None else x.shape) for x in body.parameters]
    made = tf.while_loop(
        lambda *tensors: run(condition, tensors)[0],
        lambda *tensors: run(body, tensors),
        list(inputs[:count]),
        shape_invariants=shapes,
        back_prop=False,
        return_same_structure=True,
    )
    return list(made)


def _choose(op: Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    (index, *_), made = inputs, dict(zip(op.inputs, inputs, strict=True))
    branches = [lambda block=block: [tf.identity(x) for x in _run(block, dict(made))] for block in op.blocks]
    results = tf.cond(index, branches[1], branches[0]) if index.dtype == tf.bool else tf.switch_case(index, branches)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def evaluate(op: Operation) -> list[np.ndarray]:
    """Compute an operation of which all inputs are known. Call it eagerly."""
    values = {name: op.attr(name) for name in op.attributes}
    values = {name: value.as_datatype_enum if isinstance(value, tf.DType) else value for name, value in values.items()}
    attributes = [part for pair in values.items() for part in pair]
    with tf.device("cpu:0"):
        tensors = [tf.constant(v.array, v.dtype) for v in op.inputs]
        made = execute(op.type, len(op.outputs), tensors, attributes)
        return [np.asarray(y.numpy(), y.dtype.as_numpy_dtype) for y in made]

"""Different numbers of a vector, and sums per number: as many rows as the vector has numbers, of which some exist.

Optimizers add up the gradient of each row of an embedding so, before they update the rows: tf.unique, a sum of
segments, and writes of these rows. How many there are depends on the data. On the devices there are rows for all
numbers; a write leaves out those that do not exist.
"""

import dataclasses
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero.importer import variables
from mtf_hetero.importer.nodes import OPEN_SHAPE, RefusedError
from mtf_hetero.importer.program import Meaning, Rows, Value, literal
from mtf_hetero.importer.reader import Reader

_SUMS = ("ScatterAdd", "ScatterSub")
_COUNTING = {"rows": ("Shape", "Size"), "count": ("StridedSlice",)}  # operations on rows, or on their count


def are_made(node: tf.Operation, inputs: Sequence[Meaning]) -> bool:
    """Return whether devices can have rows, or their count, in place of the results of an operation."""
    x = inputs[0] if inputs else None
    if not isinstance(x, Value):
        return False
    if node.type == "Unique":
        return x.array is None and x.refused is None and x.shape[0] > 0
    return x.rows is not None and len(x.rows.value.shape) == 1 and node.type in _COUNTING.get(x.rows.kind, ())


def note(reader: Reader, node: tf.Operation, inputs: Sequence[Meaning], outputs: Sequence[Value]) -> Sequence[Value]:
    """Note the rows that devices read in place of the results of an operation; returns the results."""
    if node.type != "Unique":
        outputs[0].rows = dataclasses.replace(inputs[0].rows, kind="count")
        return outputs
    numbers, places, exists = reader.expand(node, _different, inputs)
    places = places if outputs[1].refused else outputs[1]
    outputs[0].rows, places.rows = Rows(numbers, exists), Rows(places, exists, "numbers")
    return outputs[0], places


def _find_rows(x: Meaning) -> Rows | None:
    return x.rows if isinstance(x, Value) else None


def _different(attr, x):
    """Return the different numbers in their order, the place of each number among them, and which of them exist."""
    size = x.shape[0]
    order = tf.argsort(x, stable=True)
    ascending = tf.gather(x, order)
    group = tf.cumsum(tf.concat([[0], tf.cast(ascending[1:] != ascending[:-1], tf.int32)], 0))
    first = tf.math.unsorted_segment_min(order, group, size)  # beyond all numbers for a group that does not exist
    by_first = tf.argsort(first, stable=True)
    rank = tf.scatter_nd(by_first[:, None], tf.range(size), [size])
    places = tf.scatter_nd(order[:, None], tf.gather(rank, group), [size])
    exists = tf.range(size) <= group[-1]
    numbers = tf.gather(x, tf.compat.v2.where(exists, tf.gather(first, by_first), 0))
    return numbers, tf.cast(places, attr("out_idx", tf.int32)), exists


def follow(reader: Reader, node: tf.Operation, inputs: Sequence[Meaning]) -> list[Value] | None:
    """Follow an operation on rows on the devices; returns its results, or None: it needs to know how many exist."""
    found = [_find_rows(x) for x in inputs]
    kinds = [None if each is None else each.kind for each in found]
    exists = {each.exists for each in found if each is not None}
    if len(exists) != 1:
        return None
    (exists,) = exists
    read = [x if each is None else each.value for x, each in zip(inputs, found, strict=True)]
    if any(isinstance(x, Value) and x.refused is not None for x in read):
        return None
    if node.type in facts.SCATTERS and kinds == [None, "rows", "rows"]:
        fill = _or_zeros if node.type.endswith(_SUMS) else _or_the_first
        (read[2],) = reader.expand(node, fill, [exists, read[2]])
        return _compute(reader, node, read)
    if node.type.startswith("UnsortedSegment") and kinds == [None, "numbers", "count"]:
        return _of_rows(reader, node, [*read[:2], literal(exists.shape[0])], exists)
    if node.type == "UnsortedSegmentSum" and kinds == ["rows", "rows", None]:  # the dense tensor
        (read[0],) = reader.expand(node, _or_zeros, [exists, read[0]])
        return _compute(reader, node, read)
    axis = {"GatherV2": 2, "ExpandDims": 1}.get(node.type)
    at = None if axis is None or (axis == 2 and node.get_attr("batch_dims")) else read[axis].array
    if node.type == "GatherV2" and at == 0 and kinds == ["rows", "numbers", None]:
        return _compute(reader, node, read)
    is_gather = node.type == "ResourceGather" or (node.type == "GatherV2" and at == 0)
    if is_gather and kinds[:2] == [None, "rows"]:
        return _of_rows(reader, node, read, exists)
    if node.type == "ExpandDims" and kinds == ["rows", None] and at is not None and at % (len(read[0].shape) + 1):
        return _of_rows(reader, node, read, exists)
    if node.type in facts.ELEMENTWISE and _are_alike(read, kinds):
        return _of_rows(reader, node, read, exists)
    return None


def _are_alike(operands: Sequence[Value], kinds: Sequence[str | None]) -> bool:
    """Return whether operands of an operation on elements are rows of one rank, or the same for all rows."""
    ranks = {len(x.shape) for x, kind in zip(operands, kinds, strict=True) if kind is not None}
    others = [x.shape for x, kind in zip(operands, kinds, strict=True) if kind is None]
    rank = max(ranks)
    is_shared = all(len(shape) < rank or (len(shape) == rank and shape[0] == 1) for shape in others)
    return len(ranks) == 1 and is_shared and set(kinds) <= {"rows", None}


def _compute(reader: Reader, node: tf.Operation, inputs: Sequence[Meaning]) -> list[Value]:
    if any(isinstance(x, int) for x in inputs):
        return list(variables.follow(reader, node, inputs))
    return reader.add(reader.shaped(node, reader.operation(node, list(inputs))))


def _of_rows(reader: Reader, node: tf.Operation, inputs: Sequence[Meaning], exists: Value) -> list[Value]:
    """Return the rows that an operation gives, which no other operation may read."""
    made = _compute(reader, node, inputs)
    return [Value((), y.dtype, refused=RefusedError(node, OPEN_SHAPE), rows=Rows(y, exists)) for y in made]


def _or_zeros(attr, exists, x):
    return (tf.compat.v2.where(_column(exists, x), x, tf.zeros_like(x)),)


def _or_the_first(attr, exists, x):
    return (tf.compat.v2.where(_column(exists, x), x, x[:1]),)  # the numbers that do not exist are the first one


def _column(exists, x):
    return tf.reshape(exists, [-1] + [1] * (x.shape.rank - 1))

"""Initial values slice by slice: no device makes the whole of a variable of which it holds a part.

Mesh-TensorFlow gives a variable one initial value. Mostly that is a small graph: random numbers, or one number
repeated, and a few products and sums with scalars. It is built again for every slice, on the slice's own device, and
gives the very numbers that the whole has there. TensorFlow's random operations allow it: their generator counts, so
that their n-th numbers follow from the seeds and from n, and can be drawn without those before them.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox).
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero._support.ops import concat, constant, create, cut, reshape, split
from mtf_hetero.cluster.devices import Device

_BLOCK = 2**20  # numbers that a device may draw at a time though its slice has fewer: fewer operations
# The same, of a process that has as many in all its slices: VGG-16 for 128 processors initialises in 6 s, and took 113
_SHARED_BLOCK = 2**22
_MOST_BLOCKS = 32  # of a tensor: each one adds operations to the graph
PHILOX = 1
_RESERVED = 64  # counts that a truncated normal number may take, since what lies outside is drawn again
STATELESS = {
    "RandomUniform": tf.raw_ops.StatelessRandomUniformV2,
    "RandomStandardNormal": tf.raw_ops.StatelessRandomNormalV2,
    "TruncatedNormal": tf.raw_ops.StatelessTruncatedNormalV2,
}


_Box = tuple[tuple[int, ...], tuple[int, ...]]  # begin and size


class InitialValue:
    """The initial value of one variable, in slices.

    An operation with seeds gives what it gives on its first run in a session, at every initialisation. Of one without,
    all slices are drawn with one key, which is new at every initialisation. The slices of one process are cut out of
    the same numbers, which it draws once.

    Args:
      whole: the tf.Tensor that mtf made. Where slices are built without it, it can no longer be fed.
      dtype: what the slices are cast to.
      slices: device, begin and size of each slice that will be asked for.
    """

    def __init__(
        self, tensor: tf.Tensor, dtype: tf.DType, slices: Iterable[tuple[str, Sequence[int], Sequence[int]]]
    ) -> None:
        self._tensor = tensor
        self._dtype = dtype
        self._keys: dict[str, tf.Tensor] = {}
        self._draws: dict[tuple[str, str], _Draw] = {}
        self._scalars: dict[str, tuple[np.ndarray, tf.DType]] = {}
        self._boxes = collections.defaultdict[str, list[_Box]](list)
        self._blocks: dict[str, list[Mapping[_Box, tf.Tensor]]] = {}
        for device, begin, size in slices:
            self._boxes[_process_name(device)].append((tuple(begin), tuple(size)))

    def part(self, begin: Sequence[int], size: Sequence[int], device: str) -> tf.Tensor:
        """Return the box [begin, begin + size), made on a device.

        What is all of the tensor, or of no known form (an orthogonal matrix, a fed tensor, random numbers that have no
        seed and are used elsewhere too), is cut out of the tensor where that is, so that only the slice is sent.
        """
        tensor = self._tensor
        if (
            tf.executing_eagerly()
            or tensor.shape.as_list() == list(size)
            or not _is_known(tensor)
            or _is_shared(tensor)
        ):
            with tf.device(tensor.device):
                return tf.cast(cut(tensor, begin, size), self._dtype)
        for x in _bypassed(tensor):
            x.graph.prevent_feeding(x)
        with tf.device(_host_cpu(device)):
            process = _process_name(device)
            if process not in self._blocks:
                self._blocks[process] = list(self._draw_blocks(process))
            if self._blocks[process]:
                box = tuple(begin), tuple(size)
                return concat([pieces[box] for pieces in self._blocks[process]], 0)
            return self._build(begin, size, process)

    def _build(self, begin: Sequence[int], size: Sequence[int], process: str) -> tf.Tensor:
        part = _Part(begin, size, lambda op: self._find_draw(op, process), self._constant_value)
        return tf.cast(part.build(self._tensor), self._dtype)

    def _draw_blocks(self, process: str) -> Iterator[Mapping["_Box", tf.Tensor]]:
        """Yield all slices of a process, by some rows of random numbers: {a slice's box: its part of these rows}.

        One operation cuts all slices. There are no blocks where the slices do not follow upon each other along one
        dimension, nor of many rows that each slice can make without the others.
        """
        boxes = sorted(self._boxes[process])
        axis = _consecutive_axis(boxes)
        if axis is None:
            return
        sizes = [size[axis] for _, size in boxes]
        begin, region = boxes[0][0], list(boxes[0][1])
        region[axis] = sum(sizes)
        draws = [self._find_draw(x.op, process) for x in _bypassed(self._tensor) if x.op.type in STATELESS]
        rows = self._block(process) // math.prod(self._tensor.shape.as_list()[1:])
        if not rows or (rows < region[0] and (axis == 0 or not draws)):
            return
        for first in range(0, region[0], rows):
            block = [min(rows, region[0] - first), *region[1:]]
            pieces = split(self._build([begin[0] + first, *begin[1:]], block, process), sizes, axis)
            for draw in draws:
                draw.last = [pieces[0].op]
            yield dict(zip(boxes, pieces, strict=True))

    def _constant_value(self, op: tf.Operation) -> tuple[np.ndarray, tf.DType]:
        """Value and type of a constant scalar, which every slice asks for."""
        if op.name not in self._scalars:
            self._scalars[op.name] = tf.make_ndarray(op.get_attr("value")), op.outputs[0].dtype
        return self._scalars[op.name]

    def _find_draw(self, op: tf.Operation, process: str) -> "_Draw":
        """Return the draws of a random operation in a process."""
        if (op.name, process) not in self._draws:
            self._draws[op.name, process] = _Draw(op, self._find_key(op), self._block(process))
        return self._draws[op.name, process]

    def _block(self, process: str) -> int:
        """Count the numbers that a process draws at a time: as many as its largest slice has, or more."""
        elements = self._tensor.shape.num_elements()
        sizes = [math.prod(size) for _, size in self._boxes[process]]
        return max(*sizes, elements // _MOST_BLOCKS, min(_BLOCK, elements // 2), min(sum(sizes), _SHARED_BLOCK))

    def _find_key(self, op: tf.Operation) -> tf.Tensor:
        """Return the generator's key, for all slices: the first seed, or any number where the operation has no seeds.

        Either is drawn, a seed from itself alone: of a constant TensorFlow would make the numbers in the chief already,
        when it optimises the graph, and keep them.
        """
        if op.name not in self._keys:
            seed = op.get_attr("seed")
            low, high = (seed, seed + 1) if _has_seed(op) else (tf.int64.min, tf.int64.max)
            limits = {"minval": constant(low, tf.int64), "maxval": constant(high, tf.int64)}
            self._keys[op.name] = tf.bitcast(tf.raw_ops.RandomUniformInt(shape=[1], **limits), tf.uint64)
        return self._keys[op.name]


def _consecutive_axis(boxes: Sequence[_Box]) -> int | None:
    """Return the dimension along which boxes follow upon each other without a gap, and in which alone they differ.

    Example:
      >>> _consecutive_axis([((0, 0), (7, 4)), ((7, 0), (3, 4))])
      0
      >>> _consecutive_axis([((0, 0), (5, 4)), ((7, 0), (3, 4))])  # None: rows 5 and 6 lie between them
    """
    begins, sizes = (np.array(column) for column in zip(*boxes, strict=True))
    differ = np.flatnonzero((begins != begins[0]).any(0) | (sizes != sizes[0]).any(0))
    if len(differ) != 1:
        return None
    (axis,) = differ
    ends = begins[:, axis] + sizes[:, axis]
    return int(axis) if (begins[1:, axis] == ends[:-1]).all() else None


def _is_known(x: tf.Tensor) -> bool:
    """Return whether a slice of a tensor can be built without the tensor."""
    kind = x.op.type
    if x.shape.rank == 0:
        return True
    if not x.shape.is_fully_defined() or x.op.control_inputs:  # what it waits for, a check for instance, would be lost
        return False
    if kind == "Fill" or kind in STATELESS:
        shape = x.op.inputs[0].op
        return shape.type == "Const" and not shape.control_inputs
    if kind in facts.EXACT:
        return all(y.shape.rank == 0 or (y.shape == x.shape and _is_known(y)) for y in x.op.inputs)
    return kind == "Const"


def _bypassed(x: tf.Tensor) -> Iterator[tf.Tensor]:
    """Return the operations that nothing needs if slices are built without a known tensor."""
    yield x
    for y in x.op.inputs if x.op.type in facts.EXACT else ():
        if y.shape.rank != 0:
            yield from _bypassed(y)


def _is_shared(tensor: tf.Tensor) -> bool:
    """Return whether others see the random numbers of a tensor that is known, and no seed makes theirs the same."""
    tensors = list(_bypassed(tensor))
    if not any(x.op.type in STATELESS and not _has_seed(x.op) for x in tensors):
        return False
    replaced = {x.op for x in tensors}
    others = [op for x in tensors for op in set(x.consumers()) - replaced]
    return len(others) > 1  # the one is the assignment to the variable


def _has_seed(op: tf.Operation) -> bool:
    return bool(op.get_attr("seed") or op.get_attr("seed2"))


def _host_cpu(device: str) -> str:
    """Return the CPU beside a device: the random numbers of GPUs differ from a CPU's in their last bits."""
    parsed = Device.parse(device)
    return device if parsed.is_cpu else parsed.host.name


def _process_name(device: str) -> str:
    """Return the TensorFlow process of a device, as its host's name says it."""
    return Device.parse(device).host.name


def _unsigned(values: Sequence[int]) -> tf.Tensor:
    return constant([value % 2**64 for value in values], tf.uint64)


class _Part:
    """Builds one slice of a tensor on the current device.

    Args:
      begin: of the slice.
      size: of the slice.
      draw_of: from a random operation to what draws its numbers.
      value_of: from a constant scalar to its value and type.
    """

    def __init__(
        self,
        begin: Sequence[int],
        size: Sequence[int],
        draw_of: Callable[[tf.Operation], "_Draw"],
        value_of: Callable[[tf.Operation], tuple[np.ndarray, tf.DType]],
    ) -> None:
        self._begin = list(begin)
        self._size = list(size)
        self._find_draw, self._constant_value = draw_of, value_of
        self._built: dict[str, tf.Tensor] = {}

    def build(self, x: tf.Tensor) -> tf.Tensor:
        """Return the slice of a tensor that is known; of a scalar all of it."""
        if x.name not in self._built:
            self._built[x.name] = self._build(x)
        return self._built[x.name]

    def _build(self, x: tf.Tensor) -> tf.Tensor:
        op = x.op
        if x.shape.rank == 0:
            return x if op.type != "Const" or op.control_inputs else constant(*self._constant_value(op))
        if op.type == "Const":
            return self._constant(op.get_attr("value"))
        if op.type in facts.EXACT:
            attributes = {attribute.name: op.node_def.attr[attribute.name] for attribute in op.op_def.attr}
            inputs = [self.build(y) for y in op.inputs]
            return create(op.type, inputs, [x.dtype], op.type, attributes).outputs[0]
        if op.type == "Fill":
            return tf.fill(constant(self._size), self.build(op.inputs[1]))
        return self._find_draw(op).box(0, x.shape.as_list(), self._begin, self._size)

    def _constant(self, proto: Any) -> tf.Tensor:
        numbers = [field for descriptor, field in proto.ListFields() if descriptor.name.endswith("_val")]
        if len(numbers) == 1 and len(numbers[0]) == 1:  # TensorFlow's short form of one number repeated
            proto.tensor_shape.Clear()
            return tf.fill(constant(self._size), constant(tf.make_ndarray(proto), tf.as_dtype(proto.dtype)))
        box = tuple(slice(b, b + s) for b, s in zip(self._begin, self._size, strict=True))
        return tf.constant(tf.make_ndarray(proto)[box])


@dataclasses.dataclass
class _Draw:
    """Draws what one random operation gives, box by box, each once the one before is done. Nothing is drawn twice.

    Args:
      key: uint64 [1].
      block: how many numbers to draw at a time at most.
    """

    op: tf.Operation
    key: tf.Tensor
    block: int
    last: list[tf.Operation] = dataclasses.field(default_factory=list)
    blocks: dict[tuple[int, int], tf.Tensor] = dataclasses.field(default_factory=dict)

    def box(self, offset: int, shape: Sequence[int], begin: Sequence[int], size: Sequence[int]) -> tf.Tensor:
        """Return the box [begin, begin + size) of a tensor that begins with number `offset` of the whole."""
        row = math.prod(shape[1:])
        offset += begin[0] * row
        if list(shape[1:]) == list(size[1:]):
            return self._rows(offset, size)
        if row > self.block:
            return tf.stack([self.box(offset + i * row, shape[1:], begin[1:], size[1:]) for i in range(size[0])])
        pieces = []
        for first in range(0, size[0], self.block // row):
            count = min(self.block // row, size[0] - first)
            rows = self._rows(offset + first * row, [count, *shape[1:]])
            piece = cut(rows, [0, *begin[1:]], [count, *size[1:]])
            self.last = [piece.op]
            pieces.append(piece)
        return concat(pieces, 0)

    def _rows(self, offset: int, shape: Sequence[int]) -> tf.Tensor:
        """Numbers `offset` and following of the whole, in this shape."""
        place = offset, math.prod(shape)
        if place not in self.blocks:
            self.blocks[place] = self._draw(offset, shape)
        return reshape(self.blocks[place], shape)

    def _draw(self, offset: int, shape: Sequence[int]) -> tf.Tensor:
        """Draws them: the generator makes a few at a time."""
        dtype, kind = self.op.outputs[0].dtype, self.op.type
        group = 2 if dtype == tf.float64 else 4
        first, excess = divmod(offset, group)
        counter = [first * (_RESERVED * group if kind == "TruncatedNormal" else 1), self.op.get_attr("seed2")]
        drawn_shape = [excess + math.prod(shape)] if excess else shape
        with tf.control_dependencies(self.last):
            rows = STATELESS[kind](
                shape=constant(drawn_shape),
                key=self.key,
                counter=_unsigned(counter),
                alg=constant(PHILOX),
                dtype=dtype,
            )
        if excess:
            rows = reshape(cut(rows, [excess], [math.prod(shape)]), shape)
        self.last = [rows.op]
        return rows

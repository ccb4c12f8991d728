"""A sketch of a lowered graph: of each tensor where it is, its shape and type, and which others it is made of.

What a step sends follows from no more than that. A sketch holds a `Value` for what the lowering would make on one
processor, coarser than TensorFlow's operations: what is made of the same values on the same processor may be one.
"""

import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Self

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layout import Layout
from mtf_hetero.planner.sample import Sample

CHIEF = -1  # the training process, where inputs come from and results go


class Value:
    """A tensor on a processor.

    Args:
      processor: its number, or CHIEF.
      shape: its extents.
      dtype: its type.
      reads: the values that it is made of.
      waits: values that must be there first, which it does not read.
      operation: name of the mtf operation that causes it.
      count: how many like it, on as many processors for which this one stands, its reader reads; see planner.sample.
    """

    __slots__ = ("count", "dtype", "operation", "processor", "reads", "shape", "waits")

    def __init__(
        self,
        processor: int,
        shape: tuple[int, ...],
        dtype: tf.DType,
        reads: Sequence["Value"],
        waits: Sequence["Value"],
        operation: str,
        count: int = 1,
    ) -> None:
        self.processor, self.shape, self.dtype = processor, shape, dtype
        self.reads, self.waits, self.operation = reads, waits, operation
        self.count = count

    @property
    def size_bytes(self) -> int:
        """Its size, or that of one of those like it."""
        return math.prod(self.shape) * self.dtype.size


Values = list[Value]  # one per processor


class Sum:
    """A sum over mesh axes that is made when it is first needed, as an mtf.LazyAllreduceSum.

    Args:
      partial: one addend per processor.
      axes: indices of mesh axes.
      operation: name of the mtf operation that it is a result of.
      reduce: makes the sum of addends over mesh axes.
      absent: the processors whose addend is zero, as of an mtf_hetero.mesh_impl.LaidOutTensor.
    """

    def __init__(
        self,
        partial: Values,
        axes: Sequence[int],
        operation: str,
        reduce: Callable[[Values, Sequence[int], str, Collection[int]], Values],
        absent: Collection[int] = (),
    ) -> None:
        self.partial, self.axes, self.operation, self.reduce = partial, list(axes), operation, reduce
        self.absent = frozenset(absent)
        self.made: Values | None = None

    def make(self) -> Values:
        """The sum, on every processor."""
        if self.made is None:
            self.made = self.reduce(self.partial, self.axes, self.operation, self.absent)
        return self.made


class Sketch:
    """What a lowering would make, and so far has.

    Args:
      layout: the Layout.
      memories: of each processor what names its memory; None: each has one of its own.
      wire_dtype: as in mtf_hetero.UnevenMeshImpl.
      lower: sketches an operation that was left out, for whoever asks for its result after all; False if it was not.

    As a context manager it lets go of its tensors at the end: sums know the sketch that makes them, and would keep it.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        memories: Sequence[Hashable] | None = None,
        wire_dtype: tf.DType | None = None,
        lower: Callable[[mtf.Operation, "Sketch"], bool] = lambda op, sketch: False,
    ) -> None:
        self.layout = layout
        self.processors = range(layout.size)
        self.memories = list(self.processors) if memories is None else list(memories)
        if len(self.memories) != layout.size:
            raise ValueError(
                f"memories are {self.memories}: {len(self.memories)} names for the {layout.size} processors of the "
                f"mesh {layout.mesh_text}; give one per processor"
            )
        self.wire_dtype = None if wire_dtype is None else tf.as_dtype(wire_dtype)
        self.values: list[Value] = []  # in the order in which they are made
        self.tensors: dict[mtf.Tensor, Values | Sum] = {}
        self.operations: dict[mtf.Operation, Values] = {}  # of an assignment, what waits for it on each processor
        self.sent: dict[Any, Value] = {}  # pieces of slices that went to other processors
        self.operation = ""  # name of the one that is sketched
        self._lower = lower
        self._hides_empty = bool(layout.emptied)
        is_sample = isinstance(layout, Sample)
        self.counts = layout.counts if is_sample else (1,) * layout.size  # for how many each processor stands
        self._mesh_shape = mtf.Shape(layout.shown_shape if is_sample else layout.mesh_shape)
        self._groups: dict[tuple[int, ...], list[list[int]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tensors.clear()

    def value(
        self,
        processor: int,
        shape: Iterable[int],
        dtype: tf.DType,
        reads: Iterable[Value] = (),
        waits: Sequence[Value] = (),
        count: int = 1,
    ) -> Value:
        """A new value."""
        made = Value(processor, tuple(shape), dtype, tuple(reads), waits, self.operation, count)
        self.values.append(made)
        return made

    def times(self, x: Value, count: int) -> Value:
        """A value, and those like it on so many processors in all."""
        return x if count == x.count else self.value(x.processor, x.shape, x.dtype, [x], count=count)

    def of_all(self, x: Value) -> Value:
        """A value, and those like it on all processors for which its processor stands."""
        return self.times(x, self.counts[x.processor])

    def laid_out(self, tensor: mtf.Tensor) -> Values | Sum:
        """A tensor's slices, or the sum that they are."""
        if tensor not in self.tensors and not self._lower(tensor.operation, self):
            self.tensors[tensor] = self.local(tensor)  # from elsewhere; each processor has its own
        return self.tensors[tensor]

    def slices(self, tensor: mtf.Tensor) -> Values:
        """A tensor's slices. A sum is made."""
        return made(self.laid_out(tensor))

    def local(self, tensor: mtf.Tensor, *inputs: Values) -> Values:
        """What each processor makes of its own slices: something of the shape and type of its slice of a tensor."""
        return self.local_of(tensor.shape, tensor.dtype, *inputs)

    def local_of(self, shape: mtf.Shape, dtype: tf.DType, *inputs: Values) -> Values:
        """As `local`, for a shape and a type."""
        return [
            self.value(pnum, size, dtype, [x[pnum] for x in inputs])
            for pnum, size in enumerate(self.layout.slice_shapes(shape))
        ]

    def set(self, tensor: mtf.Tensor, laid_out: Values | Sum) -> None:
        """Takes the slices of a tensor; of each that is empty there is a copy, as `Lowering` hides them."""
        self.tensors[tensor] = laid_out
        if self._hides_empty:
            slices = laid_out.partial if isinstance(laid_out, Sum) else laid_out
            for pnum, x in enumerate(slices):
                if 0 in x.shape:
                    slices[pnum] = self.value(pnum, x.shape, x.dtype, [x])

    def groups(self, axes: Sequence[int]) -> list[list[int]]:
        """The processors that differ in these mesh axes alone."""
        key = tuple(axes)
        if key not in self._groups:
            self._groups[key] = mtf.processor_groups(self._mesh_shape, key)
        return self._groups[key]

    def share_memory(self, processors: Iterable[int]) -> bool:
        """Whether nothing has to be sent between processors."""
        return len({self.memories[pnum] for pnum in processors}) == 1

    def tensor_layout(self, shape: mtf.Shape) -> mtf.TensorLayout:
        """As of an mtf.MeshImpl, for mtf's own functions."""
        self.layout.check(shape)
        return mtf.TensorLayout([self.layout.axis_of(dim) for dim in shape.dims])

    def needed(self, roots: Iterable[Value]) -> list[Value]:
        """The roots and all that they wait for, in the order in which they were made."""
        left = list(roots)
        seen = set(left)
        while left:
            x = left.pop()
            for before in (*x.reads, *x.waits):
                if before not in seen:
                    seen.add(before)
                    left.append(before)
        return [x for x in self.values if x in seen]


def made(laid_out: Values | Sum) -> Values:
    """Slices; a sum is made."""
    return laid_out.make() if isinstance(laid_out, Sum) else laid_out


@functools.cache
def is_rounded(dtype: tf.DType, wire_dtype: tf.DType | None) -> bool:
    """Whether numbers of a type are rounded to another where they are sent: where that makes them smaller."""
    return wire_dtype is not None and dtype.is_floating and dtype.size > wire_dtype.size

"""Values of a sketch: tensors on processors, and sums of them that are not made yet."""

import math
from collections.abc import Callable, Collection, Sequence

from mtf_hetero._compat import tf

CHIEF = -1  # the training process, where inputs come from and results go


class Value:
    """A tensor on a processor.

    Args:
      processor: its number, or CHIEF.
      shape: its extents.
      dtype: its type.
      reads: the values that it is made of.
      waits: values that must exist first, which it does not read.
      operation: name of the mtf operation that causes it.
      count: the number of values like it that its reader reads, in a `cost.sample.Sample`.
      slot: that of the processor's slots for which it is made; None: the processor has no slots.
    """

    __slots__ = ("count", "dtype", "operation", "processor", "reads", "shape", "slot", "waits")

    def __init__(
        self,
        processor: int,
        shape: tuple[int, ...],
        dtype: tf.DType,
        reads: Sequence["Value"],
        waits: Sequence["Value"],
        operation: str,
        count: int = 1,
        slot: int | None = None,
    ) -> None:
        self.slot = processor if slot is None else slot
        self.processor, self.shape, self.dtype = processor, shape, dtype
        self.reads, self.waits, self.operation = reads, waits, operation
        self.count = count

    @property
    def size_bytes(self) -> int:
        """The size of one such value."""
        return math.prod(self.shape) * self.dtype.size


Values = list[Value]  # one per processor


class Sum:
    """A sum over mesh axes that is made when it is first needed, as an mtf_hetero.mesh.mesh_impl.LazySum.

    Args:
      partial: one addend per processor.
      axes: indices of mesh axes.
      absent: the processors whose addend is zero.
      operation: name of the mtf operation that it is a result of.
      reduce: makes the sum.
    """

    def __init__(
        self,
        partial: Values,
        axes: Sequence[int],
        absent: Collection[int],
        operation: str,
        reduce: Callable[["Sum"], Values],
    ) -> None:
        self.partial, self.axes, self.absent = partial, list(axes), frozenset(absent)
        self.operation, self._reduce = operation, reduce
        self._made: Values | None = None

    @property
    def is_made(self) -> bool:
        """Return whether an operation has needed it."""
        return self._made is not None

    def make(self) -> Values:
        """Return the sum on every processor."""
        if self._made is None:
            self._made = self._reduce(self)
        return self._made

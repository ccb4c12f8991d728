"""The interface between the rules of operations and the backends that carry them out.

A rule says which slices, or boxes of slices, each processor reads, what it computes of them, and what is summed or
moved. `execution` carries a rule out with TensorFlow. `mtf_hetero.cost.transfers` counts what it sends, and creates
no operation of TensorFlow.
"""

import abc
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar, overload

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layout import CannotSplitError, Layout, blocks
from mtf_hetero.layout.blocks import Box, Interval, Move


class Slice(Protocol):
    """A slice on a processor: a tensor of TensorFlow, or a value of a sketch. Only functions of slices look inside."""

    @property
    def dtype(self) -> tf.DType: ...


S = TypeVar("S", bound=Slice)
Slices: TypeAlias = list[Slice]  # one per processor
Halo: TypeAlias = list[tuple[Box, Slice]]  # each piece, after its box in its tensor: (begin, end) per dimension
Function = Callable[..., tf.Tensor]
KindOf = Callable[[int], Hashable]


class Like(NamedTuple):
    """The shape and the type of a tensor that a rule makes besides the outputs of its operation."""

    shape: mtf.Shape
    dtype: tf.DType


class SumOf(Protocol[S]):
    """A sum over mesh axes that is made when it is first needed.

    Attributes:
      partial: one addend per processor.
      axes: indices of mesh axes.
      absent: the processors whose addend is zero.
      is_made: whether an operation has needed it.
    """

    @property
    def partial(self) -> list[S]: ...

    @property
    def axes(self) -> list[int]: ...

    @property
    def absent(self) -> frozenset[int]: ...

    @property
    def is_made(self) -> bool: ...

    def make(self) -> list[S]:
        """Return the sum on every processor."""
        ...


class BackendOf(abc.ABC, Generic[S]):
    """Carries out the rules of operations on one mesh."""

    on_cpus: bool  # all processors; a backend that does not know its devices counts what CPUs do

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.processors = range(layout.size)
        # What the rule of an operation leaves to others, beside its outputs
        self.side_results: dict[mtf.Operation, list[S]] = {}

    @abc.abstractmethod
    def laid_out(self, tensor: mtf.Tensor) -> list[S] | SumOf[S]:
        """Return a tensor's slices, or the sum that they are."""

    @abc.abstractmethod
    def set(self, tensor: mtf.Tensor, laid_out: list[S] | SumOf[S]) -> None:
        """Set the slices of a tensor, or the sum that they are."""

    @abc.abstractmethod
    def make(
        self,
        output: mtf.Tensor | Like,
        function: Function,
        reads: Sequence[Sequence[S]],
        kind_of: KindOf | None = None,
    ) -> list[S]:
        """Compute a slice on each processor.

        Args:
          output: its shape and type; each result is the processor's slice of it.
          function: from all that a processor reads to its slice. A counting backend does not call it.
          reads: per processor, the values that it reads.
          kind_of: given if the function's first argument is the processor's number, an `alike.Processor`. It maps a
            number to all but the reads and the slice's shape that the function's result depends on.
        """

    @abc.abstractmethod
    def make_all(
        self,
        outputs: Sequence[mtf.Tensor | Like],
        function: Callable[..., tuple[tf.Tensor, ...]],
        reads: Sequence[Sequence[S]],
        kind_of: KindOf | None = None,
    ) -> list[list[S]]:
        """Compute slices of several outputs, as `make` does, with a function that returns a tuple of them."""

    @abc.abstractmethod
    def mtf_lower(self, op: mtf.Operation) -> None:
        """Lower an operation as mtf does, where that computes slices of outputs from the same processor's slices."""

    @abc.abstractmethod
    def outstanding(
        self, output: mtf.Tensor, partial: list[S], axes: Sequence[int], absent: Collection[int] = ()
    ) -> SumOf[S]:
        """Return a sum over mesh axes that is made when it is first needed.

        Args:
          output: the tensor that it is.
          partial: one addend per processor.
          axes: indices of mesh axes.
          absent: the processors whose addend is zero.
        """

    @abc.abstractmethod
    def derived(
        self,
        source: SumOf[S],
        partial: list[S],
        absent: Collection[int],
        move: Callable[[], list[S] | None] | None = None,
    ) -> SumOf[S]:
        """Return a sum over the axes of another sum that is not made yet.

        Args:
          source: the other sum.
          partial: one addend per processor.
          absent: the processors whose addend is zero.
          move: given if the sum has the elements of the source. It returns the sum if that need not be made of the
            addends; it is called when the sum is first needed.
        """

    @abc.abstractmethod
    def allreduce(
        self, xs: list[S], axes: Sequence[int], reduction: str = "SUM", absent: Collection[int] = ()
    ) -> list[S]:
        """Reduce slices over mesh axes; every processor gets the result."""

    @abc.abstractmethod
    def join(self, xs: list[S], axes: Sequence[int], absent: Collection[int], function: Function) -> list[S]:
        """Have every processor get what a function makes of the slices over mesh axes.

        Args:
          xs: one slice per processor.
          axes: indices of mesh axes.
          absent: the processors whose slices do not count.
          function: from the numbers of the processors that count, and their slices, to one tensor.
        """

    @overload
    def reduce_scatter(self, total: SumOf[S], moves: Sequence[Move]) -> list[S]: ...

    @overload
    def reduce_scatter(self, total: SumOf[S], moves: Sequence[Move | None]) -> list[S | None]: ...

    @abc.abstractmethod
    def reduce_scatter(self, total: SumOf[S], moves: Sequence[Move | None]) -> list[S] | list[S | None]:
        """Have every processor get its part of a sum, as planned by `blocks`; None where there is no move."""

    @abc.abstractmethod
    def move(self, xs: list[S], moves: Sequence[Move]) -> list[S]:
        """Rearrange slices, as planned by `blocks`."""

    @overload
    def fetch(self, tensor: mtf.Tensor, boxes: Sequence[Sequence[Interval]]) -> list[S]: ...

    @overload
    def fetch(self, tensor: mtf.Tensor, boxes: Sequence[Sequence[Interval] | None]) -> list[S | None]: ...

    @abc.abstractmethod
    def fetch(self, tensor: mtf.Tensor, boxes: Sequence[Sequence[Interval] | None]) -> list[S] | list[S | None]:
        """Give each processor a box of a tensor, with zeros beyond the tensor; None where the box is None."""

    @abc.abstractmethod
    def concat(self, output: mtf.Tensor, pieces: Sequence[Sequence[S]], axis: int) -> list[S]:
        """Join each processor's pieces along a dimension: no operation where it has one, zeros where it has none."""

    @abc.abstractmethod
    def halos(self, tensor: mtf.Tensor, box_of: Callable[[int], Sequence[Interval]]) -> list[list[tuple[Box, S]]]:
        """Give each processor what it lacks of a box of a tensor, piece by piece.

        A piece that several operations need is sent once.

        Args:
          tensor: the tensor.
          box_of: from a processor to (begin, end) per dimension, which may reach beyond the tensor, or be empty.
        """

    @abc.abstractmethod
    def wait(self, output: mtf.Tensor, xs: list[S], others: list[S]) -> list[S]:
        """Return the slices once the others are there."""

    def count(self, name: str, shape: mtf.Shape, unique: str = "") -> None:
        """Count the elements of all slices of a shape under one name, and of the shape under another."""

    def slices(self, tensor: mtf.Tensor) -> list[S]:
        """Return a tensor's slices. A sum is made."""
        x = self.laid_out(tensor)
        return x if isinstance(x, list) else x.make()

    def own_slices(self, op: mtf.Operation, *shapes: mtf.Shape) -> list[list[S]]:
        """Return each processor's slices of the inputs; none where its slice of one of the shapes is empty."""
        inputs = [self.slices(x) for x in op.inputs]
        idle = [has_nothing(self.layout, pnum, *shapes) for pnum in self.processors]
        return [[] if idle[pnum] else [x[pnum] for x in inputs] for pnum in self.processors]

    def local(
        self,
        output: mtf.Tensor | Like,
        function: Function,
        *inputs: list[S],
        kind_of: KindOf | None = None,
    ) -> list[S]:
        """Compute a slice on each processor, as `make` does, from its own slices of the inputs."""
        reads = list(zip(*inputs, strict=True)) if inputs else [()] * self.layout.size
        return self.make(output, function, reads, kind_of)

    def set_sum(
        self,
        output: mtf.Tensor,
        partial: list[S],
        dims: Sequence[mtf.Dimension],
        axes: Sequence[int] | None = None,
    ) -> None:
        """Set a tensor to the sum of addends over the mesh axes that split some dimensions.

        Args:
          output: the only output of its operation.
          partial: one addend per processor.
          dims: the dimensions that the operation sums over.
          axes: these mesh axes, in the order in which mtf names them; None: in ascending order.

        Raises:
          NotImplementedError: as `summed_axes`.
        """
        axes = summed_axes(output.operation, self.layout, dims) if axes is None else axes
        self.set(output, self.outstanding(output, partial, axes, absent_from(self.layout, dims)) if axes else partial)

    def plan_moves(self, old: mtf.Shape, new: mtf.Shape) -> Sequence[Move]:
        """Return how each processor makes its slice of a reshaped tensor."""
        return [blocks.plan_move(self.layout, old.dims, new.dims, pnum) for pnum in self.processors]

    def tensor_layout(self, shape: mtf.Shape) -> mtf.TensorLayout:
        """Return what an mtf.MeshImpl would, for mtf's own functions."""
        self.layout.check(shape)
        return mtf.TensorLayout([self.layout.axis_of(dim) for dim in shape.dims])


Sum: TypeAlias = SumOf[Slice]  # as a rule sees it
Backend: TypeAlias = BackendOf[Slice]


def absent_from(layout: Layout, dims: Sequence[mtf.Dimension]) -> frozenset[int]:
    """Return the processors that have nothing of one of the dimensions: their addend to a sum over them is zero."""
    dims = [dim for dim in dims if dim.name in layout.emptied]
    processors = range(layout.size if dims else 0)
    return frozenset(pnum for pnum in processors if 0 in layout.slice_shape(dims, pnum))


def has_nothing(layout: Layout, pnum: int, *shapes: mtf.Shape) -> bool:
    """Return whether a processor's slice of a tensor of one of the shapes is empty."""
    if not layout.emptied:
        return any(dim.size == 0 for shape in shapes for dim in shape.dims)
    return any(0 in layout.slice_shape(shape, pnum) for shape in shapes)


def summed_axes(op: mtf.Operation, layout: Layout, dims: Sequence[mtf.Dimension]) -> list[int]:
    """Return the mesh axes over which an operation's only output is a sum, in ascending order.

    Args:
      op: the mtf.Operation.
      layout: the Layout.
      dims: the dimensions that it sums over.

    Raises:
      CannotSplitError: the output is split over one of these axes too. No tensor need be: a convolution may sum over
        filters on an axis that has a height of its output, but not the height of its input, which is too small for it.
    """
    summed_axes = sorted({axis for axis in map(layout.axis_of, dims) if axis is not None})
    for dim in op.outputs[0].shape.dims if summed_axes else ():
        if layout.axis_of(dim) in summed_axes:
            axis = layout.axis_name_of(dim)
            raise CannotSplitError(
                f"{type(op).__name__} {op.name!r} cannot all-reduce over mesh axis {axis!r}, because its output's "
                f"dimension {dim.name!r} is split over this axis; remove the rule {dim.name}:{axis} from the layout, "
                "or the rule of the summed dimension"
            )
    return summed_axes

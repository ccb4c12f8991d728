"""Operations that are functions of slices, of which the planner knows the work. They need an UnevenMeshImpl."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import cut, reshape, zeros
from mtf_hetero.layout import Layout
from mtf_hetero.ops.backend import Backend
from mtf_hetero.ops.registry import register, require_whole
from mtf_hetero.ops.traits import Traits

Work = Mapping[tuple[mtf.Dimension, ...], tuple[int, int]]  # {dimensions that divide it: (FLOPs, bytes moved)}


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A function of slices.

    Args:
      apply: from slices to the slice of the result, or to a tuple of slices.
      work: its work on whole tensors. A device does a part of it as large as its part of the dimensions.
      describe: returns a text that is the same for two functions only if they compute the same.
    """

    apply: Callable[..., Any]  # one slice, or a tuple of as many as its operation has outputs
    work: Work
    describe: Callable[[], str]


class FunctionOperation(mtf.SlicewiseOperation):
    """A function of slices whose results are slices too.

    Args:
      splittable: the dimensions that a layout may split.
    """

    def __init__(
        self,
        function: Function,
        inputs: Sequence[mtf.Tensor],
        shapes: Sequence[mtf.Shape],
        dtypes: Sequence[tf.DType],
        splittable: Sequence[mtf.Dimension],
        name: str,
    ) -> None:
        super().__init__(function.apply, list(inputs), list(shapes), list(dtypes), list(splittable), name=name)
        self.function = function


class PartialSumOperation(mtf.Operation):
    """A function of slices that gives partial sums, which are all-reduced.

    Args:
      function: the Function; its slices are addends of the result's slices.
      splittable: the dimensions that a layout may split.
      summed: those of them that are summed over.
    """

    def __init__(
        self,
        function: Function,
        inputs: Sequence[mtf.Tensor],
        shape: mtf.Shape,
        dtype: tf.DType,
        splittable: Sequence[mtf.Dimension],
        summed: Sequence[mtf.Dimension],
        name: str,
    ) -> None:
        super().__init__(list(inputs), name=name)
        self.function, self.summed = function, tuple(summed)
        self._outputs = [mtf.Tensor(self, shape, dtype)]
        self._splittable_dims, self._unsplittable_dims = self._initialize_splittable_and_unsplittable_dims(
            "unsplittable", [dim.name for dim in splittable]
        )


class _SourceOperation(mtf.Operation):
    """A tensor of a function of operands that no layout splits.

    Args:
      function: the Function, from the operands to the whole tensor.
      part: from the operands, the number of an element in row-major order, and a count, to as many elements from there
        on; None: only the whole can be drawn.
    """

    def __init__(
        self,
        function: Function,
        inputs: Sequence[mtf.Tensor],
        shape: mtf.Shape,
        dtype: tf.DType,
        mesh: mtf.Mesh,
        name: str,
        part: Callable[..., tf.Tensor] | None = None,
    ) -> None:
        super().__init__(list(inputs), mesh=mesh, name=name)
        self.function, self.part, self._outputs = function, part, [mtf.Tensor(self, shape, dtype)]
        self._splittable_dims, self._unsplittable_dims = self._initialize_splittable_and_unsplittable_dims(
            "splittable", [dim.name for x in inputs for dim in x.shape.dims]
        )


class DrawOperation(_SourceOperation):
    """Random numbers that follow from the operands: each device draws its slice, or all of them and keeps its slice."""


class OnceOperation(_SourceOperation):
    """Random numbers that have a state: the process that trains draws them, and sends each device its slice."""


FUNCTIONS = (FunctionOperation, PartialSumOperation, DrawOperation, OnceOperation)


def require_splittable(op: mtf.Operation, layout: Layout, why: str) -> None:
    """Raise NotImplementedError if the layout splits a dimension that the operation declares unsplittable."""
    dims = {dim for x in (*op.inputs, *op.outputs) for dim in x.shape.dims if dim.name in op.unsplittable_dims}
    require_whole(op, layout, sorted(dims), why)


@register(PartialSumOperation, traits=Traits(leaves_sums=True))
def partial_sum(op: PartialSumOperation, backend: Backend) -> None:
    """Sum on each device, then over the mesh axes that split what is summed over."""
    require_splittable(op, backend.layout, "a slicewise function")
    (output,) = op.outputs
    backend.set_sum(output, backend.local(output, op.function.apply, *map(backend.slices, op.inputs)), op.summed)


@register(DrawOperation)
def draw(op: DrawOperation, backend: Backend) -> None:
    """Draw on each device the rows that its slice is in, or all numbers where that cannot be done."""
    require_splittable(op, backend.layout, "the state of random numbers")
    (output,), layout = op.outputs, backend.layout

    def draw_slice(pnum: int, *operands: tf.Tensor) -> tf.Tensor:
        size = layout.slice_shape(output.shape, pnum)
        if 0 in size:
            return zeros(size, output.dtype)
        begin = layout.slice_begin(output.shape, pnum)
        if op.part is None or not size:
            return cut(op.function.apply(*operands), begin, size)
        row = output.shape.to_integer_list[1:]
        numbers = op.part(*operands, begin[0] * math.prod(row), size[0] * math.prod(row))
        return cut(reshape(numbers, [size[0], *row]), [0, *begin[1:]], size)

    reads = backend.own_slices(op, output.shape)
    backend.set(output, backend.make(output, draw_slice, reads, lambda p: tuple(layout.slice_begin(output.shape, p))))

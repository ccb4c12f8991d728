"""Operations that are functions of slices, of which the planner knows the work. They need an UnevenMeshImpl."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf

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

"""Operations of mtf that an imported step needs beside mtf's own."""

from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import cut
from mtf_hetero.lowering import registry


class PartialSumOperation(mtf.Operation):
    """A function of slices that adds up over dimensions: slices give partial sums, which are all-reduced.

    Args:
      function: from slices to the slice of the result, or to an addend of it.
      inputs: mtf.Tensors.
      shape: mtf.Shape of the result.
      dtype: tf.DType of the result.
      summed: the dimensions that it adds up over.
      name: the operation's name.
    """

    def __init__(
        self,
        function: Callable[..., tf.Tensor],
        inputs: Sequence[mtf.Tensor],
        shape: mtf.Shape,
        dtype: tf.DType,
        summed: Sequence[mtf.Dimension],
        name: str,
    ) -> None:
        super().__init__(list(inputs), name=name)
        self._function, self._summed = function, summed
        self._outputs = [mtf.Tensor(self, shape, dtype)]

    def lower(self, lowering: mtf.Lowering) -> None:
        value = lowering.mesh_impl(self).slicewise(self._function, *[lowering.tensors[x] for x in self.inputs])
        registry.set_output(self, lowering, value, self._summed)


class ListOperation(mtf.Operation):
    """A function on TensorLists, of which each device has one of the slices of its elements.

    Args:
      function: from the shape of an element's slice, and slices, to the slice of the result, or a tuple of them.
      inputs: mtf.Tensors; that of a TensorList has no dimensions.
      element: mtf.Shape of an element.
      outputs: mtf.Shape and tf.DType of each result.
      mesh: mtf.Mesh.
      name: the operation's name.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[mtf.Tensor],
        element: mtf.Shape,
        outputs: Sequence[tuple[mtf.Shape, tf.DType]],
        mesh: mtf.Mesh,
        name: str,
    ) -> None:
        super().__init__(list(inputs), mesh=mesh, name=name)
        self._function, self._element = function, element
        self._outputs = [mtf.Tensor(self, shape, dtype, index=i) for i, (shape, dtype) in enumerate(outputs)]

    def lower(self, lowering: mtf.Lowering) -> None:
        mesh_impl, element = lowering.mesh_impl(self), self._element

        def run(pnum: int, *slices: tf.Tensor) -> Any:
            return self._function(mesh_impl.slice_shape(element, pnum), *slices)

        values = [lowering.tensors[x] for x in self.inputs]
        results = mesh_impl.slicewise(run, mesh_impl.processors(element), *values)
        for output, result in zip(self.outputs, [results] if len(self.outputs) == 1 else results, strict=True):
            lowering.set_tensor_lowering(output, result)


class _SourceOperation(mtf.Operation):
    """A tensor of a function of operands that are needed whole.

    Args:
      function: from the operands to the whole tensor.
      inputs: mtf.Tensors.
      shape: mtf.Shape of the tensor.
      dtype: its tf.DType.
      mesh: mtf.Mesh.
      name: the operation's name.
    """

    def __init__(
        self,
        function: Callable[..., tf.Tensor],
        inputs: Sequence[mtf.Tensor],
        shape: mtf.Shape,
        dtype: tf.DType,
        mesh: mtf.Mesh,
        name: str,
    ) -> None:
        super().__init__(list(inputs), mesh=mesh, name=name)
        self._function, self._outputs = function, [mtf.Tensor(self, shape, dtype)]


class DrawOperation(_SourceOperation):
    """Each device computes all of a tensor of operands that no layout splits, and keeps its slice: random numbers."""

    def lower(self, lowering: mtf.Lowering) -> None:
        mesh_impl, shape = lowering.mesh_impl(self), self.outputs[0].shape

        def draw(*operands: Any) -> tf.Tensor:
            *slices, pnum = operands
            whole = self._function(*slices)
            return cut(whole, mesh_impl.slice_begin(shape, pnum), mesh_impl.slice_shape(shape, pnum))

        processors = mesh_impl.processors(shape, lambda pnum: tuple(mesh_impl.slice_begin(shape, pnum)))
        slices = mesh_impl.slicewise(draw, *[lowering.tensors[x] for x in self.inputs], processors)
        registry.set_output(self, lowering, slices)


class OnceOperation(_SourceOperation):
    """Runs once, in the process that trains; each device is sent its slice: random numbers that have a state."""

    def lower(self, lowering: mtf.Lowering) -> None:
        (output,) = self.outputs
        with tf.device("/cpu:0"):
            whole = self._function(*[lowering.export_to_tf_tensor(x) for x in self.inputs])
        lowering.set_tensor_lowering(output, lowering.mesh_impl(self).import_tf_tensor(output, whole))

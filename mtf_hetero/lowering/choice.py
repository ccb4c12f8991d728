"""Operations with others inside them, which run as often as a tensor of the step says, and the TensorLists of loops."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero.lowering.loop import lower_all, lower_while_loop
from mtf_hetero.lowering.lowering import Lowering
from mtf_hetero.mesh.tensors import LaidOutTensor

Make = Callable[[], Sequence[mtf.Tensor]]


class LoopOperation(mtf.WhileLoopOperation):
    """A while loop that reads tensors from outside too, besides its variables.

    Args:
      condition: from the variables to an mtf scalar.
      body: from the variables to their next values.
      inputs: the first values of the variables.
      captured: the mtf.Tensors from outside that the condition and the body read.
    """

    def __init__(
        self,
        condition: Callable[..., mtf.Tensor],
        body: Callable[..., Sequence[mtf.Tensor]],
        inputs: Sequence[mtf.Tensor],
        captured: Sequence[mtf.Tensor],
        name: str,
    ) -> None:
        super().__init__(condition, body, list(inputs), name=name)
        self.captured = list(captured)

    def lower(self, lowering: Lowering) -> None:
        with _inside(lowering, self.captured):
            lower_while_loop(self, lowering)


class ChoiceOperation(mtf.Operation):
    """One of some blocks of operations, of which each device runs only that one.

    Args:
      chosen: an mtf scalar: the number of a block, or a condition for the second of two.
      makes: functions that make the operations of a block, and return its results.
      captured: the mtf.Tensors from outside that the blocks read.
    """

    def __init__(self, selector: mtf.Tensor, makes: Sequence[Make], captured: Sequence[mtf.Tensor], name: str) -> None:
        super().__init__([selector, *captured], name=name)
        operations = self.graph.operations
        operations.pop()
        before = len(operations)
        self.blocks: list[list[mtf.Operation]] = []
        self.results: list[list[mtf.Tensor]] = []
        for make in makes:
            self.results.append(list(make()))
            self.blocks.append(operations[before:])
            del operations[before:]
        operations.append(self)
        self._outputs = [mtf.Tensor(self, t.shape, t.dtype, index=i) for i, t in enumerate(self.results[0])]

    def lower(self, lowering: Lowering) -> None:
        mesh_impl, (selector, *captured) = lowering.uneven(self), self.inputs

        def run(operations: Sequence[mtf.Operation], results: Sequence[mtf.Tensor]) -> list[tf.Tensor]:
            with _inside(lowering, ()):
                lower_all(operations, lowering)
                slices = [x for t in results for x in lowering.tensors[t].to_laid_out_tensor().tensor_list]
                return [tf.identity(x) for x in slices]

        with _inside(lowering, captured):
            index = lowering.tensors[selector].to_laid_out_tensor().tensor_list[0]
            functions = [
                lambda part=part: run(*part) for part in zip(self.blocks, self.results, strict=True)
            ]  # of no arguments
            if index.dtype == tf.bool:
                slices = tf.cond(index, functions[1], functions[0])
            else:
                slices = tf.switch_case(index, functions)
        slices = list(slices) if isinstance(slices, (list, tuple)) else [slices]
        for number, output in enumerate(self.outputs):
            mine = slices[number * mesh_impl.size : (number + 1) * mesh_impl.size]
            lowering.set_tensor_lowering(output, LaidOutTensor(mine))


class ListOperation(mtf.Operation):
    """A function on TensorLists, of which each device has one of the slices of its elements.

    Args:
      function: from the shape of an element's slice, and slices, to the slice of the result, or a tuple of them.
      inputs: mtf.Tensors; that of a TensorList has no dimensions.
      element: mtf.Shape of an element.
      outputs: mtf.Shape and tf.DType of each result.
    """

    def __init__(
        self,
        function: Callable[..., tf.Tensor | tuple[tf.Tensor, ...]],
        inputs: Sequence[mtf.Tensor],
        element: mtf.Shape,
        outputs: Sequence[tuple[mtf.Shape, tf.DType]],
        mesh: mtf.Mesh,
        name: str,
    ) -> None:
        super().__init__(list(inputs), mesh=mesh, name=name)
        self._function, self._element = function, element
        self._outputs = [mtf.Tensor(self, shape, dtype, index=i) for i, (shape, dtype) in enumerate(outputs)]
        self._splittable_dims, self._unsplittable_dims = self._initialize_splittable_and_unsplittable_dims(
            "unsplittable", element.dimension_names
        )

    def lower(self, lowering: Lowering) -> None:
        mesh_impl, element = lowering.uneven(self), self._element

        def run(pnum: int, *slices: tf.Tensor) -> tuple[tf.Tensor, ...]:
            result = self._function(mesh_impl.slice_shape(element, pnum), *slices)
            return result if isinstance(result, tuple) else (result,)

        values = [lowering.tensors[x] for x in self.inputs]
        results = mesh_impl.slicewise(run, mesh_impl.processors(element), *values)
        for output, result in zip(self.outputs, results, strict=True):
            lowering.set_tensor_lowering(output, result)


@contextlib.contextmanager
def _inside(lowering: Lowering, captured: Sequence[mtf.Tensor]) -> Iterator[None]:
    """Lower operations inside another one: sums from outside are made before, and what is sent inside stays there."""
    for tensor in captured:
        lowering.tensors[tensor].to_laid_out_tensor()
    sent_pieces = lowering.sent_pieces
    lowering.sent_pieces = dict(sent_pieces)
    try:
        yield
    finally:
        lowering.sent_pieces = sent_pieces

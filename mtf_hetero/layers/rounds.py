"""A function of a batch, applied to one part of it after another, so that only one part has to be in one place.

Three operations that mtf lacks: a slice under another name, its inverse, and "not before". On a layout that splits the
batch and not its parts, a part is sent by those that hold it to all that need it, and what comes of it is added up
where it belongs.
"""

from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import pad
from mtf_hetero.layers.whole import require_whole


def _replaced(shape: mtf.Shape, axis: int, dim: mtf.Dimension) -> mtf.Shape:
    return mtf.Shape([*shape.dims[:axis], dim, *shape.dims[axis + 1 :]])


class CutOperation(mtf.Operation):
    """A part of a tensor along one dimension, which has another name in the part.

    Args:
      x: mtf.Tensor.
      axis: index of the dimension.
      begin: where the part begins.
      dim: mtf.Dimension of the part.
    """

    def __init__(self, x: mtf.Tensor, axis: int, begin: int, dim: mtf.Dimension) -> None:
        super().__init__([x], name="cut")
        self.axis, self.begin = axis, begin
        self._outputs = [mtf.Tensor(self, _replaced(x.shape, axis, dim), x.dtype)]

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        return PlaceOperation(grad_ys[0], self.axis, self.begin, self.inputs[0].shape.dims[self.axis]).outputs

    def lower(self, lowering: mtf.Lowering) -> None:
        (x,), (y,) = self.inputs, self.outputs
        require_whole(self, lowering, [x.shape.dims[self.axis], y.shape.dims[self.axis]])
        size = y.shape.dims[self.axis].size

        def cut(t: tf.Tensor) -> tf.Tensor:
            index = [slice(None)] * self.axis + [slice(self.begin, self.begin + size)]
            return t[tuple(index)]

        lowering.set_tensor_lowering(y, lowering.mesh_impl(self).slicewise(cut, lowering.tensors[x]))


class PlaceOperation(mtf.Operation):
    """A tensor of zeros but for a part along one dimension; the inverse of a CutOperation.

    Args:
      x: mtf.Tensor, the part.
      axis: index of the dimension.
      begin: where the part begins.
      dim: mtf.Dimension of the whole.
    """

    def __init__(self, x: mtf.Tensor, axis: int, begin: int, dim: mtf.Dimension) -> None:
        super().__init__([x], name="place")
        self.axis, self.begin = axis, begin
        self._outputs = [mtf.Tensor(self, _replaced(x.shape, axis, dim), x.dtype)]

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        return CutOperation(grad_ys[0], self.axis, self.begin, self.inputs[0].shape.dims[self.axis]).outputs

    def lower(self, lowering: mtf.Lowering) -> None:
        (x,), (y,) = self.inputs, self.outputs
        part, whole = x.shape.dims[self.axis], y.shape.dims[self.axis]
        require_whole(self, lowering, [part, whole])
        paddings = [(0, 0)] * x.shape.ndims
        paddings[self.axis] = (self.begin, whole.size - self.begin - part.size)
        value = lowering.mesh_impl(self).slicewise(lambda t: pad(t, paddings), lowering.tensors[x])
        lowering.set_tensor_lowering(y, value)


class AfterOperation(mtf.Operation):
    """Two tensors as they are, the first not before the second is there; their gradients in the opposite order.

    Args:
      x: mtf.Tensor that is to wait.
      y: mtf.Tensor that is waited for.
    """

    def __init__(self, x: mtf.Tensor, y: mtf.Tensor) -> None:
        super().__init__([x, y], name="after")
        self._outputs = [mtf.Tensor(self, t.shape, t.dtype, index=i) for i, t in enumerate((x, y))]

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        dx, dy = grad_ys
        if dx is None or dy is None:
            return [dx, dy]
        dy, dx = AfterOperation(dy, dx).outputs
        return [dx, dy]

    def lower(self, lowering: mtf.Lowering) -> None:
        x, y = (lowering.tensors[t] for t in self.inputs)
        waited_for = y.laid_out_input if isinstance(y, mtf.LazyAllreduceSum) else y.to_laid_out_tensor()

        def wait(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([second]):
                return tf.identity(first)

        lowering.set_tensor_lowering(self.outputs[0], lowering.mesh_impl(self).slicewise(wait, x, waited_for))
        lowering.set_tensor_lowering(self.outputs[1], y)


def in_rounds(
    x: mtf.Tensor, function: Callable[[mtf.Tensor], mtf.Tensor], *, dim: mtf.Dimension, sizes: Sequence[int]
) -> mtf.Tensor:
    """Applies a function to one part of a batch after another: the same result, with a part's memory and traffic.

    The parts have the dimension "rounds/DIM" in place of "DIM": a layout that splits DIM, but not that one, brings one
    part together at a time. A round begins once the one before it is done, in the backward pass too.

    Args:
      x: mtf.Tensor with the dimension.
      function: from a part to an mtf.Tensor that has the part's dimension at the same place, under any name. It does
        to each example the same whatever the others are; called once a part, it gets its variables by the same names.
      dim: mtf.Dimension to divide, the batch.
      sizes: of the parts, in turn.

    Returns:
      mtf.Tensor as of `function`, for the whole batch, with `dim` in its place.

    Raises:
      ValueError: the tensor lacks the dimension, or the sizes do not add up to it.
    """
    if dim not in x.shape.dims:
        raise ValueError(
            f"rounds are over dimension {dim}, which {x.shape.to_string} does not have; name one of its dimensions"
        )
    if sum(sizes) != dim.size or min(sizes) < 1:
        raise ValueError(
            f"rounds have the sizes {list(sizes)}, whose sum is not dimension {dim}; give positive sizes with this sum"
        )
    axis = x.shape.dims.index(dim)
    done: list[mtf.Tensor] = []
    begins = []
    for size in sizes:
        begins.append(sum(sizes[: len(begins)]))
        source = x
        if done:
            source, done[-1] = AfterOperation(x, done[-1]).outputs
        part = mtf.Dimension(f"rounds/{dim.name}", size)
        done.append(function(CutOperation(source, axis, begins[-1], part).outputs[0]))
    placed = [PlaceOperation(y, axis, begin, dim).outputs[0] for y, begin in zip(done, begins, strict=True)]
    return mtf.add_n(placed)

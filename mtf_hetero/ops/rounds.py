"""A function of a batch, applied to one part after another, so that only one part has to be in one place.

Three operations that mtf lacks: a slice under another name, its inverse, and "not before". On a layout that splits the
batch and not its parts, a part is sent by those that hold it to all that need it, and what comes of it is added up
where it belongs.
"""

from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import pad, zeros
from mtf_hetero.layout import Layout, blocks
from mtf_hetero.layout.blocks import Box
from mtf_hetero.ops.backend import Backend, Sum
from mtf_hetero.ops.pieces import shift, slices
from mtf_hetero.ops.registry import register
from mtf_hetero.ops.whole import lower_slices


class _Part(mtf.Operation):
    """An operation between a tensor and a part of it along one dimension, which has another name in the part.

    Args:
      axis: index of the dimension.
      begin: where the part begins.
      dim: mtf.Dimension of the output there.
    """

    def __init__(self, x: mtf.Tensor, axis: int, begin: int, dim: mtf.Dimension) -> None:
        super().__init__([x], name=type(self).__name__.removesuffix("Operation").lower())
        self.axis, self.begin = axis, begin
        shape = mtf.Shape([*x.shape.dims[:axis], dim, *x.shape.dims[axis + 1 :]])
        self._outputs = [mtf.Tensor(self, shape, x.dtype)]

    @property
    def _sizes(self) -> tuple[mtf.Dimension, mtf.Dimension]:
        """The dimension before and after."""
        return self.inputs[0].shape.dims[self.axis], self.outputs[0].shape.dims[self.axis]


class CutOperation(_Part):
    """A part of a tensor."""

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        return PlaceOperation(grad_ys[0], self.axis, self.begin, self._sizes[0]).outputs

    def lower(self, lowering: mtf.Lowering) -> None:
        index = (slice(None),) * self.axis + (slice(self.begin, self.begin + self._sizes[1].size),)
        lower_slices(self, lowering, lambda t: t[index], whole_dims=self._sizes)


class PlaceOperation(_Part):
    """A tensor of zeros but for a part; the inverse of a CutOperation."""

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        return CutOperation(grad_ys[0], self.axis, self.begin, self._sizes[0]).outputs

    def lower(self, lowering: mtf.Lowering) -> None:
        part, full = self._sizes
        paddings = [(0, 0)] * self.inputs[0].shape.ndims
        paddings[self.axis] = (self.begin, full.size - self.begin - part.size)
        lower_slices(self, lowering, lambda t: pad(t, paddings), whole_dims=self._sizes)


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
    """Apply a function to one part of a batch after another: the same result, with a part's memory and traffic.

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
    parts = [PlaceOperation(y, axis, begin, dim).outputs[0] for y, begin in zip(done, begins, strict=True)]
    return mtf.add_n(parts)


def cut_boxes(op: CutOperation | PlaceOperation, layout: Layout) -> list[Box]:
    """Return the box of the input, and of zeros around it, that is each processor's slice of the output."""
    begin = op.begin if isinstance(op, CutOperation) else -op.begin
    return [shift(box, op.axis, begin) for box in slices(layout, op.outputs[0])]


def _is_scattered(op: PlaceOperation, layout: Layout, x: Sum) -> bool:
    """Return whether each processor gets only its own part of an outstanding sum over mesh axes."""
    part, full = (layout.axis_of(tensor.shape.dims[op.axis]) for tensor in (op.inputs[0], op.outputs[0]))
    return not x.is_made and [None, *x.axes] == [part, full]


@register(CutOperation)
def cut(op: CutOperation, backend: Backend) -> None:
    """Have those that hold the part send it to all that need it."""
    backend.set(op.outputs[0], backend.fetch(op.inputs[0], cut_boxes(op, backend.layout)))


@register(PlaceOperation)
def place(op: PlaceOperation, backend: Backend) -> None:
    """Have each processor keep what lies in its slice. Where a sum is outstanding, it gets no more of the sum."""
    (part,), (full,) = op.inputs, op.outputs
    total = backend.laid_out(part)
    if isinstance(total, list) or not _is_scattered(op, backend.layout, total):
        backend.set(full, backend.fetch(part, cut_boxes(op, backend.layout)))
        return
    dims, boxes = part.shape.dims, cut_boxes(op, backend.layout)
    windows = [blocks.plan_window(backend.layout, dims, box, pnum) for pnum, box in enumerate(boxes)]
    moves = [blocks.Move(window.pieces, window.grid, (), cuts=True) if window.pieces else None for window in windows]

    def put(pnum: int, own: tf.Tensor | None = None) -> tf.Tensor:
        window = windows[pnum]
        return zeros(window.size, full.dtype) if own is None else pad(own, window.padding)

    reads = [[] if own is None else [own] for own in backend.reduce_scatter(total, moves)]
    backend.set(full, backend.make(full, put, reads, lambda pnum: windows[pnum].padding))
    backend.count(f"reduce_scatter/{total.axes}/PlaceOperation", part.shape)


@register(AfterOperation)
def after(op: AfterOperation, backend: Backend) -> None:
    """Have each processor wait for its slice, or its addend, of the second input."""
    (x, y), (x_after, y_after) = op.inputs, op.outputs
    xs, ys = backend.slices(x), backend.laid_out(y)
    backend.set(x_after, backend.wait(x_after, xs, ys if isinstance(ys, list) else ys.partial))
    backend.set(y_after, ys)

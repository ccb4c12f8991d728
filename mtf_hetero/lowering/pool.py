"""Pooling and its gradient, over windows that do not overlap (mtf's windows never do).

Where a layout splits the height, width or depth, a window can lie on both sides of a boundary: the processor that has
its output fetches what it lacks of the input, and for the gradient whole windows of the output. The gradients are
TensorFlow's own operations.
"""

from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.blocks import Interval
from mtf_hetero.collectives import cut, reshape
from mtf_hetero.lowering.conv import flatten_batch
from mtf_hetero.lowering.registry import register, set_output
from mtf_hetero.lowering.windows import fetch, own_box


@register(mtf.PoolOperation)
def lower_pool(op: Any, lowering: Any) -> None:
    """Fetches whole windows, and pools them."""
    mesh_impl, output, rank = lowering.mesh_impl(op), op.outputs[0], len(op._ksize) + 1

    def box(pnum: int) -> list[Interval]:
        own = own_box(op, lowering, output.shape, pnum)
        windows = [(b * k, e * k) for (b, e), k in zip(own[-rank:-1], op._ksize, strict=True)]
        return [*own[:-rank], *windows, own[-1]]

    x = mesh_impl.LaidOutTensor(fetch(op, lowering, op.inputs[0], box))
    pool = mtf.pool_fn(op._pool_fn_string)
    set_output(op, lowering, mesh_impl.slicewise(lambda x: pool(x, op._ksize, op._strides, "VALID"), x))


def _covering(own: Sequence[Interval], sizes: Sequence[int], counts: Sequence[int]) -> list[Interval]:
    """The windows that lie, in part at least, in a slice of the input."""
    return [(b // k, min(-(-e // k), n)) for (b, e), k, n in zip(own, sizes, counts, strict=True)]


def _gradient(kind: str, x: Any, y: Any, dy: Any, ksize: Sequence[int]) -> Any:
    """The gradient to x [batch, ..., channels] of a pool over windows of `ksize`, which divides its extents."""
    window = {"ksize": [1, *ksize, 1], "strides": [1, *ksize, 1], "padding": "VALID"}
    if kind == "MAX_2D":
        return tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=y, grad=dy, **window)
    if kind == "MAX_3D":
        return tf.raw_ops.MaxPool3DGrad(orig_input=x, orig_output=y, grad=dy, **window)
    if kind == "AVG_2D":
        return tf.raw_ops.AvgPoolGrad(orig_input_shape=x.shape.as_list(), grad=dy, **window)
    return tf.raw_ops.AvgPool3DGrad(orig_input_shape=x.shape.as_list(), grad=dy, **window)


@register(mtf.PoolBackPropOperation)
def lower_pool_backprop(op: Any, lowering: Any) -> None:
    """Fetches the windows that the slice of the input lies in, and keeps the slice's part of their gradient."""
    mesh_impl, output, rank = lowering.mesh_impl(op), op.outputs[0], len(op._ksize) + 1
    x, y, dy = op.inputs
    counts = [dim.size for dim in y.shape.dims[-rank:-1]]

    def windows(pnum: int) -> list[Interval] | None:
        own = own_box(op, lowering, output.shape, pnum)
        covering = _covering(own[-rank:-1], op._ksize, counts)
        return None if any(b >= e for b, e in covering) else [*own[:-rank], *covering, own[-1]]

    def pixels(pnum: int) -> list[Interval] | None:
        box = windows(pnum)
        if box is None:
            return None
        covered = [(b * k, e * k) for (b, e), k in zip(box[-rank:-1], op._ksize, strict=True)]
        return [*box[:-rank], *covered, box[-1]]

    def differentiate(x: Any, y: Any, dy: Any, pnum: int) -> Any:
        shape = mesh_impl.slice_shape(output.shape, pnum)
        box = pixels(pnum)
        if box is None:  # only pixels beyond the last window
            return tf.zeros(shape, output.dtype)
        x, y, dy = (flatten_batch(t, rank) for t in (x, y, dy))
        dx = _gradient(op._pool_fn_string, x, y, dy, op._ksize)
        begins = [o[0] - b[0] for o, b in zip(own_box(op, lowering, output.shape, pnum), box, strict=True)][-rank:]
        missing = [max(b + n - d, 0) for b, n, d in zip(begins, shape[-rank:], dx.shape.as_list()[1:], strict=True)]
        if any(missing):
            dx = tf.pad(dx, [[0, 0], *([0, m] for m in missing)])
        return reshape(cut(dx, [0, *begins], [dx.shape.as_list()[0], *shape[-rank:]]), shape)

    parts = [fetch(op, lowering, x, pixels), fetch(op, lowering, y, windows), fetch(op, lowering, dy, windows)]
    slices = [mesh_impl.LaidOutTensor(part) for part in parts]
    set_output(op, lowering, mesh_impl.slicewise(differentiate, *slices, mesh_impl.laid_out_pnum()))

"""Pooling and its gradient, mtf's own and ours.

Where a layout splits the height, width or depth, a window can lie on both sides of a boundary: the processor that has
its output fetches what it lacks of the input, and for the gradient all windows that its slice of the input lies in, and
all that they see. The gradients are TensorFlow's own operations.
"""

from typing import Any

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._layers_pool import Windows, fitted
from mtf_hetero.blocks import Interval
from mtf_hetero.lowering.registry import register, set_output
from mtf_hetero.lowering.windows import fetch, own_box


def _of_mtf(op: Any, x: Any, y: Any) -> Windows:
    """The windows of mtf's own pools: as far apart as they are large, and within the image."""
    rank = len(op._ksize) + 1
    extents, counts = ([dim.size for dim in t.shape.dims[-rank:-1]] for t in (x, y))
    size = tuple(op._ksize)
    return Windows(op._pool_fn_string[:3].lower(), tuple(extents), size, size, (0,) * len(size), tuple(counts))


def _lower_pool(op: Any, lowering: Any, windows: Windows) -> None:
    mesh_impl, (x,), rank = lowering.mesh_impl(op), op.inputs, len(windows.sizes) + 1

    def own_windows(pnum: int) -> list[Interval]:
        return own_box(op, lowering, op.outputs[0].shape, pnum)[-rank:-1]

    def seen(pnum: int) -> list[Interval]:
        own = own_box(op, lowering, x.shape, pnum)
        return [*own[:-rank], *windows.inside(windows.pixels(own_windows(pnum))), own[-1]]

    patches = mesh_impl.LaidOutTensor(fetch(op, lowering, x, seen))
    pnums = mesh_impl.laid_out_pnum()
    set_output(op, lowering, mesh_impl.slicewise(lambda x, pnum: windows.pool(x, own_windows(pnum)), patches, pnums))


def _lower_gradient(op: Any, lowering: Any, windows: Windows, dy: Any, *x_and_y: Any) -> None:
    mesh_impl, output, rank = lowering.mesh_impl(op), op.outputs[0], len(windows.sizes) + 1

    def own_pixels(pnum: int) -> list[Interval]:
        return own_box(op, lowering, output.shape, pnum)[-rank:-1]

    def covering(pnum: int) -> list[Interval] | None:
        own = own_box(op, lowering, dy.shape, pnum)
        found = windows.covering(own_pixels(pnum))
        return [*own[:-rank], *found, own[-1]] if all(begin < end for begin, end in found) else None

    def seen(pnum: int) -> list[Interval] | None:
        box = covering(pnum)
        return box and [*box[:-rank], *windows.inside(windows.pixels(box[-rank:-1])), box[-1]]

    def differentiate(pnum: int, dy: Any, x: Any = None, y: Any = None) -> Any:
        box = covering(pnum)
        if box is None:  # only pixels that no window sees
            return tf.zeros(mesh_impl.slice_shape(output.shape, pnum), output.dtype)
        dx = windows.gradient(dy, box[-rank:-1], x, y)
        return fitted(dx, windows.inside(windows.pixels(box[-rank:-1])), own_pixels(pnum))

    boxes = (covering, seen, covering)
    parts = [fetch(op, lowering, t, box) for t, box in zip((dy, *x_and_y), boxes, strict=False)]
    slices = [mesh_impl.LaidOutTensor(part) for part in parts]
    set_output(op, lowering, mesh_impl.slicewise(differentiate, mesh_impl.laid_out_pnum(), *slices))


@register(layers.PoolOperation)
def lower_pool(op: Any, lowering: Any) -> None:
    """Fetches what the windows see, and pools it."""
    _lower_pool(op, lowering, op.windows)


@register(mtf.PoolOperation)
def lower_mtf_pool(op: Any, lowering: Any) -> None:
    """As `lower_pool`."""
    _lower_pool(op, lowering, _of_mtf(op, op.inputs[0], op.outputs[0]))


@register(layers.PoolGradientOperation)
def lower_pool_gradient(op: Any, lowering: Any) -> None:
    """Fetches the windows that the slice of the input lies in, and keeps the slice's part of their gradient."""
    _lower_gradient(op, lowering, op.windows, *op.inputs)


@register(mtf.PoolBackPropOperation)
def lower_mtf_pool_gradient(op: Any, lowering: Any) -> None:
    """As `lower_pool_gradient`."""
    x, y, dy = op.inputs
    windows = _of_mtf(op, x, y)
    _lower_gradient(op, lowering, windows, dy, *((x, y) if windows.kind == "max" else ()))

"""Pools over windows that may overlap, lie apart or reach beyond the image, and their gradients."""

from collections.abc import Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layers.geometry import Windows, crop_or_pad
from mtf_hetero.layers.whole import lower_slices


class PoolOperation(mtf.Operation):
    """A pool over any windows.

    Args:
      x: mtf.Tensor [..., spatial dimensions, channels].
    """

    def __init__(self, x: mtf.Tensor, windows: Windows, name: str) -> None:
        super().__init__([x], name=name)
        self.windows = windows
        dims = x.shape.dims
        rank = len(windows.sizes) + 1
        spatial = [mtf.Dimension(d.name, n) for d, n in zip(dims[-rank:-1], windows.counts, strict=True)]
        self._outputs = [mtf.Tensor(self, mtf.Shape([*dims[:-rank], *spatial, dims[-1]]), x.dtype)]

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        (x,), (y,), (dy,) = self.inputs, self.outputs, grad_ys
        inputs = [dy, x, y] if self.windows.kind == "max" else [dy]
        return PoolGradientOperation(self.windows, x.shape, inputs, f"{self.name}/gradient").outputs

    def lower(self, lowering: mtf.Lowering) -> None:
        windows, dims = self.windows, self.inputs[0].shape.dims
        space = dims[-len(windows.sizes) - 1 : -1]
        lower_slices(self, lowering, lambda x: windows.pool(x, windows.all), whole_dims=space)


class PoolGradientOperation(mtf.Operation):
    """The gradient to a pool's input. Its inputs are dy and, where the maximum is taken, x and y.

    Args:
      shape: mtf.Shape of the pool's input.
      inputs: dy, or dy, x and y.
    """

    def __init__(self, windows: Windows, shape: mtf.Shape, inputs: Sequence[mtf.Tensor], name: str) -> None:
        super().__init__(list(inputs), name=name)
        self.windows = windows
        self._outputs = [mtf.Tensor(self, shape, inputs[0].dtype)]

    def lower(self, lowering: mtf.Lowering) -> None:
        windows, dims = self.windows, self.outputs[0].shape.dims
        image = [(0, n) for n in windows.extents]

        def differentiate(dy: tf.Tensor, x: tf.Tensor | None = None, y: tf.Tensor | None = None) -> tf.Tensor:
            x = None if x is None else crop_or_pad(x, image, windows.inside(windows.pixels(windows.all)))
            pixels, part = windows.gradient(dy, windows.all, x, y)
            return crop_or_pad(part, pixels, image)

        lower_slices(self, lowering, differentiate, whole_dims=dims[-len(windows.sizes) - 1 : -1])

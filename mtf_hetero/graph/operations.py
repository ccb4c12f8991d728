"""The families of operations - convolutions, products, pools, lookups - and the roles of their tensors.

Of the two images of a convolution, the *large* one is windowed and the *small* one has a value per window. A
convolution goes from large to small, its input gradient and the transposed convolution from small to large, the
gradient of the kernel from both to the kernel.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

from mtf_hetero import layers
from mtf_hetero._compat import mtf
from mtf_hetero.layers.geometry import Windows

SMALL, LARGE, KERNEL = "small", "large", "kernel"  # what a convolution makes
# In a program as it is written. Convolutions in groups are not among them: a layout splits their groups, as it splits
# the channels of operations on elements
ForwardConvolution: TypeAlias = (
    mtf.Conv2dOperation | mtf.Conv3dOperation | mtf.Conv2dTransposeOperation | mtf.Conv3dTransposeOperation
)
AnyConvolution: TypeAlias = (
    ForwardConvolution
    | mtf.Conv2or3dBackpropInputOperation
    | mtf.Conv2or3dBackpropFilterOperation
    | layers.GroupedConv2dOperation
    | layers.GroupedConvInputGradient
    | layers.GroupedConvKernelGradient
)
Contraction: TypeAlias = AnyConvolution | mtf.EinsumOperation
ForwardPool: TypeAlias = layers.PoolOperation | mtf.PoolOperation
PoolGradient: TypeAlias = layers.PoolGradientOperation | mtf.PoolBackPropOperation
AnyPool: TypeAlias = ForwardPool | PoolGradient
LOOKUPS = (layers.LookupOperation, layers.LookupGradientOperation)
_TO_SMALL = (mtf.Conv2dOperation, mtf.Conv3dOperation, layers.GroupedConv2dOperation)


def is_contraction(op: mtf.Operation) -> TypeGuard[Contraction]:
    """Return whether an operation is a convolution or a product, or a gradient of one."""
    return isinstance(op, Contraction)


def leaves_sums(op: mtf.Operation) -> bool:
    """Return whether an operation's outputs may be partial sums that an all-reduce completes."""
    return is_contraction(op) or isinstance(op, (mtf.ReduceOperation, layers.PartialSumOperation, *LOOKUPS))


class Convolution(NamedTuple):
    """The tensors of a convolution, transposed or not, or of a gradient of one.

    Args:
      makes: SMALL, LARGE or KERNEL.
      image: the input of which a processor needs more than its slice.
      other: the other input: the kernel or, for the kernel's gradient, the small image.
      output: what it makes.
    """

    makes: str
    image: mtf.Tensor
    other: mtf.Tensor
    output: mtf.Tensor

    @property
    def large(self) -> mtf.Tensor:
        """The image over which the windows pass."""
        return self.output if self.makes == LARGE else self.image

    @property
    def small(self) -> mtf.Tensor:
        """The image with a value for each window."""
        return {SMALL: self.output, LARGE: self.image, KERNEL: self.other}[self.makes]

    @property
    def kernel(self) -> mtf.Tensor:
        """The kernel, or its gradient."""
        return self.output if self.makes == KERNEL else self.other


def convolution_roles(op: AnyConvolution) -> Convolution:
    """Return the roles of the tensors of a convolution."""
    (first, second), (output,) = op.inputs, op.outputs
    if isinstance(op, mtf.Conv2or3dBackpropFilterOperation):
        images = (second, first) if op._is_transpose else (first, second)
        return Convolution(KERNEL, *images, output)
    if isinstance(op, layers.GroupedConvKernelGradient):
        return Convolution(KERNEL, second, first, output)
    if isinstance(op, mtf.Conv2or3dBackpropInputOperation):
        return Convolution(SMALL if op._is_transpose else LARGE, first, second, output)
    return Convolution(SMALL if isinstance(op, _TO_SMALL) else LARGE, first, second, output)


def pool_windows(op: AnyPool) -> Windows:
    """Return the windows of a pool; those of mtf's own are as far apart as they are large, and inside."""
    if isinstance(op, (layers.PoolOperation, layers.PoolGradientOperation)):
        return op.windows
    x, y = (*op.inputs, *op.outputs)[:2]
    rank = len(op._ksize) + 1
    extents, counts = ([dim.size for dim in t.shape.dims[-rank:-1]] for t in (x, y))
    size = tuple(op._ksize)
    return Windows(op._pool_fn_string[:3].lower(), tuple(extents), size, size, (0,) * len(size), tuple(counts))


def gradient_inputs(op: PoolGradient) -> tuple[mtf.Tensor, mtf.Tensor | None, mtf.Tensor | None]:
    """Return dy, x and y of a pool's gradient; x and y are None where the gradient does not need them."""
    if isinstance(op, mtf.PoolBackPropOperation):
        x, y, dy = op.inputs
        return dy, x, y
    dy, *x_and_y = op.inputs
    x, y = x_and_y or (None, None)
    return dy, x, y


def image_inputs(op: AnyConvolution | AnyPool) -> tuple[mtf.Tensor, ...]:
    """Return the images or volumes of a convolution or a pool."""
    if isinstance(op, AnyConvolution):
        roles = convolution_roles(op)
        return roles.large, roles.small
    return *op.inputs, *op.outputs


def window_sizes(op: AnyConvolution | AnyPool) -> Sequence[int]:
    """Return the size of a convolution's or pool's windows in each dimension of space."""
    if isinstance(op, AnyPool):
        return pool_windows(op).sizes
    return [dim.size for dim in convolution_roles(op).kernel.shape.dims[: len(op._strides) - 2]]


def spatial_dimensions(op: AnyConvolution | AnyPool, image: mtf.Tensor) -> list[mtf.Dimension]:
    """Return the dimensions of an image of a convolution or pool over which the windows pass."""
    count = len(window_sizes(op))
    channels = convolution_roles(op).kernel.shape.ndims - 1 - count if isinstance(op, AnyConvolution) else 1
    return image.shape.dims[-count - channels : -channels]


def packed_dim(op: mtf.Operation) -> mtf.Dimension | None:
    """Return the dimension of which a device computes several units at a time: the output channels of a convolution.

    They are the last dimension of what it gives: of an image, its filters; of an image's gradient, its channels; of a
    kernel's, its filters. None: of no other operation that is known.
    """
    return op.outputs[0].shape.dims[-1] if isinstance(op, AnyConvolution) else None


def multiplied_dims(op: Contraction) -> list[mtf.Dimension]:
    """Return the dimensions over which a contraction multiplies and adds, each once."""
    if isinstance(op, mtf.EinsumOperation):
        tensors = [*op.inputs, *op.outputs]
    else:
        roles = convolution_roles(op)
        tensors = [roles.kernel, roles.small]
    return list(dict.fromkeys(dim for tensor in tensors for dim in tensor.shape.dims))

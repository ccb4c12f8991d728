"""Sums over dimensions: einsum and reduce_sum. A processor without values adds nothing."""

import functools
import math
from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import binary, constant, reshape
from mtf_hetero.layout import CannotSplitError
from mtf_hetero.mesh.mesh_impl import broadcast_slice
from mtf_hetero.ops import matrices
from mtf_hetero.ops.backend import Backend, Like, absent_from
from mtf_hetero.ops.registry import register
from mtf_hetero.ops.traits import Traits

# That are added up one after another: biases' gradients of volumes of 128 x 128 x 128 were off by a thousandth
_MOST_ADDENDS = 2**14


def channel_sums(x: tf.Tensor) -> tf.Tensor:
    """Return the sum of each channel, on a CPU in a quarter to the whole of reduce_sum's time.

    TensorFlow adds up one value after another: in float32, what comes after a million keeps one or two of its digits.
    Of so many values, each column is added up by itself first.

    Args:
      x: [..., channels], of two dimensions or more, of known shape.

    Returns:
      [channels].
    """
    *rows, channels = x.shape.as_list()
    if len(rows) == 1 or math.prod(rows) <= _MOST_ADDENDS or not channels:
        return tf.raw_ops.BiasAddGrad(out_backprop=x)
    sums = tf.raw_ops.BiasAddGrad(out_backprop=reshape(x, [-1, rows[-1] * channels]))
    return tf.reduce_sum(reshape(sums, [rows[-1], channels]), constant(0))


def summed_dims(op: mtf.EinsumOperation | mtf.ReduceOperation) -> list[mtf.Dimension]:
    """Return the dimensions over which an operation sums."""
    output_dims = op.outputs[0].shape.dims
    return list(dict.fromkeys(dim for x in op.inputs for dim in x.shape.dims if dim not in output_dims))


def is_bias_gradient(op: mtf.ReduceOperation) -> bool:
    """Return whether a ReduceOperation sums over all dimensions but the last."""
    (x,), (y,) = op.inputs, op.outputs
    is_last = x.shape.ndims > 1 and y.shape.dims == x.shape.dims[-1:]
    return is_last and x.dtype.is_floating and op._reduction_fn_string == "SUM"


def _all_dims(op: mtf.EinsumOperation) -> list[mtf.Dimension]:
    return list(dict.fromkeys(dim for tensor in (*op.inputs, *op.outputs) for dim in tensor.shape.dims))


@register(mtf.ReduceOperation, traits=Traits(leaves_sums=True))
def reduce(op: mtf.ReduceOperation, backend: Backend) -> None:
    """Reduce slices, then over mesh axes.

    A sum over all dimensions but the last is TensorFlow's operation for a bias's gradient: twice as fast.
    """
    (x,), (output,), kind = op.inputs, op.outputs, op._reduction_fn_string
    function, axes = mtf.ops._reduce_helper(x.shape, output.shape, backend.tensor_layout(x.shape), kind)
    is_bias = is_bias_gradient(op)
    partial = backend.local(output, channel_sums if is_bias else function, backend.slices(x))
    if kind == "SUM":
        backend.set_sum(output, partial, summed_dims(op), None if is_bias else axes)
        return
    backend.set(output, backend.allreduce(partial, axes, kind))
    if axes:
        backend.count(f"allreduce/{axes}/{type(op).__name__}", output.shape)


def _function_of_slices(
    shapes: Sequence[mtf.Shape], output: mtf.Shape, dims: Sequence[mtf.Dimension], dtype: tf.DType
) -> Callable[..., tf.Tensor]:
    """Return the function that computes an einsum of slices, cached by numbers alone: a network repeats its layers.

    Args:
      shapes: of the inputs.
      output: of the output.
      dims: all dimensions of the inputs.
      dtype: of the inputs.
    """
    full = next((shape.dims for shape in [*shapes, output] if len(shape.dims) == len(dims)), None)
    if full is None and dtype.is_floating:
        return matrices.matrix_product(shapes, output) or functools.partial(
            tf.einsum, mtf.ops._einsum_equation(shapes, output)
        )
    full = full or dims
    remaining = [dim for dim in full if dim in output.dims]
    return functools.partial(
        _multiply_and_sum,
        axes=[[full.index(dim) for dim in shape.dims] for shape in shapes],
        rank=len(full),
        summed=[axis for axis, dim in enumerate(full) if dim not in remaining],
        order=[remaining.index(dim) for dim in output.dims],
    )


def _multiply_and_sum(
    *slices: tf.Tensor, axes: Sequence[Sequence[int]], rank: int, summed: Sequence[int], order: Sequence[int]
) -> tf.Tensor:
    """Multiply slices element by element, and sum.

    Args:
      *slices: the factors.
      axes: which dimensions of the product a factor has.
      rank: of the product.
      summed: the dimensions that are summed over.
      order: in which the result has the others.
    """
    factors = [_spread(x, of_slice, rank) for x, of_slice in zip(slices, axes, strict=True)]
    product = functools.reduce(functools.partial(binary, "Mul"), factors)
    if summed:
        product = tf.reduce_sum(product, constant(summed))
    return _transpose(product, order)


def _spread(x: tf.Tensor, axes: Sequence[int], rank: int) -> tf.Tensor:
    """Place the dimensions of a factor where the product has them, from its first one on."""
    x = _transpose(x, sorted(range(len(axes)), key=axes.__getitem__))
    sizes = dict(zip(sorted(axes), x.shape.as_list(), strict=True))
    return reshape(x, [sizes.get(axis, 1) for axis in range(min(axes, default=rank), rank)])


def _transpose(x: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
    return x if list(order) == list(range(len(order))) else tf.transpose(x, constant(order))


@register(mtf.EinsumOperation, traits=Traits(is_layer=True, multiplied=_all_dims, leaves_sums=True))
def einsum(op: mtf.EinsumOperation, backend: Backend) -> None:
    """Compute an einsum as mtf does, without operations that change nothing.

    Raises:
      CannotSplitError: factors are split over one mesh axis along dimensions that no tensor has all of.
    """
    (output,), shapes = op.outputs, [x.shape for x in op.inputs]
    dims = list(dict.fromkeys(dim for shape in shapes for dim in shape.dims))
    computed = Like(mtf.Shape([dim for dim in output.shape.dims if dim in dims]), output.dtype)
    try:
        backend.layout.check(dims)
    except ValueError as error:
        raise CannotSplitError(f"{type(op).__name__} {op.name!r}, before it sums: {error}") from error
    _, axes = mtf.ops._einsum_helper(shapes, computed.shape, backend)
    function = _function_of_slices(shapes, computed.shape, dims, op.inputs[0].dtype)
    partial = backend.local(computed, function, *map(backend.slices, op.inputs))
    if computed.shape == output.shape:
        backend.set_sum(output, partial, summed_dims(op), axes)
    else:  # it has dimensions that no input has
        total = backend.allreduce(partial, axes, absent=absent_from(backend.layout, summed_dims(op)))
        spread = functools.partial(broadcast_slice, backend.layout, computed.shape, output.shape)
        backend.set(output, backend.local(output, spread, total, kind_of=lambda pnum: None))
    backend.count("einsum", mtf.Shape(dims), "einsum_unique")

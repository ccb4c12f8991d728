"""Sums over dimensions: einsum and reduce_sum. What a processor has nothing of, it adds nothing to."""

import functools
from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import binary, constant, reshape
from mtf_hetero.layers.sums import channel_sums
from mtf_hetero.lowering import matrices
from mtf_hetero.lowering.registry import absent_from, outstanding, register, set_output


def summed_dims(op: mtf.Operation) -> list[mtf.Dimension]:
    """The dimensions that an EinsumOperation or a ReduceOperation reduces."""
    kept = op.outputs[0].shape.dims
    return list(dict.fromkeys(dim for x in op.inputs for dim in x.shape.dims if dim not in kept))


def is_bias_gradient(op: mtf.Operation) -> bool:
    """Whether a ReduceOperation sums over all dimensions but the last."""
    (x,), (y,) = op.inputs, op.outputs
    is_last = x.shape.ndims > 1 and y.shape.dims == x.shape.dims[-1:]
    return is_last and x.dtype.is_floating and op._reduction_fn_string == "SUM"


@register(mtf.ReduceOperation)
def lower_reduce(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """A sum over all dimensions but the last, as TensorFlow's operation for a bias's gradient: twice as fast."""
    (x,), (output,), mesh_impl = op.inputs, op.outputs, lowering.mesh_impl(op)
    if is_bias_gradient(op):
        set_output(op, lowering, mesh_impl.slicewise(channel_sums, lowering.tensors[x]), summed_dims(op))
        return
    type(op).lower(op, lowering)
    total = lowering.tensors[output]
    if isinstance(total, mtf.LazyAllreduceSum):
        absent = absent_from(mesh_impl.layout, summed_dims(op))
        total.laid_out_input = mesh_impl.LaidOutTensor(total.laid_out_input.tensor_list, absent)


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
        return matrices.product_of(shapes, output) or functools.partial(
            tf.einsum, mtf.ops._einsum_equation(shapes, output)
        )
    full = full or dims
    kept = [dim for dim in full if dim in output.dims]
    return functools.partial(
        _multiply_and_sum,
        axes=[[full.index(dim) for dim in shape.dims] for shape in shapes],
        rank=len(full),
        summed=[axis for axis, dim in enumerate(full) if dim not in kept],
        order=[kept.index(dim) for dim in output.dims],
    )


def _multiply_and_sum(
    *slices: tf.Tensor, axes: Sequence[Sequence[int]], rank: int, summed: Sequence[int], order: Sequence[int]
) -> tf.Tensor:
    """The sum of a product, element by element.

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
    """A factor with its dimensions where the product has them; those before its first one are left out."""
    x = _transpose(x, sorted(range(len(axes)), key=axes.__getitem__))
    sizes = dict(zip(sorted(axes), x.shape.as_list(), strict=True))
    return reshape(x, [sizes.get(axis, 1) for axis in range(min(axes, default=rank), rank)])


def _transpose(x: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
    return x if list(order) == list(range(len(order))) else tf.transpose(x, constant(order))


@register(mtf.EinsumOperation)
def lower_einsum(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """As mtf does it, without operations that change nothing."""
    mesh_impl, (output,), shapes = lowering.mesh_impl(op), op.outputs, [x.shape for x in op.inputs]
    dims = list(dict.fromkeys(dim for shape in shapes for dim in shape.dims))
    computed = mtf.Shape([dim for dim in output.shape.dims if dim in dims])
    _, axes = mtf.ops._einsum_helper(shapes, computed, mesh_impl)
    function = _function_of_slices(shapes, computed, dims, op.inputs[0].dtype)
    value = mesh_impl.slicewise(function, *[lowering.tensors[x] for x in op.inputs])
    if axes:

        def count() -> None:
            lowering.add_counter(f"allreduce/{axes}/einsum_op", mesh_impl.laid_out_size(computed))

        value = outstanding(mesh_impl, value, axes, summed_dims(op), count)
    if computed != output.shape:  # it has dimensions that no input has
        value = mesh_impl.broadcast_impl(value, computed, output.shape)
    lowering.set_tensor_lowering(output, value)
    computation = mtf.Shape(dims)
    lowering.add_counter("einsum", mesh_impl.laid_out_size(computation))
    lowering.add_counter("einsum_unique", computation.size)

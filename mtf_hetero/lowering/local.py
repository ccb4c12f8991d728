"""Operations that each processor does on its own slice, once it knows where that slice begins and ends."""

import functools
import itertools
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import binary, constant
from mtf_hetero.lowering.halo import opaque
from mtf_hetero.lowering.registry import register, require_whole, set_output


@register(mtf.Variable)
def lower_variable(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Reads each slice once, so that a step sees one value of it however its updates are scheduled.

    mtf hands on the tf.Variable itself, which on TensorFlow 2 is read anew by every operation that uses it, before or
    after the same step's update.
    """
    mesh_impl = lowering.mesh_impl(op)
    lowering.variables[op] = variable = mesh_impl.LaidOutVariable(op, mesh_impl)
    set_output(op, lowering, _as_activation(mesh_impl, op, variable.value))
    lowering.add_counter("variables/trainable" if op.trainable else "variables/untrainable", op.outputs[0].size)


@register(mtf.ReadVariable)
def lower_read_variable(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Reads each slice at this point of the program."""
    mesh_impl = lowering.mesh_impl(op)
    value = lowering.variables[op._var].laid_out_tensor
    set_output(op, lowering, _as_activation(mesh_impl, op._var, value))


def _as_activation(mesh_impl: mtf.MeshImpl, variable: mtf.Variable, value: Any) -> Any:
    """Return the values read from a variable in the type of the computation."""
    if variable.slice_dtype == variable.activation_dtype:
        return mesh_impl.LaidOutTensor(list(value.tensor_list))
    return mesh_impl.slicewise(functools.partial(tf.cast, dtype=variable.activation_dtype), value)


@register(mtf.Assign)
def lower_assign(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """One operation that waits for all slices of all variables."""
    assignments = []
    for variable, value in zip(op.variables, op.inputs, strict=True):
        values = lowering.tensors[value].to_laid_out_tensor().all_slices
        assignments.append(lowering.variables[variable].assign_to_slices(op.assign_fn, values))
    lowering.operations[op] = assignments[0] if len(assignments) == 1 else tf.group(assignments)


@register(mtf.ScalarMultiplyOperation)
def lower_scalar_multiply(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """A number becomes one constant on each device."""
    if not isinstance(op._scalar, (int, float)):
        type(op).lower(op, lowering)
        return
    multiply = functools.partial(binary, "Mul", y=op._scalar)
    set_output(op, lowering, lowering.mesh_impl(op).slicewise(multiply, lowering.tensors[op.inputs[0]]))


@register(mtf.Constant)
def lower_constant(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Each processor makes its own slice of a constant."""
    mesh_impl = lowering.mesh_impl(op)
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype

    def make(pnum: int) -> tf.Tensor:
        size = mesh_impl.slice_shape(shape, pnum)
        if is_one_number:
            return tf.fill(constant(size), constant(op._value, dtype))
        box = tuple(slice(b, b + n) for b, n in zip(mesh_impl.slice_begin(shape, pnum), size, strict=True))
        return tf.constant(np.reshape(op._value, shape.to_integer_list)[box], dtype)

    is_one_number = np.ndim(op._value) == 0
    processors = mesh_impl.processors(shape, lambda pnum: None if is_one_number else pnum)
    set_output(op, lowering, mesh_impl.slicewise(make, processors))


@register(mtf.OneHotOperation)
def lower_one_hot(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Each processor looks for the indices within its own slice of the one-hot dimension."""
    mesh_impl = lowering.mesh_impl(op)
    shape = op.outputs[0].shape

    def one_hot(indices: tf.Tensor, pnum: int) -> tf.Tensor:
        return tf.one_hot(
            indices - mesh_impl.slice_begin(shape, pnum)[-1],
            mesh_impl.slice_shape(shape, pnum)[-1],
            on_value=tf.cast(op._on_value, op._dtype),
            off_value=tf.cast(op._off_value, op._dtype),
            dtype=op._dtype,
        )

    indices = lowering.tensors[op.inputs[0]]
    processors = mesh_impl.processors(shape, lambda pnum: mesh_impl.slice_begin(shape, pnum)[-1])
    set_output(op, lowering, mesh_impl.slicewise(one_hot, indices, processors))


@register(mtf.GenericGradOperation)
def lower_generic_grad(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """TensorFlow's gradient of a slicewise function, made on the slice's own device.

    The inputs are held fixed against each other: where one was computed from another, mtf differentiates that step
    itself, and following it here as well would count it twice.
    """
    mesh_impl = lowering.mesh_impl(op)
    forward = op._forward_op

    lists = [forward.inputs, forward.outputs, op._grad_ys]
    ends = list(itertools.accumulate(map(len, lists)))

    def differentiate(*slices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        xs, ys, dys = slices[: ends[0]], slices[ends[0] : ends[1]], slices[ends[1] :]
        return tuple(tf.gradients(ys, xs, dys, stop_gradients=xs, unconnected_gradients=tf.UnconnectedGradients.ZERO))

    gradients = mesh_impl.slicewise(differentiate, *[lowering.tensors[t] for tensors in lists for t in tensors])
    for output, gradient in zip(op.outputs, gradients, strict=True):
        lowering.set_tensor_lowering(output, gradient)


def _add_at_once(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """A sum that TensorFlow's optimizers do not merge with those it adds up, which would take all addends at once."""
    return opaque(x) + opaque(y)


def is_bias(op: mtf.Operation) -> bool:
    """Whether an AddOperation adds numbers to the last dimension."""
    x, y = op.inputs
    return (
        x.shape == op.outputs[0].shape
        and x.shape.ndims >= 2
        and y.shape.dims == x.shape.dims[-1:]
        and x.dtype.is_floating
    )


@register(mtf.AddOperation)
def lower_add(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """A bias is added to the last dimension as TensorFlow's operation for it, which is fused with a convolution.

    A sum of sums is added up as its parts come, so that the gradients of rounds are not all held until the last.
    """
    (x, y), output, mesh_impl = op.inputs, op.outputs[0], lowering.mesh_impl(op)
    laid_out = [lowering.tensors[tensor] for tensor in op.inputs]
    if is_bias(op):
        set_output(op, lowering, mesh_impl.slicewise(tf.nn.bias_add, *laid_out))
    elif x.shape == y.shape and any(isinstance(t.operation, mtf.AddOperation) for t in op.inputs):
        lowering.set_tensor_lowering(output, mesh_impl.slicewise_delay_allreduce(_add_at_once, *laid_out))
    else:
        type(op).lower(op, lowering)


@register(mtf.SlicewiseOperation)
def lower_slicewise(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """A function of slices: it may be split only along the dimensions that its author declared splittable."""
    dims = {dim for t in [*op.inputs, *op.outputs] for dim in t.shape.dims if dim.name not in op.splittable_dims}
    require_whole(op, lowering, sorted(dims), "a slicewise function")
    type(op).lower(op, lowering)

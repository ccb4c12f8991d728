"""Operations that each processor does on its own slice, once it knows where that slice begins and ends."""

import functools
import itertools

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import binary, constant
from mtf_hetero.lowering.execution import mtf_lower
from mtf_hetero.lowering.lowering import Lowering
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor
from mtf_hetero.ops.registry import register_lowering, require_whole


@register_lowering(mtf.Variable, is_local=True)
def lower_variable(op: mtf.Variable, lowering: Lowering) -> None:
    """Read each slice once, so that a step sees one value of it however its updates are scheduled.

    mtf hands on the tf.Variable itself, which on TensorFlow 2 is read anew by every operation that uses it, before or
    after the same step's update.
    """
    mesh_impl = lowering.uneven(op)
    lowering.variables[op] = variable = mesh_impl.LaidOutVariable(op, mesh_impl, lowering.holders(op))
    lowering.set_tensor_lowering(op.outputs[0], _as_activation(mesh_impl, op, variable.value))
    lowering.add_counter("variables/trainable" if op.trainable else "variables/untrainable", op.outputs[0].size)


@register_lowering(mtf.ReadVariable, is_local=True)
def lower_read_variable(op: mtf.ReadVariable, lowering: Lowering) -> None:
    """Read each slice at this point of the program."""
    mesh_impl = lowering.uneven(op)
    value = lowering.variables[op._var].laid_out_tensor
    lowering.set_tensor_lowering(op.outputs[0], _as_activation(mesh_impl, op._var, value))


def _as_activation(mesh_impl: UnevenMeshImpl, variable: mtf.Variable, value: LaidOutTensor) -> LaidOutTensor:
    """Return the values read from a variable in the type of the computation."""
    if variable.slice_dtype == variable.activation_dtype:
        return LaidOutTensor(list(value.tensor_list))
    return mesh_impl.slicewise(functools.partial(tf.cast, dtype=variable.activation_dtype), value)


@register_lowering(mtf.Assign)
def lower_assign(op: mtf.Assign, lowering: Lowering) -> None:
    """Make one operation that waits for all slices of all variables."""
    assignments = []
    for variable, value in zip(op.variables, op.inputs, strict=True):
        values = lowering.tensors[value].to_laid_out_tensor().all_slices
        assignments.append(lowering.variables[variable].assign_to_slices(op.assign_fn, values))
    lowering.operations[op] = assignments[0] if len(assignments) == 1 else tf.group(assignments)


@register_lowering(mtf.ScalarMultiplyOperation, is_local=True)
def lower_scalar_multiply(op: mtf.ScalarMultiplyOperation, lowering: Lowering) -> None:
    """Multiply by one constant on each device."""
    if not isinstance(op._scalar, (int, float)):
        mtf_lower(op, lowering)
        return
    multiply = functools.partial(binary, "Mul", y=op._scalar)
    lowering.set_tensor_lowering(op.outputs[0], lowering.uneven(op).slicewise(multiply, lowering.tensors[op.inputs[0]]))


@register_lowering(mtf.Constant, is_local=True)
def lower_constant(op: mtf.Constant, lowering: Lowering) -> None:
    """Make each processor's own slice of a constant."""
    mesh_impl = lowering.uneven(op)
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype

    def make(pnum: int) -> tf.Tensor:
        size = mesh_impl.slice_shape(shape, pnum)
        if is_one_number:
            return tf.fill(constant(size), constant(op._value, dtype))
        box = tuple(slice(b, b + n) for b, n in zip(mesh_impl.slice_begin(shape, pnum), size, strict=True))
        return tf.constant(np.reshape(op._value, shape.to_integer_list)[box], dtype)

    is_one_number = np.ndim(op._value) == 0
    processors = mesh_impl.processors(shape, lambda pnum: None if is_one_number else pnum)
    lowering.set_tensor_lowering(op.outputs[0], mesh_impl.slicewise(make, processors))


@register_lowering(mtf.OneHotOperation, is_local=True)
def lower_one_hot(op: mtf.OneHotOperation, lowering: Lowering) -> None:
    """Look for the indices within each processor's slice of the one-hot dimension."""
    mesh_impl = lowering.uneven(op)
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
    lowering.set_tensor_lowering(op.outputs[0], mesh_impl.slicewise(one_hot, indices, processors))


@register_lowering(mtf.GenericGradOperation, is_local=True)
def lower_generic_grad(op: mtf.GenericGradOperation, lowering: Lowering) -> None:
    """Make TensorFlow's gradient of a slicewise function on the slice's own device.

    The inputs are held fixed against each other: where one was computed from another, mtf differentiates that step
    itself, and following it here as well would count it twice.
    """
    mesh_impl = lowering.uneven(op)
    forward = op._forward_op

    lists = [forward.inputs, forward.outputs, op._grad_ys]
    ends = list(itertools.accumulate(map(len, lists)))

    def differentiate(*slices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        xs, ys, dys = slices[: ends[0]], slices[ends[0] : ends[1]], slices[ends[1] :]
        return tuple(tf.gradients(ys, xs, dys, stop_gradients=xs, unconnected_gradients=tf.UnconnectedGradients.ZERO))

    gradients = mesh_impl.slicewise(differentiate, *[lowering.tensors[t] for tensors in lists for t in tensors])
    for output, gradient in zip(op.outputs, gradients, strict=True):
        lowering.set_tensor_lowering(output, gradient)


@register_lowering(mtf.SlicewiseOperation, is_local=True)
def lower_slicewise(op: mtf.SlicewiseOperation, lowering: Lowering) -> None:
    """Apply a function of slices, split only along the dimensions that its author declared splittable."""
    dims = {dim for t in [*op.inputs, *op.outputs] for dim in t.shape.dims if dim.name not in op.splittable_dims}
    require_whole(op, lowering.uneven(op).layout, sorted(dims), "a slicewise function")
    mtf_lower(op, lowering)

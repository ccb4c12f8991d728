"""Operations that each processor does on its own slice, once it knows where that slice begins and ends."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import binary, constant
from mtf_hetero.lowering.backend import Backend
from mtf_hetero.lowering.execution import mtf_lower
from mtf_hetero.lowering.halo import opaque
from mtf_hetero.lowering.lowering import Lowering
from mtf_hetero.lowering.registry import register, register_lowering, require_whole
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor


@register_lowering(mtf.Variable, is_local=True)
def lower_variable(op: mtf.Variable, lowering: Lowering) -> None:
    """Read each slice once, so that a step sees one value of it however its updates are scheduled.

    mtf hands on the tf.Variable itself, which on TensorFlow 2 is read anew by every operation that uses it, before or
    after the same step's update.
    """
    mesh_impl = lowering.uneven(op)
    lowering.variables[op] = variable = mesh_impl.LaidOutVariable(op, mesh_impl)
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


def _add_at_once(x: tf.Tensor, y: tf.Tensor, *, are_sums: Sequence[bool]) -> tf.Tensor:
    """Add, so that TensorFlow's optimizers do not merge the sum with its addends, which would need all at once."""
    x, y = (opaque(addend) if is_sum else addend for addend, is_sum in zip((x, y), are_sums, strict=True))
    return x + y


def is_bias(op: mtf.AddOperation) -> bool:
    """Return whether an AddOperation adds numbers to the last dimension."""
    x, y = op.inputs
    return (
        x.shape == op.outputs[0].shape
        and x.shape.ndims >= 2
        and y.shape.dims == x.shape.dims[-1:]
        and x.dtype.is_floating
    )


@register(mtf.BinaryOpWithBroadcasting)
def binary_operation(op: mtf.BinaryOpWithBroadcasting, backend: Backend) -> None:
    """Add or combine slices otherwise. Of two outstanding sums, the addends are added.

    A bias is added to the last dimension as TensorFlow's operation for it, which is fused with a convolution. A sum of
    sums is added up as its parts come, so that the gradients of rounds are not all held until the last.
    """
    (a, b), (output,) = op.inputs, op.outputs
    if isinstance(op, mtf.AddOperation) and is_bias(op):
        backend.set(output, backend.local(output, tf.nn.bias_add, *map(backend.slices, op.inputs)))
    elif op._tf_fn != tf.add or a.shape != b.shape or a.shape != output.shape:
        backend.mtf_lower(op)
    else:
        are_sums = [isinstance(x.operation, mtf.AddOperation) for x in op.inputs]
        function = functools.partial(_add_at_once, are_sums=are_sums) if any(are_sums) else op._tf_fn
        x, y = backend.laid_out(a), backend.laid_out(b)
        if isinstance(x, list) or isinstance(y, list) or x.axes != y.axes:
            backend.set(output, backend.local(output, function, *map(backend.slices, op.inputs)))
            return
        addends = backend.local(output, function, x.partial, y.partial)
        backend.set(output, backend.derived(x, addends, x.absent & y.absent))


@register(mtf.StopGradient)
def pass_on(op: mtf.StopGradient, backend: Backend) -> None:
    """Return the input itself."""
    backend.set(op.outputs[0], backend.laid_out(op.inputs[0]))


@register(mtf.CustomGradientOperation)
def custom_gradient(op: mtf.CustomGradientOperation, backend: Backend) -> None:
    """Return the results of the operations inside."""
    for inner, output in zip(op._fn_outputs, op.outputs, strict=True):
        backend.set(output, backend.laid_out(inner))


@register_lowering(mtf.SlicewiseOperation, is_local=True)
def lower_slicewise(op: mtf.SlicewiseOperation, lowering: Lowering) -> None:
    """Apply a function of slices, split only along the dimensions that its author declared splittable."""
    dims = {dim for t in [*op.inputs, *op.outputs] for dim in t.shape.dims if dim.name not in op.splittable_dims}
    require_whole(op, lowering.uneven(op).layout, sorted(dims), "a slicewise function")
    mtf_lower(op, lowering)

"""The layers of an mtf graph: a contraction or a lookup with a trainable variable, and the operations around it."""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph.walk import underlying_variable
from mtf_hetero.ops.traits import find_traits

# These have no part in the time of a step, and belong to no layer.
_RESIDENT = (mtf.Variable, mtf.ReadVariable, mtf.ImportOperation, mtf.ImportLaidOutTensorOperation, mtf.Assign)


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """An operation that contracts an activation with a trainable variable, or looks up rows of one.

    Args:
      operation: the convolution, einsum or lookup.
      x: the activation, or the ids, an mtf.Tensor.
      inputs: names of the kernel's dimensions that are summed over, the largest first; of a lookup, that of its rows.
      outputs: names of the kernel's dimensions that it adds to the activation's, the largest first.
      work: multiply-adds; of a lookup, elements that it gives.
      weights: elements of the kernel.
    """

    operation: mtf.Operation
    x: mtf.Tensor
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    work: int
    weights: int

    @property
    def is_convolution(self) -> bool:
        """Return whether it is a convolution, and not a dense layer."""
        return find_traits(self.operation).images is not None


def list_layers(graph: mtf.Graph) -> list[Layer]:
    """List the layers of a graph in its order; of several uses of a variable, gradients among them, the first."""
    result = []
    trainable, used = set(graph.trainable_variables), set()
    for op in graph.operations:
        kernels = list_kernels(op, trainable) if find_traits(op).is_layer and len(op.inputs) == 2 else []
        if len(kernels) != 1 or kernels[0][1] in used:
            continue
        kernel, variable = kernels[0]
        x = op.inputs[0] if op.inputs[1] is kernel else op.inputs[1]
        if (layer := _layer(op, x, kernel)) is not None:
            result.append(layer)
            used.add(variable)
    return result


def list_kernels(
    op: mtf.Operation, variables: Collection[mtf.Variable] | None = None
) -> list[tuple[mtf.Tensor, mtf.Variable]]:
    """List the inputs of an operation that are variables, with these.

    Args:
      op: the operation.
      variables: those that count; None: all.
    """
    found = ((x, underlying_variable(x)) for x in op.inputs)
    return [(x, v) for x, v in found if v is not None and (variables is None or v in variables)]


def _layer(op: mtf.Operation, x: mtf.Tensor, kernel: mtf.Tensor) -> Layer | None:
    y, is_lookup = op.outputs[0].shape.dims, find_traits(op).rows is not None
    inputs = [dim for dim in kernel.shape.dims if (is_lookup or dim in x.shape.dims) and dim not in y]
    outputs = [dim for dim in kernel.shape.dims if dim in y and dim not in x.shape.dims]
    if not inputs or not outputs:
        return None
    work = mtf.Shape(y if is_lookup else list(dict.fromkeys([*kernel.shape.dims, *y]))).size
    return Layer(op, x, _by_size(inputs), _by_size(outputs), work, kernel.shape.size)


def _by_size(dims: Iterable[mtf.Dimension]) -> tuple[str, ...]:
    return tuple(dim.name for dim in sorted(dims, key=lambda dim: -dim.size))


def assign_layers(operations: Sequence[mtf.Operation], trainable: Sequence[mtf.Variable]) -> dict[mtf.Operation, str]:
    """Map each operation to its layer: that of its kernel, or of its inputs."""
    trainable_set = set(trainable)
    contracted: dict[mtf.Tensor, list[mtf.Variable]] = collections.defaultdict(list)  # {activation: kernels}
    owner: dict[mtf.Operation, str] = {}
    order = {op: i for i, op in enumerate(operations)}
    last = "input"
    for op in operations:
        if isinstance(op, _RESIDENT):
            continue
        traits = find_traits(op)
        kernel = _kernel(op, trainable_set, contracted) if traits.multiplied or traits.rows else None
        if kernel is not None:
            owner[op] = last = _layer_name(kernel)
            continue
        before = [x.operation for x in op.inputs if owner.get(x.operation, "input") != "input"]
        variables = [_layer_name(x.operation) for x in op.inputs if isinstance(x.operation, mtf.Variable)]
        named = [name for name in variables if name in owner.values()]
        owner[op] = owner[max(before, key=order.__getitem__)] if before else named[0] if named else last
    return owner


def _layer_name(variable: mtf.Variable) -> str:
    """Return "conv1" for "conv1/kernel", or an optimizer's "conv1/kernel_slot_v"."""
    return variable.name.rpartition("/")[0] or variable.name


def _kernel(
    op: mtf.Operation, trainable: set[mtf.Variable], contracted: dict[mtf.Tensor, list[mtf.Variable]]
) -> mtf.Variable | None:
    """Return the trainable variable of a contraction or a lookup, or the one whose gradient it is; or None."""
    kernels = list_kernels(op, trainable)
    if len(kernels) == 1:
        ((_, kernel),) = kernels
        for x in op.inputs:
            if underlying_variable(x) is None:
                contracted[x].append(kernel)
        return kernel
    dims = _dims(op.outputs[0].shape)
    return next((v for x in op.inputs for v in contracted.get(x, ()) if _dims(v.shape) == dims), None)


def _dims(shape: mtf.Shape) -> set[mtf.Dimension]:
    """Return the dimensions that count anything."""
    return {dim for dim in shape.dims if dim.size > 1}

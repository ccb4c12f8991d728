"""What a recipe needs to know of an mtf graph: its layers, which of them feed which, and its renamed dimensions."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from mtf_hetero import blocks
from mtf_hetero._compat import mtf
from mtf_hetero._support import graphs
from mtf_hetero.layers import LookupOperation

CONVOLUTIONS = (
    mtf.Conv2dOperation,
    mtf.Conv3dOperation,
    mtf.Conv2dTransposeOperation,
    mtf.Conv3dTransposeOperation,
)


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
    def names(self) -> set[str]:
        """Names of the dimensions of all that it reads and makes."""
        tensors = [*self.operation.inputs, *self.operation.outputs]
        return {name for tensor in tensors for name in tensor.shape.dimension_names}

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution, and not a dense layer."""
        return isinstance(self.operation, CONVOLUTIONS)


def _by_size(dims: Iterable[mtf.Dimension]) -> tuple[str, ...]:
    return tuple(dim.name for dim in sorted(dims, key=lambda dim: -dim.size))


def _layer(op: mtf.Operation, x: mtf.Tensor, kernel: mtf.Tensor) -> Layer | None:
    y, is_lookup = op.outputs[0].shape.dims, isinstance(op, LookupOperation)
    inputs = [dim for dim in kernel.shape.dims if (is_lookup or dim in x.shape.dims) and dim not in y]
    outputs = [dim for dim in kernel.shape.dims if dim in y and dim not in x.shape.dims]
    if not inputs or not outputs:
        return None
    work = mtf.Shape(y if is_lookup else list(dict.fromkeys([*kernel.shape.dims, *y]))).size
    return Layer(op, x, _by_size(inputs), _by_size(outputs), work, kernel.shape.size)


def layers(graph: mtf.Graph) -> list[Layer]:
    """The layers of a graph in its order; of several uses of a variable, gradients among them, the first."""
    result = []
    trainable, used = set(graph.trainable_variables), set()
    for op in graph.operations:
        if len(op.inputs) != 2 or not isinstance(op, (*CONVOLUTIONS, mtf.EinsumOperation, LookupOperation)):
            continue
        kernels = [(x, variable) for x in op.inputs if (variable := graphs.variable_of(x)) in trainable]
        if len(kernels) != 1 or kernels[0][1] in used:
            continue
        kernel, variable = kernels[0]
        x = op.inputs[0] if op.inputs[1] is kernel else op.inputs[1]
        if (layer := _layer(op, x, kernel)) is not None:
            result.append(layer)
            used.add(variable)
    return result


def ancestors(tensors: Iterable[mtf.Tensor]) -> set[mtf.Operation]:
    """The operations from which tensors are computed."""
    return graphs.mtf_ancestors(tensor.operation for tensor in tensors)


def renames(operations: Iterable[mtf.Operation]) -> Mapping[str, set[str]]:
    """{new name: old names} of the dimensions that reshapes among the operations rename."""
    old_names: dict[str, set[str]] = collections.defaultdict(set)
    for op in operations:
        if isinstance(op, mtf.ReshapeOperation):
            for old, new in blocks.aligned(op.inputs[0].shape.dims, op.outputs[0].shape.dims):
                old_names[new].add(old)
    return old_names


def path_from(name: str, origins: set[str], sources: Mapping[str, set[str]]) -> list[str] | None:
    """The names that a dimension had, from `name` back to one of `origins` (which ends the path), or None.

    Args:
      name: where to begin.
      origins: names to reach.
      sources: {new name: old names}.
    """
    paths = collections.deque([[name]])
    seen = {name}
    while paths:
        path = paths.popleft()
        if path[-1] in origins:
            return path
        for old in sorted(sources.get(path[-1], ())):
            if old not in seen:
                seen.add(old)
                paths.append([*path, old])
    return None

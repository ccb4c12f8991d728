"""Walk the operations of an mtf graph: those of a step, those inside loops, those before and after a tensor."""

import collections
from collections.abc import Iterable, Iterator, Mapping

from mtf_hetero._compat import mtf
from mtf_hetero._support.graphs import reachable
from mtf_hetero.graph import merging


def within(operations: Iterable[mtf.Operation]) -> Iterator[mtf.Operation]:
    """Yield the operations, and those inside their loops and choices."""
    for op in operations:
        yield op
        for block in getattr(op, "blocks", ()):
            yield from within(block)
        if isinstance(op, mtf.WhileLoopOperation):
            yield from within(op._cond_ops)
            yield from within(op._body_ops)


def ancestors(operations: Iterable[mtf.Operation]) -> set[mtf.Operation]:
    """Return the operations, and all whose outputs they are computed from."""
    return reachable(operations, lambda op: [tensor.operation for tensor in op.inputs])


def updates(graph: mtf.Graph) -> list[mtf.Operation]:
    """List the operations that assign a variable."""
    return [op for op in graph.operations if isinstance(op, mtf.Assign)]


def live_operations(graph: mtf.Graph) -> list[mtf.Operation]:
    """List the operations that are lowered and run in a step, in the graph's order."""
    _, unneeded = merging.plan(graph.operations)
    needed = ancestors(updates(graph) or graph.operations)
    return [op for op in graph.operations if op in needed and op not in unneeded]


def readers(operations: Iterable[mtf.Operation]) -> Mapping[mtf.Tensor, list[mtf.Operation]]:
    """Map each tensor to the operations that read it, in their order."""
    found: dict[mtf.Tensor, list[mtf.Operation]] = collections.defaultdict(list)
    for op in operations:
        for x in op.inputs:
            found[x].append(op)
    return found


def imported(graph: mtf.Graph) -> list[mtf.Shape]:
    """List the shapes of the tensors that a graph imports from TensorFlow, without scalars."""
    kinds = (mtf.ImportOperation, mtf.ImportLaidOutTensorOperation)
    shapes = [op.outputs[0].shape for op in graph.operations if isinstance(op, kinds)]
    return [shape for shape in shapes if shape.ndims]


def tensor_shapes(graph: mtf.Graph) -> list[mtf.Shape]:
    """List the shapes of all tensors, in the order of the graph."""
    return [tensor.shape for op in graph.operations for tensor in op.outputs]


def underlying_variable(tensor: mtf.Tensor) -> mtf.Variable | None:
    """Return the variable that a tensor is, but for casts, reshapes and functions of elements; None for any other."""
    op = tensor.operation
    while len(op.inputs) == 1 and _has_same_elements(op):
        op = op.inputs[0].operation
    return op if isinstance(op, mtf.Variable) else None


def _has_same_elements(op: mtf.Operation) -> bool:
    """Return whether an operation of one tensor gives a result for each of its elements."""
    if isinstance(op, mtf.SlicewiseOperation):
        return op.inputs[0].shape == op.outputs[0].shape
    is_transpose = isinstance(op, mtf.EinsumOperation) and set(op.inputs[0].shape.dims) == set(op.outputs[0].shape.dims)
    return is_transpose or isinstance(op, mtf.ReshapeOperation)


def size_bytes(tensor: mtf.Tensor) -> int:
    """Return the size of an unsplit tensor."""
    return tensor.shape.size * tensor.dtype.size

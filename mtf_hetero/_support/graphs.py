"""What an operation of a graph needs, of TensorFlow's graphs and of mtf's, in one place."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from mtf_hetero._compat import mtf, tf

_T = TypeVar("_T")


def reachable(starts: Iterable[_T], before: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """The starts, and all that `before` leads to from them.

    Example:
      >>> sorted(reachable([12], lambda n: [n // 2, n // 3] if n else []))
      [0, 1, 2, 3, 4, 6, 12]
    """
    left = list(starts)
    seen = set(left)
    while left:
        new = set(before(left.pop())) - seen
        seen |= new
        left.extend(new)
    return seen


def before(op: tf.Operation) -> list[tf.Operation]:
    """What an operation of TensorFlow waits for; one that makes several of its inputs, as often."""
    return [*(x.op for x in op.inputs), *op.control_inputs]


def ancestors(operations: Iterable[tf.Operation], fed: Iterable[tf.Tensor] = ()) -> set[tf.Operation]:
    """Operations of TensorFlow, and all that they wait for.

    Args:
      operations: tf.Operations.
      fed: tensors that nobody computes.
    """
    names = {tensor.name for tensor in fed}
    return reachable(operations, lambda op: [x.op for x in op.inputs if x.name not in names] + list(op.control_inputs))


def needed(fetches: Iterable[tf.Tensor | tf.Operation], fed: Iterable[tf.Tensor] = ()) -> list[tf.Operation]:
    """The operations that a session runs for its fetches: each after its inputs, else in the order of their making.

    Args:
      fetches: tf.Tensors and tf.Operations of one graph.
      fed: tensors that are fed.
    """
    names = {tensor.name for tensor in fed}
    fetched = [getattr(x, "op", x) for x in fetches if x.name not in names]
    wanted = ancestors(fetched, fed)
    return _after_inputs(op for op in fetched[0].graph.get_operations() if op in wanted) if fetched else []


def _after_inputs(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Each after those that it waits for, wherever there is no loop: one that is new may be read by older ones."""
    operations = list(operations)
    wanted, opened = set(operations), set()
    order: dict[tf.Operation, None] = {}
    for op in operations:
        left = [op]
        while left:
            last = left[-1]
            waited = () if last in opened else before(last)
            opened.add(last)
            missing = [x for x in waited if x in wanted and x not in opened]
            left += missing
            if not missing:
                order[left.pop()] = None
    return list(order)


def mtf_ancestors(operations: Iterable[mtf.Operation]) -> set[mtf.Operation]:
    """Operations of mtf, and all whose outputs they are computed from."""
    return reachable(operations, lambda op: [tensor.operation for tensor in op.inputs])


def mtf_shapes(graph: mtf.Graph) -> list[mtf.Shape]:
    """The shapes of all tensors, in the order of the graph."""
    return [tensor.shape for op in graph.operations for tensor in op.outputs]


def mtf_sizes(graph: mtf.Graph) -> dict[str, list[int]]:
    """{dimension: sizes with which it occurs}, in the order of the graph."""
    sizes: dict[str, list[int]] = {}
    for shape in mtf_shapes(graph):
        for dim in shape:
            dim_sizes = sizes.setdefault(dim.name, [])
            if dim.size not in dim_sizes:
                dim_sizes.append(dim.size)
    return sizes


def mtf_size_bytes(tensor: mtf.Tensor) -> int:
    """The size of an mtf.Tensor as a whole."""
    return tensor.shape.size * tensor.dtype.size


def variable_of(tensor: mtf.Tensor) -> mtf.Variable | None:
    """The mtf.Variable that an mtf.Tensor is, but for a cast, a reshape or a function of elements; or None."""
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

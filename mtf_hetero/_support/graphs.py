"""Find what an operation of a TensorFlow graph needs."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from mtf_hetero._compat import tf

_T = TypeVar("_T")


def reachable(starts: Iterable[_T], before: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """Return the starts and all nodes that `before` leads to from them.

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
    """Return the operations that an operation of TensorFlow waits for, one for each of its inputs."""
    return [*(x.op for x in op.inputs), *op.control_inputs]


def roots(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Return the operations that wait for no other one of them."""
    own = dict.fromkeys(operations)
    return [op for op in own if own.keys().isdisjoint(before(op))]


def ancestors(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Return operations of TensorFlow, and all operations that they wait for."""
    return reachable(operations, before)


def operations_to_run(fetches: Iterable[tf.Tensor | tf.Operation]) -> list[tf.Operation]:
    """Return the operations that a session runs for its fetches: each after its inputs, then by age."""
    fetched = [x if isinstance(x, tf.Operation) else x.op for x in fetches]
    wanted = ancestors(fetched)
    return _after_inputs(op for op in fetched[0].graph.get_operations() if op in wanted) if fetched else []


def _after_inputs(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Sort operations so that each follows its inputs, except in loops. An old operation may read a newer one."""
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

"""Compute first what other devices wait for: control edges that send messages as early as possible.

TensorFlow runs ready operations in an order of its own. It may convolve an image before it cuts the edge for which a
neighbour waits. It may compute a kernel's gradient, for which nothing waits, before the image's.
"""

import graphlib
import heapq
from collections.abc import Iterator

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, garbage, graphs
from mtf_hetero.mesh.traffic.fusing import fuse
from mtf_hetero.mesh.traffic.turns import take_turns
from mtf_hetero.mesh.traffic.waiting import IsMessage, Waiting, find_waiting, is_heavy

_CUTS = facts.CONVERTING | facts.JOINING | facts.SLICES


@garbage.without_collection()
def arrange(fetches: object, *, is_message: IsMessage | None = None, already_run: int = 0) -> None:
    """Make a step wait less for messages, and keep less: `fuse`, `take_turns`, `prioritize`, with the same arguments.

    Example:
      >>> traffic.arrange([loss, train_op])  # before a session runs anything
    """
    fuse(fetches, is_message=is_message, already_run=already_run)
    take_turns(fetches, already_run=already_run)
    prioritize(fetches, is_message=is_message, already_run=already_run)


def prioritize(fetches: object, *, is_message: IsMessage | None = None, already_run: int = 0) -> int:
    """Put first what other devices wait for, in TensorFlow's default graph; results stay the same.

    A piece of a tensor that is sent is cut before the tensor is used otherwise. Of two products (or convolutions) of
    one tensor that are ready as early, the one comes first for which more messages, one after another, wait. Steps with
    loops keep their order, and those of one process.

    Args:
      fetches: what a session runs at once, each time: tensors and operations of a training step, in any nest.
      is_message: as in `fuse`.
      already_run: as in `fuse`.

    Returns:
      The number of control edges.

    Example:
      >>> traffic.prioritize([loss, train_op])
      38
    """
    waiting = find_waiting(fetches, is_message, already_run)
    if waiting is None:
        return 0
    place = _urgent_first(waiting)
    edges = {
        (first, then)
        for first, then in _edges(waiting)
        if place[first] < place[then]  # so that no edges make a circle
        and then not in waiting.fixed
    }
    for first, then in sorted(edges, key=lambda edge: (place[edge[0]], place[edge[1]])):
        then._add_control_input(first)
    return len(edges)


def _urgent_first(waiting: Waiting) -> dict[tf.Operation, int]:
    """Order operations after those that they wait for, and first those for which the most messages wait."""
    operations, around = waiting.operations, waiting.around
    number_of = {op: number for number, op in enumerate(operations)}
    left = graphlib.TopologicalSorter({op: graphs.before(op) for op in operations})
    left.prepare()
    ready: list[tuple[int, int]] = []
    place: dict[tf.Operation, int] = {}
    while left.is_active():
        for op in left.get_ready():
            heapq.heappush(ready, (-around[op].after, number_of[op]))
        op = operations[heapq.heappop(ready)[1]]
        place[op] = len(place)
        left.done(op)
    return place


def _edges(waiting: Waiting) -> Iterator[tuple[tf.Operation, tf.Operation]]:
    """Yield pairs of operations of one device of which the first should come first."""
    around, readers = waiting.around, _readers(waiting)

    def is_as_early(first: tf.Operation, then: tf.Operation) -> bool:
        return around[first].before <= around[then].before and around[first].depth <= around[then].depth

    sent = {message.tensor.op: None for message in waiting.messages.values()}
    for op in sent:
        for x in _cut_from(op, waiting):
            yield from ((op, reader) for reader in readers[x] if reader not in sent and is_as_early(op, reader))
    for ops in readers.values():
        products = [op for op in ops if is_heavy(op)]
        for first in products:
            for then in products:
                if around[first].after > around[then].after and is_as_early(first, then):
                    yield first, then


def _readers(waiting: Waiting) -> dict[str, list[tf.Operation]]:
    """Map the name of each tensor to the operations that read it on the device that makes it."""
    readers: dict[str, list[tf.Operation]] = {}
    for op in waiting.operations:
        for name in dict.fromkeys(x.name for x in op.inputs if _is_made(x.op, op, waiting)):
            readers.setdefault(name, []).append(op)
    return readers


def _is_made(op: tf.Operation, reader: tf.Operation, waiting: Waiting) -> bool:
    """Return whether an operation computes on its reader's device, and is no variable or constant."""
    return bool(op.inputs) and op.type != "ReadVariableOp" and waiting.device_of(op) == waiting.device_of(reader)


def _cut_from(sent: tf.Operation, waiting: Waiting) -> Iterator[str]:
    """Yield names of the tensors from which a sent tensor is cut."""
    left, seen = [sent], {sent}
    while left:
        op = left.pop()
        if op.type not in _CUTS:
            continue
        for x in op.inputs:
            if not _is_made(x.op, sent, waiting):
                continue
            yield x.name
            if x.op not in seen:
                seen.add(x.op)
                left.append(x.op)

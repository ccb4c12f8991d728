"""Which tensors of a graph are messages, and how many messages lie before and after each operation."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from mtf_hetero import collectives
from mtf_hetero._compat import tf
from mtf_hetero._support import graphs
from mtf_hetero.traffic.counting import HANDLES, find_device, full_name

IsMessage = Callable[[str, str], bool]  # of two devices: whether a tensor has to be sent from one to the other
_HEAVY = ("Conv", "DepthwiseConv", "MatMul", "BatchMatMul", "Einsum", "_Fused")
_FED = ("Placeholder", "PlaceholderWithDefault")


@dataclasses.dataclass(eq=False)
class Message:
    """A tensor that operations of another process read."""

    tensor: tf.Tensor
    target: str
    readers: list[tuple[tf.Operation, int]]  # and which of their inputs it is

    def is_awaited(self, around: "Mapping[tf.Operation, Around]") -> bool:
        """Whether a product or a convolution waits for it."""
        return any(around[reader].is_heavy for reader, _ in self.readers)


@dataclasses.dataclass
class Around:
    """What lies before and after an operation.

    Args:
      fed: one bit per placeholder that it is computed from.
      before: messages, one after another, until it can be computed.
      after: messages, one after another, that wait for it.
      depth: products and convolutions, one after another, until it can be computed.
      is_heavy: whether a product or a convolution, or what waits for it is.
    """

    fed: int = 0
    before: int = 0
    after: int = 0
    depth: int = 0
    is_heavy: bool = False


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A step in which messages are sent.

    Args:
      operations: each after those that it waits for.
      device_of: a function from an operation to its device.
      messages: {(tensor's name, target): what is sent}, in the order in which it is ready.
      around: what lies before and after each operation.
      fixed: the operations that a session may have run, which stay as they are.
    """

    operations: Sequence[tf.Operation]
    device_of: Callable[[tf.Operation], str]
    messages: Mapping[tuple[str, str], Message]
    around: Mapping[tf.Operation, Around]
    fixed: Collection[tf.Operation]


def is_heavy(op: tf.Operation) -> bool:
    """Whether an operation is a product or a convolution."""
    return op.type.startswith(_HEAVY)


def find_waiting(fetches: Any, chief: str, is_message: IsMessage | None, already_run: int = 0) -> Waiting | None:
    """Who waits for messages in a step of TensorFlow's default graph; None where there are none, or is a loop.

    Args:
      fetches: what a session runs at once.
      chief: the device of the session.
      is_message: None: whatever goes from one process to another is one.
      already_run: number of the graph's operations, in their order, that a session may have run.
    """
    chief = full_name(chief)
    if is_message is None:
        devices = {full_name(op.device, chief) for op in tf.get_default_graph().get_operations()}
        if collectives.share_memory(sorted(devices)):
            return None
        is_message = _are_apart
    operations = graphs.needed(tf.nest.flatten(fetches))
    if any(op.type == "Enter" for op in operations):  # a loop, which has no order
        return None
    device_of = find_device(chief)
    messages = _find_messages(operations, device_of, is_message)
    if not messages:
        return None
    fixed = frozenset(tf.get_default_graph().get_operations()[:already_run])
    return Waiting(operations, device_of, messages, _look_around(operations, messages), fixed)


def _are_apart(source: str, target: str) -> bool:
    return not collectives.share_memory([source, target])


def _find_messages(
    operations: Sequence[tf.Operation],
    device_of: Callable[[tf.Operation], str],
    is_message: IsMessage,
) -> dict[tuple[str, str], Message]:
    """{(tensor's name, target): what is sent}, in the order in which it is ready."""
    sent: dict[tuple[str, str], Message] = {}
    for op in operations:
        for number, x in enumerate(op.inputs):
            source, target = device_of(x.op), device_of(op)
            if source != target and x.dtype.base_dtype not in HANDLES and is_message(source, target):
                sent.setdefault((x.name, target), Message(x, target, [])).readers.append((op, number))
    place = {op: number for number, op in enumerate(operations)}
    return dict(sorted(sent.items(), key=lambda item: place[item[1].tensor.op]))


def _waits(
    op: tf.Operation, crossing: Collection[tuple[tf.Operation, int]]
) -> Iterator[tuple[tf.Operation, bool, bool]]:
    """Yield the operations that one waits for, whether a message lies between, and whether the operation reads it."""
    yield from ((x.op, (op, number) in crossing, True) for number, x in enumerate(op.inputs))
    yield from ((waited, False, False) for waited in op.control_inputs)


def _look_around(
    operations: Sequence[tf.Operation], messages: Mapping[tuple[str, str], Message]
) -> dict[tf.Operation, Around]:
    """What lies before and after each operation."""
    heavy = {op for op in operations if is_heavy(op)}
    around = {op: Around(is_heavy=op in heavy) for op in operations}
    crossing = {read for message in messages.values() for read in message.readers}
    waits = {op: list(_waits(op, crossing)) for op in operations}
    placeholders = 0
    for op in operations:
        at = around[op]
        if op.type in _FED:
            at.fed, placeholders = 1 << placeholders, placeholders + 1
        for waited, messages_between, _ in waits[op]:
            earlier = around[waited]
            at.fed |= earlier.fed
            at.before = max(at.before, earlier.before + messages_between)
            at.depth = max(at.depth, earlier.depth + (waited in heavy))
    for op in reversed(operations):
        at = around[op]
        for waited, messages_between, is_read in waits[op]:
            earlier = around[waited]
            earlier.after = max(earlier.after, at.after + messages_between)
            earlier.is_heavy |= is_read and at.is_heavy
    return around

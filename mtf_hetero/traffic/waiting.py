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


def _look_around(
    operations: Sequence[tf.Operation], messages: Mapping[tuple[str, str], Message]
) -> dict[tf.Operation, Around]:
    """What lies before and after each operation."""
    around = {op: Around(is_heavy=is_heavy(op)) for op in operations}
    crossing = {(message.tensor.name, reader) for message in messages.values() for reader, _ in message.readers}

    def between(op: tf.Operation) -> Iterator[tuple[tf.Operation, int]]:
        """What an operation waits for, and whether a message lies between."""
        yield from ((x.op, (x.name, op) in crossing) for x in op.inputs)
        yield from ((waited, 0) for waited in op.control_inputs)

    placeholders = 0
    for op in operations:
        at = around[op]
        if op.type in _FED:
            at.fed, placeholders = 1 << placeholders, placeholders + 1
        for waited, messages_between in between(op):
            at.fed |= around[waited].fed
            at.before = max(at.before, around[waited].before + messages_between)
            at.depth = max(at.depth, around[waited].depth + is_heavy(waited))
    for op in reversed(operations):
        at = around[op]
        for waited, messages_between in between(op):
            around[waited].after = max(around[waited].after, at.after + messages_between)
        for x in op.inputs:
            around[x.op].is_heavy |= at.is_heavy
    return around

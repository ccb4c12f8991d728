"""Find the messages of a graph, and count those before and after each operation."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, graphs
from mtf_hetero.mesh import collectives
from mtf_hetero.mesh.traffic.counting import HANDLES, device_finder, full_name

IsMessage = Callable[[str, str], bool]  # from two devices to whether a tensor is sent from one to the other
_HEAVY = facts.PRODUCTS | facts.CONVOLUTIONS | facts.DEPTHWISE_CONVOLUTIONS


@dataclasses.dataclass(eq=False)
class Message:
    """A tensor that operations of another process read."""

    tensor: tf.Tensor
    target: str
    readers: list[tuple[tf.Operation, int]]  # and which of their inputs it is

    def is_awaited(self, around: "Mapping[tf.Operation, Around]") -> bool:
        """Return whether a product or a convolution waits for it."""
        return any(around[reader].is_heavy for reader, _ in self.readers)


@dataclasses.dataclass
class Around:
    """The surroundings of an operation.

    Args:
      fed: one bit per placeholder that it is computed from.
      before: messages, one after another, until it can be computed.
      after: messages, one after another, that wait for it.
      depth: products and convolutions, one after another, until it can be computed.
      is_heavy: whether it is a product or a convolution, or one waits for it.
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
      messages: {(tensor's name, target): Message}, in the order in which they are ready.
      around: the surroundings of each operation.
      fixed: the operations that a session may have run, which stay as they are.
    """

    operations: Sequence[tf.Operation]
    device_of: Callable[[tf.Operation], str]
    messages: Mapping[tuple[str, str], Message]
    around: Mapping[tf.Operation, Around]
    fixed: Collection[tf.Operation]


def is_heavy(op: tf.Operation) -> bool:
    """Return whether an operation is a product or a convolution."""
    return op.type in _HEAVY or op.type.startswith("_Fused")


def find_waiting(fetches: object, is_message: IsMessage | None, already_run: int) -> Waiting | None:
    """Return what waits for messages in a step of TensorFlow's default graph; None without messages, or with a loop.

    Args:
      fetches: what a session runs at once.
      is_message: None: whatever goes from one process to another is one.
      already_run: number of the graph's operations, in their order, that a session may have run.
    """
    made = tf.get_default_graph().get_operations()
    if is_message is None:
        devices = {op.device for op in made[already_run:]}  # those of the operations before are the same
        if collectives.share_memory(sorted({full_name(device) for device in devices})):
            return None
        is_message = _are_apart
    operations = graphs.operations_to_run(tf.nest.flatten(fetches))
    if any(op.type in facts.GRAPH_LOOPS for op in operations):  # a loop, which has no order
        return None
    device_of = device_finder()
    messages = _find_messages(operations, device_of, is_message)
    if not messages:
        return None
    fixed = frozenset(made[:already_run])
    return Waiting(operations, device_of, messages, _look_around(operations, messages), fixed)


def _are_apart(source: str, target: str) -> bool:
    return not collectives.share_memory([source, target])


def _find_messages(
    operations: Sequence[tf.Operation],
    device_of: Callable[[tf.Operation], str],
    is_message: IsMessage,
) -> dict[tuple[str, str], Message]:
    """Return {(tensor's name, target): Message}, in the order in which they are ready."""
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
    """Return the surroundings of each operation."""
    heavy = {op for op in operations if is_heavy(op)}
    around = {op: Around(is_heavy=op in heavy) for op in operations}
    crossing = {read for message in messages.values() for read in message.readers}
    waits = {op: list(_waits(op, crossing)) for op in operations}
    placeholders = 0
    for op in operations:
        at = around[op]
        if op.type == "Placeholder":
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

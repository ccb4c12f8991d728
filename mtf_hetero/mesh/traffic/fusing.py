"""Send small tensors in one message if they go the same way, and are needed at the same time.

A small message costs as much time as some hundred kilobytes, and a training step has a gradient for each bias and each
scale. DDP's buckets and Horovod's fusion do the same for gradients alone.
"""

import collections
import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.alike import slot_of_operations
from mtf_hetero._support.ops import concat, constant, reshape
from mtf_hetero.mesh import collectives
from mtf_hetero.mesh.traffic.counting import size_bytes
from mtf_hetero.mesh.traffic.waiting import Around, IsMessage, Message, Waiting, find_waiting

BUCKET_BYTES = 2**22  # of tensors for which nothing waits: a larger one travels alone
SMALL_BYTES = collectives.SMALL_BYTES  # of tensors for which a product waits: copying more costs more than a message


def fuse(fetches: object, *, is_message: IsMessage | None = None, already_run: int = 0) -> int:
    """Send small tensors together in TensorFlow's default graph; results stay the same.

    Two tensors travel together if they have the same source, target and type, and if as many messages, one after
    another, wait for either. If a product or a convolution waits for them, they must also be ready after as many
    messages, and have at most 256 KiB each. Others, such as gradients of weights, are sent as soon as there are 4 MiB.

    A session that fetches a part of a step computes all that travels with it. CPUs of one process need no messages, and
    steps with loops keep theirs.

    Args:
      fetches: what a session runs at once, each time: tensors and operations of a training step, in any nest.
      is_message: from two devices to whether a tensor is sent from one to the other; None: if they share no memory.
      already_run: number of the graph's operations, in their order, that a session may have run. They stay as they are.

    Returns:
      The number of messages that are saved.

    Example:
      >>> traffic.fuse([loss, train_op])
      16
    """
    waiting = find_waiting(fetches, is_message, already_run)
    if waiting is None:
        return 0
    device_of, around = waiting.device_of, waiting.around
    groups: dict[Hashable, list[Message]] = collections.defaultdict(list)
    for message in waiting.messages.values():
        if _can_travel(message, waiting):
            groups[_find_slot(message.tensor.op), *_key(message, device_of, around)].append(message)
    packed: dict[tuple[str, ...], tf.Tensor] = {}  # once for all targets
    return sum(_send_together(bucket, packed) for group in groups.values() for bucket in _buckets(group))


def _can_travel(message: Message, waiting: Waiting) -> bool:
    """Return whether a tensor can travel with others, and is small enough."""
    x, readers = message.tensor, [reader for reader, _ in message.readers]
    operations = [x.op, *readers]
    is_array = x.shape.is_fully_defined() and x.dtype == x.dtype.base_dtype != tf.string
    if not is_array or x.op.type == "Const":  # which TensorFlow may have where it is read
        return False
    if any(not op.device or op._get_control_flow_context() is not None for op in operations):
        return False
    if any(reader in waiting.fixed for reader in readers):
        return False
    return size_bytes(x) <= (SMALL_BYTES if message.is_awaited(waiting.around) else BUCKET_BYTES)


def _find_slot(op: tf.Operation) -> int | None:
    """Return the slot that makes a message, or that of what it is cut from; None: it is of no single slot.

    The messages of two slots do not travel together: the slots compute one after another.
    """
    slots = slot_of_operations(op.graph)
    while slots and op not in slots and len(op.inputs) == 1:
        op = op.inputs[0].op
    return slots.get(op)


def _key(
    message: Message, device_of: Callable[[tf.Operation], str], around: Mapping[tf.Operation, Around]
) -> tuple[Hashable, ...]:
    """Return a key that messages share if they may be one.

    Messages that are needed at the same time do not wait for each other. So one message in place of several makes no
    circle in the graph.
    """
    x, source = message.tensor, around[message.tensor.op]
    after = max(around[reader].after for reader, _ in message.readers)
    ready = source.before if message.is_awaited(around) else None
    return device_of(x.op), message.target, x.dtype, source.fed, after, ready


def _buckets(messages: Sequence[Message]) -> list[list[Message]]:
    """Divide messages that go the same way into those that travel together, in the order in which they are ready."""
    buckets: list[list[Message]] = []
    size = BUCKET_BYTES
    for message in messages:
        if size >= BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(message)
        size += size_bytes(message.tensor)
    return buckets


def _send_together(messages: Sequence[Message], packed: dict[tuple[str, ...], tf.Tensor]) -> int:
    """Make one message of several; return how many are saved."""
    if len(messages) < 2:
        return 0
    tensors = [message.tensor for message in messages]
    names = tuple(x.name for x in tensors)
    with tf.control_dependencies(None):
        if names not in packed:
            with _beside(tensors[0].op):
                packed[names] = concat([reshape(x, [-1]) for x in tensors], 0)
        with _beside(messages[0].readers[0][0]):
            sizes = [x.shape.num_elements() for x in tensors]
            parts = tf.split(packed[names], constant(sizes), constant(0))
            arrived = [reshape(part, x.shape.as_list()) for part, x in zip(parts, tensors, strict=True)]
    for message, x in zip(messages, arrived, strict=True):
        for reader, number in message.readers:
            reader._update_input(number, x)
    return len(messages) - 1


@contextlib.contextmanager
def _beside(op: tf.Operation) -> Iterator[None]:
    """Enter the device of an operation, and its name scope, which tells what sends and what reads."""
    scope = op.name.rpartition("/")[0]
    with tf.device(op.device), tf.name_scope(f"{scope}/" if scope else "fused"):
        yield

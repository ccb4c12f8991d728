"""Fewer messages: small tensors that go the same way, and are needed at the same time, travel as one.

A message costs its sender and its receiver as much time as some hundred kilobytes, however little it carries; a
training step sends a gradient for each bias and each scale. DDP's buckets and Horovod's fusion do the same for
gradients alone.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mtf_hetero import collectives
from mtf_hetero._compat import tf
from mtf_hetero._support.ops import concat, constant, reshape
from mtf_hetero.traffic.counting import CHIEF, size_bytes
from mtf_hetero.traffic.waiting import Around, IsMessage, Message, Waiting, find_waiting

BUCKET_BYTES = 2**22  # of tensors that nothing waits for: sent once there is so much; one of more travels alone
SMALL_BYTES = collectives.SMALL_BYTES  # of tensors that something waits for: copying more costs more than a message


def fuse(fetches: Any, *, chief: str = CHIEF, is_message: IsMessage | None = None, already_run: int = 0) -> int:
    """Sends small tensors together in TensorFlow's default graph; results stay the same.

    Two tensors travel as one where source, target and type are the same, where they are needed at the same time (as
    many messages, one after another, wait for either), and where they are ready after as many messages; the
    latter does not count for what no product or convolution waits for, as the gradients of weights and the loss.
    Of these, what is ready is sent as soon as there are 4 MiB of it. A tensor of more travels alone, as does one of
    more than 256 KiB that a product or a convolution waits for.

    Whoever fetches a part of a step afterwards computes all that travels with it. CPUs of one process read each other's
    memory and need no messages, and steps with loops keep theirs.

    Args:
      fetches: what a session runs at once, each time: tensors and operations of a training step, in any nest.
      chief: the device of the session, as in `sends`.
      is_message: says of two devices whether a tensor has to be sent from one to the other; None: it has to where they
        do not share memory.
      already_run: number of the graph's operations, in their order, that a session may have run. They stay as they are.

    Returns:
      By how many messages a step has fewer.

    Example:
      >>> traffic.fuse([loss, train_op])
      16
    """
    waiting = find_waiting(fetches, chief, is_message, already_run)
    if waiting is None:
        return 0
    device_of, around = waiting.device_of, waiting.around
    groups: dict[Any, list[Message]] = collections.defaultdict(list)
    for message in waiting.messages.values():
        if _can_travel(message, waiting):
            groups[_key(message, device_of, around)].append(message)
    packed: dict[tuple[str, ...], tf.Tensor] = {}  # once for all targets
    return sum(_send_together(bucket, packed) for group in groups.values() for bucket in _buckets(group))


def _can_travel(message: Message, waiting: Waiting) -> bool:
    """Whether a tensor can be put together with others, and is small enough for that."""
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


def _key(message: Message, device_of: Callable[[tf.Operation], str], around: Mapping[tf.Operation, Around]) -> Any:
    """What messages have in common that may be one.

    None of those that are needed at the same time waits for another: all that waits for one of them has fewer messages
    after it than they have. So the graph with one message in place of several has no circle either.
    """
    x, source = message.tensor, around[message.tensor.op]
    after = max(around[reader].after for reader, _ in message.readers)
    ready = source.before if message.is_awaited(around) else None
    return device_of(x.op), message.target, x.dtype, source.fed, after, ready


def _buckets(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages that go the same way, by those that go together: in the order in which they are ready."""
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
    """Makes one message of several; returns by how many there are fewer."""
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
    """On the device of an operation, and in its name scope, by which it is known what sends and what reads."""
    scope = op.name.rpartition("/")[0]
    with tf.device(op.device), tf.name_scope(f"{scope}/" if scope else "fused"):
        yield

"""What a step sends, counted in the lowered graph and read from the trace of a step."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from mtf_hetero import collectives
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import graphs, tables
from mtf_hetero.cluster.devices import Device, shorten

CHIEF = Device("chief", 0, "CPU", 0).name  # the training process, as mtf_hetero.cluster names it
Link = tuple[str, str]

HANDLES = (tf.resource, tf.variant)
_LOOPS = ("Enter", "StatelessWhile", "While")
_METADATA = ("Rank", "Shape", "ShapeN", "Size")
_SENDERS = ("_HostSend", "_Send")


@dataclasses.dataclass(frozen=True)
class Send:
    """A tensor that goes from one device to another, once a step.

    Args:
      source: the device that has it, "/job:worker/task:0/device:CPU:0".
      target: the device that reads it.
      bytes: its size.
      operation: name of the mtf operation that makes it; "" for none.
      consumer: name of the mtf operation that reads it, of several the first; "" for none.
      tensor_name: its name in the TensorFlow graph.
      shape: its extents.
    """

    source: str
    target: str
    bytes: int
    operation: str
    consumer: str
    tensor_name: str
    shape: tuple[int, ...]

    @property
    def in_memory(self) -> bool:
        """Whether source and target are CPUs of one process: then it is read where it lies."""
        return collectives.share_memory([self.source, self.target])


def sends(
    fetches: Any, *, graph: mtf.Graph | None = None, feeds: Sequence[tf.Tensor] = (), chief: str = CHIEF
) -> tuple[Send, ...]:
    """Every tensor that goes from one device to another in a step, from the graph alone.

    What has no device is placed as TensorFlow does: by the variable that it uses; a constant that one device alone
    reads, there; all else at the chief, where feeds come from and fetched tensors go. Handles of variables and control
    edges have no bytes. What a function called by the graph does counts as done by its caller.

    Args:
      fetches: what the session runs: tensors and operations, in any nest.
      graph: the mtf.Graph that was lowered, whose operations are named; None: TensorFlow's name scopes are.
      feeds: the tensors that are fed, beside placeholders.
      chief: the device of the session; what the name of another device leaves out is the chief's.

    Raises:
      NotImplementedError: the step has a loop, whose turns the graph does not show.
      ValueError: the size of a tensor that is sent is not known.
    """
    chief = full_name(chief)
    fetched, fed = tf.nest.flatten(fetches), {x.name for x in feeds}
    device_of = find_device(chief)
    operations = graphs.needed(fetched, feeds)
    if loop := next((op for op in operations if op.type in _LOOPS), None):
        raise NotImplementedError(f"{loop.type} {loop.name!r} is a loop; the traffic of loops cannot be counted")
    reads = [(x, device_of(op), op.name) for op in operations for x in op.inputs]
    reads += [(x, chief, "") for x in fetched if isinstance(x, tf.Tensor)]
    known = None if graph is None else {op.name for op in graph.operations}
    sent: dict[tuple[str, str], Send] = {}
    for x, target, consumer in reads:
        source = chief if x.name in fed or x.op.type == "Placeholder" else device_of(x.op)
        if source == target or (x.name, target) in sent or x.dtype.base_dtype in HANDLES:
            continue
        scopes = find_operation(x.op.name, known), find_operation(consumer, known)
        sent[x.name, target] = Send(source, target, size_bytes(x), *scopes, x.name, tuple(x.shape.as_list()))
    return tuple(sent.values())


@functools.cache
def full_name(device: str, rest: str = CHIEF) -> str:
    """A device's name with all its parts, those that it leaves out from another name."""
    return Device.parse(device).within(Device.parse(rest)).name


def find_device(chief: str) -> Callable[[tf.Operation], str]:
    """A function from an operation to its device."""

    @functools.cache
    def device_of(op: tf.Operation) -> str:
        if op.device:
            return full_name(op.device, chief)
        handles = [x for x in op.inputs if x.dtype.base_dtype == tf.resource]
        if handles or (op.type in _METADATA and op.inputs):
            return device_of((handles or op.inputs)[0].op)
        if not op.inputs and len(op.outputs) == 1:
            readers = [*op.outputs[0].consumers(), *op._control_outputs]
            if op.outputs[0].dtype.base_dtype == tf.resource:  # its readers follow it, unless they have a device
                devices = {full_name(reader.device, chief) for reader in readers if reader.device}
            else:
                devices = {device_of(reader) for reader in readers}
            if len(devices) == 1:
                return devices.pop()
        return chief

    return device_of


def find_operation(name: str, known: Collection[str] | None) -> str:
    """The innermost mtf operation in whose name scope an operation was made.

    Args:
      name: of the operation.
      known: names of mtf operations; None: the scope itself is the answer.
    """
    scope = name.rpartition("/")[0]
    if known is None:
        return scope
    while scope:
        # TensorFlow numbers a scope whose name is in use, as that of a variable is
        for candidate in (scope, re.sub(r"_\d+$", "", scope)):
            if candidate in known:
                return candidate
        scope = scope.rpartition("/")[0]
    return ""


def size_bytes(x: tf.Tensor) -> int:
    """The size of a tensor that is sent. Raises ValueError where it is not known."""
    if not x.shape.is_fully_defined() or x.dtype.base_dtype == tf.string:
        raise ValueError(
            f"tensor {x.name!r} is sent from one device to another, but is {x.dtype.name} of shape {x.shape}, whose "
            "size is not known; give it numbers and a fixed shape"
        )
    return x.shape.num_elements() * x.dtype.base_dtype.size


def _add_up(moves: Iterable[tuple[str, str, int]]) -> dict[Link, int]:
    """Bytes of each link, the busiest first; without links that carry none."""
    totals: dict[Link, int] = {}
    for source, target, size in moves:
        if size and not collectives.share_memory([source, target]):
            totals[source, target] = totals.get((source, target), 0) + size
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def links(sends: Iterable[Send]) -> dict[Link, int]:
    """{(source, target): bytes a step}, the busiest first; without what stays in one memory."""
    return _add_up((send.source, send.target, send.bytes) for send in sends)


def received(metadata: tf.RunMetadata) -> dict[Link, int]:
    """{(source, target): bytes} of a traced step, the busiest first: what `links` counts in the graph.

    What was sent is read from the graphs that the workers ran, once TensorFlow had optimised them; the bytes from the
    type and shape of what each operation put out. TensorFlow's own record of the transfers says the same, but lacks the
    first ones of a session's first traced step, so it is not used.

    Args:
      metadata: tf.RunMetadata of a run with `trace.run_options`.

    Raises:
      ValueError: the run was not traced, or without its graphs.
    """
    if not metadata.partition_graphs or not metadata.step_stats.dev_stats:
        raise ValueError("metadata has no graphs or no statistics; run the step with trace.run_options()")
    sizes = {
        (node.node_name, output.slot): _described_bytes(output.tensor_description)
        for stats in metadata.step_stats.dev_stats
        for node in stats.node_stats
        for output in node.output
    }
    moves = []
    for node in (node for graph in metadata.partition_graphs for node in graph.node):
        if node.op in _SENDERS and not node.attr["client_terminated"].b:
            source, target = (full_name(node.attr[end].s.decode()) for end in ("send_device", "recv_device"))
            name, _, slot = node.input[0].partition(":")
            moves.append((source, target, sizes.get((name, int(slot or 0)), 0)))
    return _add_up(moves)


def _described_bytes(description: Any) -> int:
    if not description.dtype:
        return 0
    return tf.as_dtype(description.dtype).size * math.prod(dim.size for dim in description.shape.dim)


def table(links: Mapping[Link, int]) -> str:
    """The bytes of each link, and of all, in lines of text."""
    rows = [(shorten(source), shorten(target), f"{size:,}") for (source, target), size in links.items()]
    return "\n".join(tables.lines([("from", "to", "bytes"), *rows, ("all", "", f"{sum(links.values()):,}")], "<<>"))


def allreduce_bytes(
    elements: int,
    count: int,
    *,
    item_bytes: int = 4,
    wire_item_bytes: int | None = None,
    shares: Sequence[float] | None = None,
    absent: Collection[int] = (),
) -> dict[tuple[int, int], int]:
    """What `collectives.allreduce` sends over each link, by arithmetic alone.

    Two processors exchange their addends. Of more, the first collects a small tensor's addends and sends the sum to
    all; of a large one, each processor collects its share of all other addends and sends its part of the sum to all.
    Absent processors send nothing.

    Args:
      elements: of the tensor.
      count: processors; no two share memory.
      item_bytes: of one element.
      wire_item_bytes: of one element as it is sent; None: the same.
      shares: as in `collectives.allreduce`.
      absent: as in `collectives.allreduce`.

    Returns:
      {(source, target): bytes} for processors that send any.

    Example:
      >>> allreduce_bytes(1000, 2)
      {(0, 1): 4000, (1, 0): 4000}
    """
    sent_bytes = item_bytes if wire_item_bytes is None else min(item_bytes, wire_item_bytes)
    present = collectives.present_of(range(count), absent)
    pairs = [(i, j) for i in present for j in range(count) if i != j]
    way = collectives.way_to_reduce(elements, item_bytes, count, absent=absent)
    if way is collectives.Way.DIVIDE:
        parts = collectives.parts_to_reduce(elements, shares or [1] * count, absent)
        sent = {(i, j): parts[i] + parts[j] for i, j in pairs}
    else:
        sent = {pair: elements for pair in pairs if way is collectives.Way.EXCHANGE or present[0] in pair}
    return {pair: number * sent_bytes for pair, number in sent.items() if number}

"""Count the messages of a step in the lowered graph, and read them from a trace."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import facts, graphs, tables
from mtf_hetero.cluster.devices import Device, shorten
from mtf_hetero.mesh import collectives

CHIEF = Device("chief", 0, "CPU", 0).name  # the training process, as mtf_hetero.cluster names it
Link = tuple[str, str]

HANDLES = (tf.resource, tf.variant)
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
        """Return whether source and target are CPUs of one process: then nothing is sent."""
        return collectives.share_memory([self.source, self.target])


def sends(fetches: object, *, graph: mtf.Graph | None = None) -> tuple[Send, ...]:
    """Return every tensor that goes from one device to another in a step, from the graph alone.

    An operation without a device is placed as TensorFlow does it: with the variable that it uses; a constant with its
    only reader; all else at the chief, where placeholders are and fetched tensors go. Handles of variables and control
    edges have no bytes. A function that the graph calls counts as its caller.

    Args:
      fetches: what the session runs: tensors and operations, in any nest.
      graph: the mtf.Graph that was lowered, whose operations are named; None: TensorFlow's name scopes are.

    Raises:
      NotImplementedError: the step has a loop, whose turns the graph does not show.
      ValueError: the size of a tensor that is sent is not known.
    """
    fetched = tf.nest.flatten(fetches)
    operations = graphs.operations_to_run(fetched)
    if loop := next((op for op in operations if op.type in facts.LOOPS | facts.GRAPH_LOOPS), None):
        raise NotImplementedError(f"{loop.type} {loop.name!r} is a loop; the traffic of loops cannot be counted")
    find_device = device_finder()
    reads = [(x, find_device(op), op.name) for op in operations for x in op.inputs]
    reads += [(x, CHIEF, "") for x in fetched if isinstance(x, tf.Tensor)]
    known = None if graph is None else {op.name for op in graph.operations}
    sent: dict[tuple[str, str], Send] = {}
    for x, target, consumer in reads:
        source = CHIEF if x.op.type == "Placeholder" else find_device(x.op)
        if source == target or (x.name, target) in sent or x.dtype.base_dtype in HANDLES:
            continue
        scopes = find_operation(x.op.name, known), find_operation(consumer, known)
        sent[x.name, target] = Send(source, target, size_bytes(x), *scopes, x.name, tuple(x.shape.as_list()))
    return tuple(sent.values())


@functools.cache  # a graph of a hundred thousand operations has a few device names, and parsing one takes microseconds
def full_name(device: str) -> str:
    """Return a device's name with all its parts; those that it lacks are the chief's."""
    return Device.parse(device).within(Device.parse(CHIEF)).name


def device_finder() -> Callable[[tf.Operation], str]:
    """Return a function from an operation to its device, which keeps what it finds."""

    @functools.cache
    def find_device(op: tf.Operation) -> str:
        if op.device:
            return full_name(op.device)
        handles = [x for x in op.inputs if x.dtype.base_dtype == tf.resource]
        if handles or (op.type in facts.MEASURING and op.inputs):
            return find_device((handles or op.inputs)[0].op)
        if not op.inputs and len(op.outputs) == 1:
            readers = [*op.outputs[0].consumers(), *op._control_outputs]
            if op.outputs[0].dtype.base_dtype == tf.resource:  # its readers follow it, unless they have a device
                devices = {full_name(reader.device) for reader in readers if reader.device}
            else:
                devices = {find_device(reader) for reader in readers}
            if len(devices) == 1:
                return devices.pop()
        return CHIEF

    return find_device


def find_operation(name: str, known: Collection[str] | None) -> str:
    """Return the innermost mtf operation in whose name scope an operation was made.

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
    """Return the size of a tensor that is sent; raise ValueError if it is unknown."""
    if not x.shape.is_fully_defined() or x.dtype.base_dtype == tf.string:
        raise ValueError(
            f"tensor {x.name!r} is sent from one device to another, but is {x.dtype.name} of shape {x.shape}, whose "
            "size is not known; give it numbers and a fixed shape"
        )
    return x.shape.num_elements() * x.dtype.base_dtype.size


def _add_up(moves: Iterable[tuple[str, str, int]]) -> dict[Link, int]:
    """Return the bytes of each link, the busiest first, without links that carry none."""
    totals: dict[Link, int] = {}
    for source, target, size in moves:
        if size and not collectives.share_memory([source, target]):
            totals[source, target] = totals.get((source, target), 0) + size
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def links(sends: Iterable[Send]) -> dict[Link, int]:
    """Return {(source, target): bytes a step} between memories, the busiest first."""
    return _add_up((send.source, send.target, send.bytes) for send in sends)


def received(metadata: tf.RunMetadata) -> dict[Link, int]:
    """Return {(source, target): bytes} of a traced step, the busiest first, as `links` does for the graph.

    The messages are those of the optimised graphs that the workers ran, and the bytes those of each operation's
    outputs. TensorFlow's own record of transfers lacks the first ones of a session's first traced step.

    Args:
      metadata: tf.RunMetadata of a run with `trace.run_options`.

    Raises:
      ValueError: the run was not traced, or without its graphs.
    """
    if not metadata.partition_graphs or not metadata.step_stats.dev_stats:
        raise ValueError("metadata has no graphs or no statistics; run the step with trace.run_options()")
    sizes = {
        (node.node_name, output.slot): tf.as_dtype(made.dtype).size * math.prod(dim.size for dim in made.shape.dim)
        for stats in metadata.step_stats.dev_stats
        for node in stats.node_stats
        for output in node.output
        if (made := output.tensor_description).dtype
    }
    moves = []
    for node in (node for graph in metadata.partition_graphs for node in graph.node):
        if node.op in _SENDERS and not node.attr["client_terminated"].b:
            source, target = (full_name(node.attr[end].s.decode()) for end in ("send_device", "recv_device"))
            name, _, slot = node.input[0].partition(":")
            moves.append((source, target, sizes.get((name, int(slot or 0)), 0)))
    return _add_up(moves)


def table(links: Mapping[Link, int]) -> str:
    """Return a table of the bytes of each link, and of all."""
    rows = [(shorten(source), shorten(target), f"{size:,}") for (source, target), size in links.items()]
    return "\n".join(tables.lines([("from", "to", "bytes"), *rows, ("all", "", f"{sum(links.values()):,}")], "<<>"))

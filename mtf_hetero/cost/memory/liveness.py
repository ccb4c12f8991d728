"""Count the bytes that are alive at once while the operations of a lowered graph run. Pure: no TensorFlow.

A tensor lives from the beginning of the operation that makes it to the end of the last one that reads it. Some share a
buffer. A reshape gives out its input's buffer, an addition takes over one that nothing else needs, and a variable takes
over the buffer that is assigned to it. So each buffer has a number of holders, as in TensorFlow. A tensor that another
device needs is held until it has been sent. It arrives there as a message, of which a tensor is made: for a moment it
exists twice.
"""

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence

BEGIN, END, SEND, RECEIVED = "begin", "end", "send", "received"
MESSAGES = "messages"


@dataclasses.dataclass(frozen=True)
class Output:
    """A tensor that an operation makes.

    Args:
      size_bytes: its size.
      alias: the input whose buffer it shares, if any.
      forwards: the inputs whose buffer it takes over where nothing else holds that.
      permanent: whether it exists before the step and after it, as a constant does.
    """

    size_bytes: int
    alias: int | None = None
    forwards: tuple[int, ...] = ()
    permanent: bool = False


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation.

    Args:
      device: where it runs.
      inputs: (node, output) of each tensor that it reads.
      after: nodes that must have ended before it begins, beside those whose outputs it reads.
      outputs: what it makes.
      scratch_bytes: what it needs while it runs; with scratch, its outputs are made at its end.
      seconds: about how long it runs.
      variable: the variable that it accesses, if any.
      access: "read": output 0 is the variable's buffer; "assign": the last input becomes its value; "update": its value
        is changed in place, or in a copy where a reader still holds it.
      label: what its outputs and its scratch count as.
      is_convolution: whether oneDNN makes a kernel for it, and keeps that.
    """

    device: str
    inputs: tuple[tuple[int, int], ...] = ()
    after: tuple[int, ...] = ()
    outputs: tuple[Output, ...] = ()
    scratch_bytes: int = 0
    seconds: float = 0.0
    variable: str | None = None
    access: str | None = None
    label: Hashable = ""
    is_convolution: bool = False


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable, which stays from step to step: its device, its size, and its label."""

    device: str
    size_bytes: int
    label: str


@dataclasses.dataclass(frozen=True)
class Event:
    """A node begins or ends, or one of its outputs is sent to another device or has been received there.

    Args:
      kind: BEGIN, END, SEND or RECEIVED.
      node: the node.
      output: the output, where it is sent or received.
      device: the receiver.
    """

    kind: str
    node: int
    output: int = 0
    device: str = ""


def readers(nodes: Sequence[Node], memories: Mapping[str, str]) -> dict[tuple[int, int], collections.Counter[str]]:
    """Return {(node, output): {device: number of inputs that read it there}}.

    "" stands for all devices that share the memory of the node's own.

    Args:
      nodes: in an order in which each comes after those that it needs.
      memories: {device: the memory that it uses}.
    """
    counts: dict[tuple[int, int], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for node in nodes:
        for source in node.inputs:
            near = memories[nodes[source[0]].device] == memories[node.device]
            counts[source]["" if near else node.device] += 1
    return counts


class _Buffer:
    """A buffer, and the number of its holders."""

    __slots__ = ("account", "device", "holders", "label", "size_bytes")

    def __init__(self, device: str, account: "_Account", size_bytes: int, label: Hashable) -> None:
        self.device, self.account, self.size_bytes, self.label = device, account, size_bytes, label
        self.holders = 1

    def drop(self) -> None:
        """Take one holder away."""
        self.holders -= 1
        if not self.holders:
            self.account.add(-self.size_bytes, self.label)

    def relabel(self, label: Hashable) -> None:
        """Have the buffer count under another label."""
        if label != self.label:
            self.account.add(-self.size_bytes, self.label)
            self.account.add(self.size_bytes, label)
            self.label = label


class _Account:
    """The bytes of a device by label: those of now, and those of the moment with most."""

    def __init__(self) -> None:
        self.now: dict[Hashable, int] = collections.defaultdict(int)
        self.peak: dict[Hashable, int] = {}
        self.total = self.most = 0

    def add(self, size_bytes: int, label: Hashable) -> None:
        self.now[label] += size_bytes
        self.total += size_bytes
        if self.total > self.most:
            self.most, self.peak = self.total, dict(self.now)


class _Step:
    """The buffers of a step, as its events go by."""

    def __init__(
        self,
        nodes: Sequence[Node],
        variables: Mapping[str, Variable],
        memories: Mapping[str, str],
        hosts: Mapping[str, str],
    ) -> None:
        self._nodes, self._memories, self._hosts = nodes, memories, hosts
        self._readers = readers(nodes, memories)
        self.accounts: dict[str, _Account] = collections.defaultdict(_Account)
        self._variables = {name: self._take(v.device, v.size_bytes, v.label) for name, v in variables.items()}
        # (node, output, the device that has received it); "": the device that made it
        self._tensors: dict[tuple[int, int, str], _Buffer] = {}
        self._messages: dict[tuple[int, int, str], _Buffer] = {}
        self._scratch: dict[int, _Buffer] = {}
        self._permanent = {
            (index, number): self._take(node.device, output.size_bytes, node.label)
            for index, node in enumerate(nodes)
            for number, output in enumerate(node.outputs)
            if output.permanent
        }

    def _take(self, device: str, size_bytes: int, label: Hashable) -> _Buffer:
        """Return a new buffer."""
        account = self.accounts[device]
        account.add(size_bytes, label)
        return _Buffer(device, account, size_bytes, label)

    def _input(self, node: Node, source: tuple[int, int]) -> _Buffer:
        near = self._memories[self._nodes[source[0]].device] == self._memories[node.device]
        return self._tensors[(*source, "" if near else node.device)]

    def on(self, event: Event) -> None:
        """Take and give back what an event does."""
        if event.kind == BEGIN:
            self._begin(event.node)
        elif event.kind == END:
            self._end(event.node)
        elif event.kind == SEND:
            self._send(event)
        else:
            self._receive(event)

    def _begin(self, index: int) -> None:
        """Take a node's scratch, or its outputs."""
        node = self._nodes[index]
        inputs = [self._input(node, source) for source in node.inputs]
        if node.scratch_bytes:
            self._scratch[index] = self._take(node.device, node.scratch_bytes, node.label)
        else:
            self._make_outputs(index, inputs)
        if node.variable is not None and node.access != "read":
            self._change(node, inputs)

    def _make_outputs(self, index: int, inputs: Sequence[_Buffer]) -> None:
        for number, output in enumerate(self._nodes[index].outputs):
            self._tensors[index, number, ""] = self._make(index, number, output, inputs)

    def _make(self, index: int, number: int, output: Output, inputs: Sequence[_Buffer]) -> _Buffer:
        node, buffer = self._nodes[index], None
        if node.access == "read" and node.variable is not None:
            buffer = self._variables[node.variable]
        elif output.permanent:
            buffer = self._permanent[index, number]
        elif output.alias is not None:
            buffer = inputs[output.alias]
        else:
            for position in output.forwards:
                if inputs[position].holders == 1:
                    buffer = inputs[position]
                    buffer.relabel(node.label)
                    break
        if buffer is None:
            return self._take(node.device, output.size_bytes, node.label)
        buffer.holders += 1
        return buffer

    def _change(self, node: Node, inputs: Sequence[_Buffer]) -> None:
        assert node.variable is not None
        old = self._variables[node.variable]
        label = old.label
        if node.access == "assign" and inputs[-1].holders == 1:
            new = inputs[-1]
            new.holders += 1
        elif old.holders == 1:
            return
        else:
            new = self._take(old.device, old.size_bytes, node.label)
        if old.holders > 1:
            old.relabel(node.label)
        old.drop()
        new.relabel(label)
        self._variables[node.variable] = new

    def _end(self, index: int) -> None:
        """Hand a node's outputs to their readers, and drop its inputs and scratch."""
        node = self._nodes[index]
        if index in self._scratch:
            self._make_outputs(index, [self._input(node, source) for source in node.inputs])
        for number in range(len(node.outputs)):
            reader_counts = self._readers.get((index, number), {})
            buffer = self._tensors[index, number, ""]
            buffer.holders += sum(count if device == "" else 1 for device, count in reader_counts.items())
            buffer.drop()
        for source in node.inputs:
            self._input(node, source).drop()
        if index in self._scratch:
            self._scratch.pop(index).drop()

    def _send(self, event: Event) -> None:
        """Receive a message."""
        size_bytes = self._nodes[event.node].outputs[event.output].size_bytes
        place = self._hosts.get(event.device, event.device)
        self._messages[event.node, event.output, event.device] = self._take(place, size_bytes, MESSAGES)

    def _receive(self, event: Event) -> None:
        """Make a tensor of a message."""
        key = (event.node, event.output, event.device)
        node = self._nodes[event.node]
        buffer = self._take(event.device, node.outputs[event.output].size_bytes, node.label)
        buffer.holders = self._readers[key[:2]][event.device]
        self._tensors[key] = buffer
        self._messages.pop(key).drop()
        self._tensors[event.node, event.output, ""].drop()


def peaks(
    nodes: Sequence[Node],
    events: Iterable[Event],
    *,
    variables: Mapping[str, Variable] | None = None,
    memories: Mapping[str, str] | None = None,
    hosts: Mapping[str, str] | None = None,
) -> dict[str, dict[Hashable, int]]:
    """Return {device: {label: bytes at the moment when the device holds most}}.

    Args:
      nodes: the operations.
      events: all that happens, in its order, in one step or several: `executor.events` makes those of a step.
      variables: {name: Variable}.
      memories: {device: the memory that it uses}; None: each has its own. Within one memory nothing is copied.
      hosts: {device: the device in whose memory its messages are}; absent: in its own.
    """
    if memories is None:
        memories = {node.device: node.device for node in nodes}
    step = _Step(nodes, variables or {}, memories, hosts or {})
    for event in events:
        step.on(event)
    return {device: account.peak for device, account in step.accounts.items() if account.most}

"""Simulate a step of a layout on devices: who computes what from when to when, and who waits.

Each device runs its operations one after another, in the graph's order, once their inputs have arrived: also those
that an earlier operation has had sent. A message leaves when its content is ready, and its sender has sent those
before. A sum over devices that is read only at the end, such as a weight's gradient, is sent beside the computation.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from mtf_hetero._compat import mtf
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.transfers import Messages, Transfer
from mtf_hetero.mesh.traffic import BUCKET_BYTES
from mtf_hetero.ops.traits import find_traits, is_contraction

_SHORT = 1e-3  # of a step: waiting that a picture does not show


class Span(NamedTuple):
    """The work of a device for a while.

    Attributes:
      device: its number, among those that are priced.
      layer: the layer whose operation it is.
      begin: seconds since the step began.
      end: likewise.
      backward: whether it comes after the last layer's product: loss, gradients or updates.
    """

    device: int
    layer: str
    begin: float
    end: float
    backward: bool = False


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A step.

    Args:
      spans: in their order, device by device.
      seconds: until the last device is done and the last message has arrived.
      sent: all messages.
    """

    spans: tuple[Span, ...]
    seconds: float
    sent: tuple[Transfer, ...]

    def merged(self) -> tuple[Span, ...]:
        """Return the spans; consecutive ones of a layer become one, and waiting too short to be seen vanishes."""
        short = self.seconds * _SHORT
        merged: list[Span] = []
        for span in self.spans:
            last = merged[-1] if merged else None
            same = last is not None and span._replace(begin=last.begin, end=last.end) == last
            if last is not None and same and span.begin - last.end <= short:
                merged[-1] = last._replace(end=span.end)
            else:
                merged.append(span)
        return tuple(merged)

    def busy_seconds(self, device: int) -> float:
        """Return the seconds that a device computes."""
        return sum(span.end - span.begin for span in self.spans if span.device == device)


def group_by_operation(sent: Iterable[Transfer]) -> Mapping[str, Sequence[Transfer]]:
    """Return {operation: the messages that it causes}; none for an absent one."""
    by_operation: dict[str, list[Transfer]] = collections.defaultdict(list)
    for transfer in sent:
        by_operation[transfer.operation].append(transfer)
    return by_operation


def is_single(seconds: Iterable[float]) -> bool:
    """Return whether a single device spends time on an operation."""
    return sum(map(bool, seconds)) == 1


class Clocks:
    """The times at which each device is free to compute, and to send, and at which each slice of a tensor is ready.

    Args:
      machines: the devices.
    """

    def __init__(self, machines: Machines) -> None:
        count = len(machines.devices)
        self.machines = machines
        self.free = [0.0] * count
        self.free_to_send = [0.0] * count
        self.ready: dict[mtf.Tensor, list[float]] = {}
        self.last = 0.0
        self._late: dict[str, list[float]] = {}  # {operation: as of `delay`, on each device}
        # {link: the joint message, and when it is ready}
        self._together: dict[tuple[int, int], tuple[Transfer, float]] = {}

    def inputs_ready(self, op: mtf.Operation) -> list[float]:
        """Return when each device has all inputs of an operation, also those that others have had sent."""
        ready = [self.ready[x] for x in op.inputs if x in self.ready]
        if op.name in self._late:
            ready.append(self._late.pop(op.name))
        return list(map(max, zip(*ready, strict=True))) if ready else [0.0] * len(self.free)

    def delay(self, name: str, device: int, arrival: float) -> None:
        """Have an operation wait on a device for a message that an earlier one has had sent."""
        late = self._late.setdefault(name, [0.0] * len(self.free))
        late[device] = max(late[device], arrival)

    def beside_others(self, device: int, begin: float, seconds: float) -> float:
        """Return the seconds of work that takes so many if the other devices rest; it is longer while they work."""
        factor = self.machines.devices[device].alone_factor
        if factor == 1:
            return seconds
        others = max((free for other, free in enumerate(self.free) if other != device), default=0.0)
        return seconds + (1 - factor) * min(max(others - begin, 0.0), seconds / factor)

    def send(self, transfer: Transfer, ready: float) -> float:
        """Send a message that is ready then; return when it arrives."""
        link = self.machines.link_between(transfer.source, transfer.target)
        begin = max(ready, self.free_to_send[transfer.source])
        out_bytes = transfer.bytes * transfer.times
        self.free_to_send[transfer.source] = begin + out_bytes / link.bytes_per_second
        for end, times in ((transfer.source, transfer.times), (transfer.target, 1.0)):
            self.free[end] += times * transfer.ends_seconds(self.machines.devices[end].sending_seconds)
        arrival = begin + link.seconds(out_bytes)
        self.last = max(self.last, arrival)
        return arrival

    def send_together(self, transfer: Transfer, ready: float) -> None:
        """Join a message for which nothing waits to others of its link, and send them once they are large.

        `traffic.fuse` does so in the graph.
        """
        link = transfer.source, transfer.target
        if link in self._together:
            other, when = self._together[link]
            size, messages = other.bytes + transfer.bytes, max(other.messages, transfer.messages)
            transfer, ready = transfer._replace(bytes=size, messages=messages), max(ready, when)
        self._together[link] = transfer, ready
        if transfer.bytes / transfer.messages >= BUCKET_BYTES:
            self._send_what_is_left(link)

    def finish(self) -> float:
        """Send all that is left; return when all devices are done and all messages have arrived."""
        for link in list(self._together):
            self._send_what_is_left(link)
        return max([self.last, *self.free])

    def _send_what_is_left(self, link: tuple[int, int]) -> None:
        self.send(*self._together.pop(link))


class Simulation:
    """The simulated run of a step.

    Args:
      operations: of the step, in the graph's order.
      layers: {operation: its layer}.
    """

    def __init__(self, operations: Sequence[mtf.Operation], layers: Mapping[mtf.Operation, str]) -> None:
        self.operations, self._layers = operations, layers
        self.awaited = _awaited(operations)
        last = _last_product(operations, layers)
        self._forward = set(operations[: last + 1])

    def run(
        self,
        machines: Machines,
        seconds_of: Callable[[mtf.Operation], Sequence[float]],
        messages: Messages,
    ) -> Timeline:
        """Return the timeline of a step.

        Args:
          machines: one device per processor.
          seconds_of: from an operation to the seconds that each device computes for it.
          messages: all of the step.
        """
        by_operation = group_by_operation(messages.sent)
        clocks, spans = Clocks(machines), []
        for op in self.operations:
            sent = by_operation[op.name]
            leaves_sums = bool(sent) and find_traits(op).leaves_sums
            # What is cut within a convolution for its windows is not told from addends, and arrives with the result.
            inputs = [transfer for transfer in sent if transfer.is_input or not leaves_sums]
            begins = self._arrivals(clocks, op, clocks.inputs_ready(op), inputs, messages)
            ends = list(begins)
            of_devices = seconds_of(op)
            is_alone = is_single(of_devices)
            for device, seconds in enumerate(of_devices):
                if seconds:
                    begin = max(begins[device], clocks.free[device])
                    if is_alone:
                        seconds = clocks.beside_others(device, begin, seconds)
                    clocks.free[device] = ends[device] = begin + seconds
                    spans.append(self.span(device, op, begin, begin + seconds))
            sums = [transfer for transfer in sent if leaves_sums and not transfer.is_input]
            arrivals = self._arrivals(clocks, op, ends, sums, messages)
            clocks.ready |= dict.fromkeys(op.outputs, arrivals)
        spans.sort(key=lambda span: (span.device, span.begin))
        return Timeline(tuple(spans), machines.step_seconds + clocks.finish(), messages.sent)

    def span(self, device: int, op: mtf.Operation, begin: float, end: float) -> Span:
        """Return the work of a device for an operation."""
        return Span(device, self._layers.get(op, ""), begin, end, op not in self._forward)

    def waits_for(self, op: mtf.Operation, transfer: Transfer) -> bool:
        """Return whether a message of an operation is sent at once; small ones that no product awaits are joined."""
        is_awaited = op in self.awaited or (transfer.is_input and is_contraction(op))
        return is_awaited or transfer.bytes / transfer.messages > BUCKET_BYTES

    def _arrivals(
        self, clocks: Clocks, op: mtf.Operation, ready: Sequence[float], sent: Iterable[Transfer], messages: Messages
    ) -> list[float]:
        """Send messages of an operation that are ready on each device then; return when each device has them."""
        arrivals = list(ready)
        for transfer in sent:
            if self.waits_for(op, transfer):
                arrival = clocks.send(transfer, ready[transfer.source])
                arrivals[transfer.target] = max(arrivals[transfer.target], arrival)
                for name, device in messages.shared.get((op.name, (transfer.source, transfer.target)), ()):
                    clocks.delay(name, device, arrival)
            else:
                clocks.send_together(transfer, ready[transfer.source])
        return arrivals


def _awaited(operations: Sequence[mtf.Operation]) -> set[mtf.Operation]:
    """Return the operations for whose outputs a product waits, directly or not."""
    awaited: set[mtf.Operation] = set()
    for op in reversed(operations):
        if op in awaited or is_contraction(op):
            awaited |= {x.operation for x in op.inputs}
    return awaited


def _last_product(operations: Sequence[mtf.Operation], layers: Mapping[mtf.Operation, str]) -> int:
    """Return the number of the operation that is the last layer's product, its first contraction; -1 if none is."""
    first: dict[str, int] = {}
    for number, op in enumerate(operations):
        if is_contraction(op):
            first.setdefault(layers.get(op, ""), number)
    return max(first.values(), default=-1)

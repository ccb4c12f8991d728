"""What a step of a layout would look like on devices: who computes what from when to when, and who waits.

Each device does its operations one after another, in the graph's order, as soon as their inputs are there; a message
leaves when what it carries is ready and its sender has sent those before. Where a sum over the devices is read only at
the end, as the gradient of a weight is, sending it goes on beside the computing, as it does when the graph runs.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout
from mtf_hetero.planner import transfers, work
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import Span
from mtf_hetero.planner.problem import Problem, is_single
from mtf_hetero.traffic import BUCKET_BYTES

_SHORT = 1e-3  # of a step: waiting that a picture does not show


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A step.

    Args:
      spans: what each device does, in the order of its beginning per device.
      seconds: until the last device is done and the last message has arrived.
      sent: what goes from device to device.
    """

    spans: tuple[Span, ...]
    seconds: float
    sent: tuple[transfers.Transfer, ...]

    def merged(self) -> tuple[Span, ...]:
        """The spans, those of a layer that follow one another as one; waiting too short to be seen is left out."""
        short = self.seconds * _SHORT
        merged: list[Span] = []
        for span in self.spans:
            last = merged[-1] if merged else None
            same = last is not None and dataclasses.replace(span, begin=last.begin, end=last.end) == last
            if last is not None and same and span.begin - last.end <= short:
                merged[-1] = dataclasses.replace(last, end=span.end)
            else:
                merged.append(span)
        return tuple(merged)

    def busy_seconds(self, device: int) -> float:
        """How long a device computes."""
        return sum(span.end - span.begin for span in self.spans if span.device == device)


class _Clocks:
    """When each device is free to compute, and to send; and when each slice of a tensor is ready."""

    def __init__(self, machines: Machines) -> None:
        count = len(machines.devices)
        self.machines = machines
        self.free = [0.0] * count
        self.free_to_send = [0.0] * count
        self.ready: dict[mtf.Tensor, list[float]] = {}
        self.last = 0.0
        # {link: what goes together, and when it is ready}
        self._together: dict[tuple[int, int], tuple[transfers.Transfer, float]] = {}

    def inputs_ready(self, op: mtf.Operation, device: int) -> float:
        """When all inputs of an operation are on a device."""
        return max((self.ready[x][device] for x in op.inputs if x in self.ready), default=0.0)

    def beside_others(self, device: int, begin: float, seconds: float) -> float:
        """What takes a device so many seconds while the others rest, as far as they are busy then."""
        factor = self.machines.devices[device].alone_factor
        if factor == 1:
            return seconds
        others = max((free for other, free in enumerate(self.free) if other != device), default=0.0)
        return seconds + (1 - factor) * min(max(others - begin, 0.0), seconds / factor)

    def send(self, transfer: transfers.Transfer, ready: float) -> float:
        """When a message arrives that is ready at its sender then."""
        link = self.machines.link_between(transfer.source, transfer.target)
        begin = max(ready, self.free_to_send[transfer.source])
        out_bytes = transfer.bytes * transfer.times
        self.free_to_send[transfer.source] = begin + out_bytes / link.bytes_per_second
        for end, times in ((transfer.source, transfer.times), (transfer.target, 1.0)):
            self.free[end] += times * transfer.ends_seconds(self.machines.devices[end].sending_seconds)
        arrival = begin + link.seconds(out_bytes)
        self.last = max(self.last, arrival)
        return arrival

    def send_together(self, transfer: transfers.Transfer, ready: float) -> None:
        """Puts what nothing waits for to what goes the same way, which is sent once it is enough: as `traffic.fuse`."""
        link = transfer.source, transfer.target
        if link in self._together:
            other, when = self._together[link]
            size, messages = other.bytes + transfer.bytes, max(other.messages, transfer.messages)
            transfer, ready = dataclasses.replace(transfer, bytes=size, messages=messages), max(ready, when)
        self._together[link] = transfer, ready
        if transfer.bytes / transfer.messages >= BUCKET_BYTES:
            self._send_what_is_left(link)

    def finish(self) -> float:
        """Sends all that is left; returns when the last device is done and the last message has arrived."""
        for link in list(self._together):
            self._send_what_is_left(link)
        return max([self.last, *self.free])

    def _send_what_is_left(self, link: tuple[int, int]) -> None:
        self.send(*self._together.pop(link))


def predict(problem: Problem, layout: Layout, owners: Mapping[mtf.Operation, str]) -> Timeline:
    """What a step looks like.

    Args:
      problem: the step and the devices.
      layout: for as many processors as there are devices.
      owners: {operation: the layer that it belongs to}; those without an entry have none.

    Raises:
      NotImplementedError: the layout splits what an operation needs whole.
    """
    operations, machines, layout = problem.operations, problem.machines, problem.priced(layout)
    sent = problem.sent(operations, layout)
    by_operation: dict[str, list[transfers.Transfer]] = collections.defaultdict(list)
    for transfer in sent:
        by_operation[transfer.operation].append(transfer)
    clocks, spans, awaited = _Clocks(machines), [], _awaited(operations)
    last_product = _last_product(operations, owners)
    for number, op in enumerate(operations):
        begins = [clocks.inputs_ready(op, device) for device in range(layout.size)]
        ends = list(begins)
        of_devices = problem.seconds_of(op, layout)
        is_alone = is_single(of_devices)
        for device, seconds in enumerate(of_devices):
            if seconds:
                begin = max(begins[device], clocks.free[device])
                if is_alone:
                    seconds = clocks.beside_others(device, begin, seconds)
                clocks.free[device] = ends[device] = begin + seconds
                spans.append(Span(device, owners.get(op, ""), begin, begin + seconds, number > last_product))
        arrivals = list(ends)
        for transfer in by_operation[op.name]:
            ready = (ends if work.leaves_sums(op) else begins)[transfer.source]
            if op not in awaited and transfer.bytes / transfer.messages <= BUCKET_BYTES:
                clocks.send_together(transfer, ready)
            else:
                arrivals[transfer.target] = max(arrivals[transfer.target], clocks.send(transfer, ready))
        clocks.ready |= dict.fromkeys(op.outputs, arrivals)
    spans.sort(key=lambda span: (span.device, span.begin))
    return Timeline(tuple(spans), machines.step_seconds + clocks.finish(), sent)


def _awaited(operations: Sequence[mtf.Operation]) -> set[mtf.Operation]:
    """The operations for whose outputs a product waits, directly or not."""
    awaited: set[mtf.Operation] = set()
    for op in reversed(operations):
        if op in awaited or work.is_contraction(op):
            awaited |= {x.operation for x in op.inputs}
    return awaited


def _last_product(operations: Sequence[mtf.Operation], owners: Mapping[mtf.Operation, str]) -> int:
    """The number of the operation that is the last layer's product, its first contraction; -1 if there is none."""
    first: dict[str, int] = {}
    for number, op in enumerate(operations):
        if work.is_contraction(op):
            first.setdefault(owners.get(op, ""), number)
    return max(first.values(), default=-1)

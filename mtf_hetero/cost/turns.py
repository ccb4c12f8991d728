"""Simulate a step in slots: each device computes its slots in turns, older ones first, as `traffic.take_turns` has it.

Without slots, the order of the graph is a good guess of the order on each device, and `timeline.Simulation` follows it.
In a pipeline it is not: a device begins with its second slot while another one goes on with the first.
"""

import collections
import functools
import heapq
import itertools
from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.timeline import Clocks, Simulation, Span, Timeline
from mtf_hetero.cost.transfers import Transfer
from mtf_hetero.layout import Layout
from mtf_hetero.ops.traits import find_traits


class _Run:
    """An operation while the step runs.

    A cell is where its result is at once: one slot of a device, or all of them for a sum over the slots and for what
    has no split dimension.

    Args:
      op: the operation.
      places: the device of each slot.
      is_joint: whether the slots of a device have the result at once.
      seconds: that each slot computes.
      sent: the messages that it causes.
      missing: the number of operations whose results it reads.
    """

    def __init__(
        self,
        op: mtf.Operation,
        places: Sequence[int],
        is_joint: bool,
        seconds: Sequence[float],
        sent: Sequence[Transfer],
        missing: int,
    ) -> None:
        self.op, self.seconds, self.sent, self.is_joint = op, seconds, sent, is_joint
        self.cells = places if is_joint else range(len(places))
        self.missing = [missing] * len(places)  # for each slot
        self.unbegun = collections.Counter(self.cells)  # slots of each cell that lack inputs
        self.undone = collections.Counter(self.cells)  # slots of each cell, and messages that it waits for
        self.uncomputed = collections.Counter(self.cells)
        self.readers: list[_Run] = []

    def ends(self, transfer: Transfer) -> tuple[int, int]:
        """Return the cells that a message comes from, and goes to."""
        if self.is_joint or transfer.slots is None:
            return transfer.source, transfer.target
        return transfer.slots


class Turns:
    """A step in slots, as it runs.

    Args:
      simulation: of the step.
      machines: the devices.
      layout: with slots, on a mesh of one axis.
      seconds_of: from an operation to the seconds that each slot computes for it.
      sent: all messages of the step, between devices.
    """

    def __init__(
        self,
        simulation: Simulation,
        machines: Machines,
        layout: Layout,
        seconds_of: Callable[[mtf.Operation], Sequence[float]],
        sent: Sequence[Transfer],
    ) -> None:
        self._simulation, self._machines, self._sent, self._places = simulation, machines, tuple(sent), layout.places
        self._clocks, self._spans = Clocks(machines), list[Span]()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._ready: list[list[tuple[int, int, _Run]]] = [[] for _ in machines.devices]  # by slots and operations
        self._computing = [False] * len(machines.devices)
        self._runs: list[_Run] = []
        made: dict[mtf.Tensor, _Run] = {}
        by_operation: dict[str, list[Transfer]] = collections.defaultdict(list)
        for transfer in sent:
            by_operation[transfer.operation].append(transfer)
        for op in simulation.operations:
            before = list(dict.fromkeys(made[x] for x in op.inputs if x in made))
            run = _Run(op, layout.places, _is_joint(op, layout), seconds_of(op), by_operation[op.name], len(before))
            for other in before:
                other.readers.append(run)
            run.undone.update(run.ends(t)[1] for t in run.sent if simulation.waits_for(op, t))
            made |= dict.fromkeys(op.outputs, run)
            self._runs.append(run)

    def timeline(self) -> Timeline:
        """Return the timeline of the step."""
        for run in self._runs:
            if not run.missing[0]:
                for slot in range(len(self._places)):
                    self._arrive(run, slot, 0.0)
        self._begin_all(0.0)
        while self._events:
            now, _, act = heapq.heappop(self._events)
            act(now)
            self._begin_all(now)
        spans = sorted(self._spans, key=lambda span: (span.device, span.begin))
        return Timeline(tuple(spans), self._machines.step_seconds + self._clocks.finish(), self._sent)

    def _at(self, time: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def _arrive(self, run: _Run, slot: int, now: float) -> None:
        """Let a slot that has all inputs of an operation begin with it, and send what others need of them."""
        cell = run.cells[slot]
        run.unbegun[cell] -= 1
        if not run.unbegun[cell] and not find_traits(run.op).leaves_sums:
            self._send(run, cell, now)
        if run.seconds[slot]:
            heapq.heappush(self._ready[self._places[slot]], (slot, next(self._numbers), run))
        else:
            self._compute(run, slot, now)

    def _begin_all(self, now: float) -> None:
        """Have each device that is free begin with what is ready."""
        for device, ready in enumerate(self._ready):
            if ready and not self._computing[device]:
                slot, _, run = heapq.heappop(ready)
                begin = max(now, self._clocks.free[device])
                end = begin + run.seconds[slot]
                self._computing[device], self._clocks.free[device] = True, end
                self._spans.append(self._simulation.span(device, run.op, begin, end))
                self._at(end, functools.partial(self._finish, run, slot))

    def _finish(self, run: _Run, slot: int, now: float) -> None:
        self._computing[self._places[slot]] = False
        self._compute(run, slot, now)

    def _compute(self, run: _Run, slot: int, now: float) -> None:
        """Note that a slot has computed an operation."""
        cell = run.cells[slot]
        run.uncomputed[cell] -= 1
        if not run.uncomputed[cell] and find_traits(run.op).leaves_sums:
            self._send(run, cell, now)
        self._complete(run, cell, now)

    def _send(self, run: _Run, cell: int, now: float) -> None:
        for transfer in run.sent:
            source, target = run.ends(transfer)
            if source != cell:
                continue
            if self._simulation.waits_for(run.op, transfer):
                arrival = self._clocks.send(transfer, now)
                self._at(arrival, functools.partial(self._complete, run, target))
            else:
                self._clocks.send_together(transfer, now)

    def _complete(self, run: _Run, cell: int, now: float) -> None:
        """Note that work or a message is there; once a cell has all, hand the result to the readers."""
        run.undone[cell] -= 1
        if run.undone[cell]:
            return
        for slot, own in enumerate(run.cells):
            if own == cell:
                for reader in run.readers:
                    reader.missing[slot] -= 1
                    if not reader.missing[slot]:
                        self._arrive(reader, slot, now)


def _is_joint(op: mtf.Operation, layout: Layout) -> bool:
    """Return whether the slots of a device have the result at once: it is their sum, or not split."""
    return not any(layout.axis_of(dim) is not None for y in op.outputs for dim in y.shape.dims)

"""Simulate a step in slots: each device computes its slots in turns, by the rules and the bounds of `traffic.slots`.

Without slots, the order of the graph is a good guess of the order on each device, and `timeline.Simulation` follows it.
In a pipeline it is not: a device begins with its second slot while another one goes on with the first.
"""

import collections
import functools
import heapq
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.timeline import Clocks, Simulation, Span, Timeline, group_by_operation
from mtf_hetero.cost.transfers import Messages, Transfer
from mtf_hetero.layout import Layout
from mtf_hetero.mesh.traffic import slots
from mtf_hetero.ops.traits import find_traits, is_contraction


class _Run:
    """An operation while the step runs.

    A cell is where its result is at once: one slot of a device, or all of them for a sum over the slots and for what
    has no split dimension. Such a joint result waits for messages. Of any other operation, and for the addends of a
    sum, each slot waits for them before it computes, since they are its inputs.

    Args:
      op: the operation.
      places: the device of each slot.
      is_joint: whether the slots of a device have the result at once.
      seconds: that each slot computes.
      sent: the messages that it causes.
      joins: the devices on which each slot needs the inputs of all.
      unread: the number of operations whose results it reads.
      handed: {slot: the other slots of its device that need its inputs}.
    """

    def __init__(
        self,
        op: mtf.Operation,
        places: Sequence[int],
        is_joint: bool,
        seconds: Sequence[float],
        sent: Sequence[Transfer],
        joins: Collection[int],
        unread: int,
        handed: Mapping[int, Collection[int]],
    ) -> None:
        self.handed = {} if is_joint else handed
        self.op, self.seconds, self.sent, self.is_joint = op, seconds, sent, is_joint
        self.is_sum = is_joint and find_traits(op).leaves_sums
        self.cells = places if is_joint else range(len(places))
        self.unread = [unread] * len(places)  # results that each slot lacks
        self.joined = {device: [slot for slot, other in enumerate(places) if other == device] for device in joins}
        self.unjoined = {device: len(own) for device, own in self.joined.items()}  # slots that lack inputs
        self.missing = [1 + (device in joins) for device in places]  # for each slot: all results, and messages
        self.unbegun = collections.Counter(self.cells)  # slots of each cell that lack inputs
        self.undone = collections.Counter(self.cells)  # slots of each cell, and messages that it waits for
        self.uncomputed = collections.Counter(self.cells)
        self.awaited: list[tuple[bool, int, int]] = []  # as of `Turns._awaited_ends`
        self.readers: list[_Run] = []
        self.numbers: list[int] = []  # of the work of each slot

    def ends(self, transfer: Transfer) -> tuple[int, int]:
        """Return the slots that a message comes from, and goes to; of a joint result, the devices."""
        if transfer.slots is None or not self.is_between_slots(transfer):
            return transfer.source, transfer.target
        return transfer.slots

    def is_between_slots(self, transfer: Transfer) -> bool:
        """Return whether one slot waits for a message before it computes, and not the result of all."""
        return not self.is_joint or (self.is_sum and transfer.is_input)


class Turns:
    """A step in slots, as it runs.

    Args:
      simulation: of the step.
      machines: the devices.
      layout: with slots, on a mesh of one axis.
      seconds_of: from an operation to the seconds that each slot computes for it.
      messages: all of the step.
    """

    def __init__(
        self,
        simulation: Simulation,
        machines: Machines,
        layout: Layout,
        seconds_of: Callable[[mtf.Operation], Sequence[float]],
        messages: Messages,
    ) -> None:
        self._simulation, self._machines, self._places = simulation, machines, layout.places
        places = layout.places
        self._sent = tuple(x._replace(source=places[x.source], target=places[x.target]) for x in messages.sent)
        self._clocks, self._spans = Clocks(machines), list[Span]()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._runs: list[_Run] = []
        self._parts: dict[int, tuple[_Run, int]] = {}  # {number of its work: a run and a slot}
        made: dict[mtf.Tensor, _Run] = {}
        by_operation, joins = group_by_operation(self._sent), collections.defaultdict[str, set[int]](set)
        handed = collections.defaultdict[str, dict[int, list[int]]](dict)
        for name, processor in messages.joins:
            joins[name].add(places[processor])
        for name, source, target in messages.handed:
            handed[name].setdefault(source, []).append(target)
        for op in simulation.operations:
            before = list(dict.fromkeys(made[x] for x in op.inputs if x in made))
            is_joint = not layout.splits(*(y.shape.dims for y in op.outputs))
            joined = () if is_joint else joins[op.name]
            sent = by_operation[op.name]
            run = _Run(op, places, is_joint, seconds_of(op), sent, joined, len(before), handed[op.name])
            for other in before:
                other.readers.append(run)
            run.awaited = self._awaited_ends(run)
            for is_between_slots, _, target in run.awaited:
                if is_between_slots:
                    run.missing[target] += 1
                else:
                    run.undone[target] += 1
            made |= dict.fromkeys(op.outputs, run)
            self._runs.append(run)
        self._find_shared(messages)
        devices = range(len(machines.devices))
        work = self._find_work(layout)
        bounds, self._members = slots.find_bounds(work), work.members
        self._left = collections.Counter(work.members.values())  # work of each slot that is not done
        of_devices = [{slot for device, slot in self._left if device == own} for own in devices]
        self._turns = [slots.Turns(own, bounds.get(device, 1)) for device, own in zip(devices, of_devices, strict=True)]
        self._ready: list[list[int]] = [[] for _ in devices]  # work that belongs to no slot, done first
        self._computing = [False for _ in devices]

    def _find_shared(self, messages: Messages) -> None:
        """Have operations wait for a message that an earlier one has caused."""
        runs = {run.op.name: run for run in self._runs}
        self._shared: dict[tuple[_Run, tuple[int, int]], list[tuple[_Run, int]]] = {}
        for (name, ends), readers in messages.shared.items():
            first = runs[name]
            count = first.awaited.count((True, *ends))
            if count:
                self._shared[first, ends] = others = [(runs[other], slot) for other, slot in readers]
                for other, slot in others:
                    other.missing[slot] += count

    def _awaited_ends(self, run: _Run) -> list[tuple[bool, int, int]]:
        """Return whether each message that is sent at once is between slots, and where it comes from and goes to.

        What one slot of a device hands to another is such a message, which takes no time.
        """
        awaited = (transfer for transfer in run.sent if self._simulation.waits_for(run.op, transfer))
        handed = [(True, source, target) for source, targets in run.handed.items() for target in targets]
        return [*((run.is_between_slots(transfer), *run.ends(transfer)) for transfer in awaited), *handed]

    def _find_work(self, layout: Layout) -> slots.Work:
        """Return the work of the step: that of each slot for each operation, then the joint results."""
        waited, devices, of_slots, heavy = list[set[int]](), list[int](), dict[int, int](), list[int]()
        results: dict[tuple[_Run, int], int] = {}  # {a run and a cell: the number after which it has the result}
        before: dict[_Run, list[_Run]] = collections.defaultdict(list)
        for run in self._runs:
            for reader in run.readers:
                before[reader].append(run)
            is_split = layout.splits(*(x.shape.dims for x in (*run.op.inputs, *run.op.outputs)))
            read = [{results[other, other.cells[slot]] for other in before[run]} for slot in range(len(self._places))]
            for device, own in run.joined.items():
                _wait_for_all(own, read, waited)
                devices.append(device)
            waiting: dict[int, set[int]] = collections.defaultdict(set)  # {cell: all that its result waits for}
            for slot, device in enumerate(self._places):
                number = len(waited)
                self._parts[number] = run, slot
                run.numbers.append(number)
                waited.append(set(read[slot]))
                devices.append(device)
                waiting[run.cells[slot]].add(number)
                if is_split and run.seconds[slot]:
                    of_slots[number] = slot
                    heavy += [number] * is_contraction(run.op)
            own = {cell: frozenset(numbers) for cell, numbers in waiting.items()}
            for is_between_slots, source, target in run.awaited:
                if is_between_slots:
                    waited[run.numbers[target]] |= read[source]
                else:
                    waiting[target] |= own[source]
            if not run.is_joint:
                results |= {(run, slot): number for slot, number in enumerate(run.numbers)}
                continue
            for cell, numbers in waiting.items():
                results[run, cell] = len(waited)
                waited.append(numbers)
                devices.append(cell)
        return slots.Work(waited, devices, of_slots, heavy, self._effort)

    def _effort(self, number: int) -> float:
        run, slot = self._parts[number]
        return run.seconds[slot]

    def run(self) -> tuple[Timeline, tuple[int, ...]]:
        """Return the timeline of the step, and how many slots each device has in progress at once."""
        for run in [run for run in self._runs if not run.unread[0]]:
            for slot in range(len(self._places)):
                self._arrive(run, slot, 0.0)
        self._begin_all(0.0)
        while self._events:
            now, _, act = heapq.heappop(self._events)
            act(now)
            self._begin_all(now)
        assert not any(self._left.values()), "nothing waits for ever"
        spans = sorted(self._spans, key=lambda span: (span.device, span.begin))
        timeline = Timeline(tuple(spans), self._machines.step_seconds + self._clocks.finish(), self._sent)
        return timeline, tuple(max(1, turns.most) for turns in self._turns)

    def _at(self, time: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def _arrive(self, run: _Run, slot: int, now: float) -> None:
        """Send what others need of a slot's inputs of an operation, all of which it has."""
        cell = run.cells[slot]
        run.unbegun[cell] -= 1
        joined = run.joined.get(self._places[slot], [])
        if joined:
            run.unjoined[self._places[slot]] -= 1
        if not (joined and run.unjoined[self._places[slot]]):
            for each in joined or [slot]:
                self._send(run, each, now, between_slots=True)
            for each in joined:
                self._release(run, each, now)
        if not run.unbegun[cell] and not run.is_sum:
            self._send(run, cell, now, between_slots=False)
        self._release(run, slot, now)

    def _release(self, run: _Run, slot: int, now: float) -> None:
        """Note that inputs or a message of a slot are there; with all, it may begin with the operation."""
        run.missing[slot] -= 1
        if run.missing[slot]:
            return
        number = run.numbers[slot]
        if not run.seconds[slot]:
            self._compute(run, slot, now)
        elif number in self._members:
            self._turns[self._places[slot]].add(slot, number)
        else:
            heapq.heappush(self._ready[self._places[slot]], number)

    def _begin_all(self, now: float) -> None:
        """Have each device that is free begin with what is ready; where all wait for new slots, one begins anyway."""
        for must_begin in (False, True):
            for device, ready in enumerate(self._ready):
                if self._computing[device] or (must_begin and self._events):
                    continue
                if ready:
                    self._begin(heapq.heappop(ready), now)
                elif (slot := self._turns[device].next_slot(must_begin=must_begin)) is not None:
                    self._begin(self._turns[device].begin(slot), now)

    def _begin(self, number: int, now: float) -> None:
        run, slot = self._parts[number]
        device = self._places[slot]
        begin = max(now, self._clocks.free[device])
        end = begin + run.seconds[slot]
        self._computing[device], self._clocks.free[device] = True, end
        self._spans.append(self._simulation.span(device, run.op, begin, end))
        self._at(end, functools.partial(self._finish, number))

    def _finish(self, number: int, now: float) -> None:
        run, slot = self._parts[number]
        device = self._places[slot]
        self._computing[device] = False
        if number in self._members:
            self._left[device, slot] -= 1
            if not self._left[device, slot]:
                self._turns[device].end(slot)
        self._compute(run, slot, now)

    def _compute(self, run: _Run, slot: int, now: float) -> None:
        """Note that a slot has computed an operation."""
        cell = run.cells[slot]
        run.uncomputed[cell] -= 1
        if not run.uncomputed[cell] and run.is_sum:
            self._send(run, cell, now, between_slots=False)
        self._complete(run, cell, now)

    def _send(self, run: _Run, end: int, now: float, *, between_slots: bool) -> None:
        for target in run.handed.get(end, ()) if between_slots else ():
            self._release(run, target, now)
        for transfer in run.sent:
            source, target = run.ends(transfer)
            if source != end or run.is_between_slots(transfer) != between_slots:
                continue
            if self._simulation.waits_for(run.op, transfer):
                arrival = self._clocks.send(transfer, now)
                if between_slots:
                    for reader, slot in [(run, target), *self._shared.get((run, (source, target)), ())]:
                        self._at(arrival, functools.partial(self._release, reader, slot))
                else:
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
                    reader.unread[slot] -= 1
                    if not reader.unread[slot]:
                        self._arrive(reader, slot, now)


def _wait_for_all(own: Sequence[int], read: list[set[int]], waited: list[set[int]]) -> None:
    """Have some slots wait for an operation without work, which waits for all that these slots read."""
    number = len(waited)
    waited.append(set().union(*(read[slot] for slot in own)))
    for slot in own:
        read[slot] = {number}

"""Simulate the slots of devices, and bound how many each has in progress; for lowered steps and for predicted ones.

A device goes on with a slot until that waits for another device. Then it begins the next slot, or goes on with the
first one that can. It begins no slot while as many are in progress as keep the devices busy. This is known as 1F1B.
"""

import collections
import functools
import heapq
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence

from mtf_hetero._support.graphs import reachable

_Place = tuple[int, int]  # a device, and one of its slots
_TOLERANCE = 0.1  # of a slot: slots are not exactly alike


class Work:
    """The operations of a step, by their numbers.

    Args:
      waited: the operations that each one waits for, which come before it.
      devices: of each operation.
      slots: {operation: the slot of its device that it computes for}.
      heavy: products and convolutions.
      effort: a function from an operation of a slot to how long it takes, in any unit.
    """

    def __init__(
        self,
        waited: Sequence[Collection[int]],
        devices: Sequence[int],
        slots: Mapping[int, int],
        heavy: Collection[int],
        effort: Callable[[int], float],
    ) -> None:
        self.waited, self.devices, self.heavy = waited, devices, frozenset(heavy)
        self.readers: list[list[int]] = [[] for _ in waited]
        for op, before in enumerate(waited):
            for x in before:
                self.readers[x].append(op)
        self.light: set[int] = set()  # no product comes before
        for op, before in enumerate(waited):
            if op not in self.heavy and self.light.issuperset(before):
                self.light.add(op)
        self.members = self._find_members({op: (devices[op], slot) for op, slot in slots.items()})
        self.efforts = {op: effort(op) for op in self.members}
        self.totals: dict[int, float] = collections.defaultdict(float)  # of devices
        for op, (device, _) in self.members.items():
            self.totals[device] += self.efforts[op]

    def _find_members(self, places: Mapping[int, _Place]) -> dict[int, _Place]:
        """Return the operations that take turns: those of the slots, without two kinds that would hold up a slot.

        * Those that all slots wait for, and that no product comes before: the number of all examples, for instance.
        * Those that wait for later slots, and that no product comes after, such as the update of a weight.
        """
        bits = {place: 1 << number for number, place in enumerate(dict.fromkeys(places.values()))}
        later = {
            (device, slot): sum(bit for (other, than), bit in bits.items() if other == device and than > slot)
            for device, slot in bits
        }

        def find_joining(counted: Collection[int]) -> set[int]:
            """Return the operations that wait for later slots, by operations that count."""
            behind: list[int] = []  # a bit for each slot that an operation waits for
            for op, waited in enumerate(self.waited):
                own = bits[places[op]] if op in counted else 0
                behind.append(functools.reduce(operator.or_, (behind[x] for x in waited), own))
            return {op for op, place in places.items() if behind[op] & later[place]}

        before_products = reachable(self.heavy, self.waited.__getitem__)
        joining = find_joining(places)
        awaited = self.light & reachable(joining & before_products, self.waited.__getitem__)
        last = (joining & self.light | find_joining(places.keys() - self.light)) - before_products
        return {op: place for op, place in places.items() if op not in last and op not in awaited}


class Turns:
    """The slots of a device, as a step goes on.

    Args:
      slots: those of the device.
      bound: how many it has in progress, unless all wait for what has not begun.

    Attributes:
      most: how many it had in progress at once.
    """

    def __init__(self, slots: Collection[int], bound: int) -> None:
        self._new, self._bound = sorted(slots, reverse=True), bound  # slots that have not begun
        self._ready: dict[int, list[int]] = {}  # numbers of operations, by slot
        self._in_progress: set[int] = set()
        self.most = 0
        self._current: int | None = None
        self.is_busy = False

    def add(self, slot: int, number: int) -> None:
        """Add an operation that is ready."""
        heapq.heappush(self._ready.setdefault(slot, []), number)

    def next_slot(self, *, must_begin: bool = False) -> int | None:
        """Return the slot of the next operation; None: the device waits."""
        if self._current in self._ready:
            return self._current
        if must_begin:
            return min(self._ready, default=None)
        if self._new and self._new[-1] in self._ready and len(self._in_progress) < self._bound:
            return self._new[-1]
        return min(self._in_progress & self._ready.keys(), default=None)

    def begin(self, slot: int) -> int:
        """Begin an operation of a slot, and return its number."""
        if slot in self._new:
            self._new.remove(slot)
            self._in_progress.add(slot)
            self.most = max(self.most, len(self._in_progress))
        self._current, self.is_busy = slot, True
        number = heapq.heappop(self._ready[slot])
        if not self._ready[slot]:
            del self._ready[slot]
        return number

    def end(self, slot: int) -> None:
        """End a slot."""
        self._in_progress.discard(slot)


class Simulation:
    """A step in which each device does the operations of its slots one by one, and all others as soon as it can.

    Speeds are not known: all devices have as much to do as each other, and a message takes half as long as a slot. What
    needs no product, such as the seeds of dropout, is small, and arrives at once.

    Args:
      work: the step.
      bounds: {device: how many slots it has in progress}; absent: one.
    """

    def __init__(self, work: Work, bounds: Mapping[int, int]) -> None:
        self._work = work
        self._missing = list(map(len, work.waited))
        self._left = collections.Counter(work.members.values())  # operations of each slot that have not ended
        slots: dict[int, set[int]] = collections.defaultdict(set)
        for device, slot in self._left:
            slots[device].add(slot)
        self._counts = {device: len(own) for device, own in slots.items()}
        self._turns = {device: Turns(own, bounds.get(device, 1)) for device, own in slots.items()}
        self._now = 0.0
        self._begun: list[int] = []
        self._events: list[tuple[float, int, int]] = []  # when, an operation, the device that knows its result then
        self._since: dict[_Place, float] = {}  # when the first product of each slot begins
        self.durations: dict[int, list[float]] = {device: [] for device in self._turns}  # of slots, from there on

    def run(self) -> list[int]:
        """Return the operations in the order in which they begin."""
        for op, missing in enumerate(self._missing):
            if not missing:
                self._arrive(op)
        while True:
            while self._events and self._events[0][0] <= self._now:
                self._notice(*heapq.heappop(self._events)[1:])
            for device in self._turns:
                self._go_on(device)
            if not self._events:  # all wait for slots that have not begun
                for device in self._turns:
                    self._go_on(device, must_begin=not self._events)
            if not self._events:
                return self._begun
            self._now = self._events[0][0]

    def _arrive(self, op: int) -> None:
        if op in self._work.members:
            device, slot = self._work.members[op]
            self._turns[device].add(slot, op)
        else:
            self._begin(op, 0.0)

    def _go_on(self, device: int, *, must_begin: bool = False) -> None:
        turns = self._turns[device]
        slot = None if turns.is_busy else turns.next_slot(must_begin=must_begin)
        if slot is not None:
            op = turns.begin(slot)
            if op in self._work.heavy:
                self._since.setdefault((device, slot), self._now)
            self._begin(op, self._work.efforts[op] / (self._work.totals[device] or 1.0))

    def _begin(self, op: int, seconds: float) -> None:
        self._begun.append(op)
        device, devices = self._work.devices[op], self._work.devices
        heapq.heappush(self._events, (self._now + seconds, op, device))
        takes_time = device in self._counts and op not in self._work.light
        arrival = self._now + seconds + (0.5 / self._counts[device] if takes_time else 0.0)
        for other in sorted({devices[reader] for reader in self._work.readers[op]} - {device}):
            heapq.heappush(self._events, (arrival, op, other))

    def _notice(self, op: int, device: int) -> None:
        """Count an operation that has ended, and begin what waits for it on a device."""
        place = self._work.members.get(op)
        if place is not None and place[0] == device:
            self._turns[device].is_busy = False
            self._left[place] -= 1
            if not self._left[place]:
                self._turns[device].end(place[1])
                self.durations[device].append(self._now - self._since.get(place, self._now))
        for reader in self._work.readers[op]:
            if self._work.devices[reader] == device:
                self._missing[reader] -= 1
                if not self._missing[reader]:
                    self._arrive(reader)


def find_bounds(work: Work) -> dict[int, int]:
    """Return {device: how many slots it must have in progress so that no device is idle}.

    With one in progress everywhere, a slot takes as long as it must. By Little's law, as many must be in progress as a
    device computes in that time.
    """
    alone = Simulation(work, {})
    alone.run()
    return {
        device: max(1, math.ceil(len(durations) * max(durations) - _TOLERANCE))  # a device is busy for one second
        for device, durations in alone.durations.items()
    }

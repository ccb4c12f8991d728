"""Have the slots of a device compute one after another, so that each frees its memory for the next.

TensorFlow would compute all slots at once, and keep the activations of all.
"""

import collections
import functools
import heapq
import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, graphs
from mtf_hetero._support.alike import slot_of_operations
from mtf_hetero._support.ops import create
from mtf_hetero.mesh.traffic.counting import device_finder
from mtf_hetero.mesh.traffic.waiting import is_heavy

_Place = tuple[str, int]  # a device, and one of its slots
_TOLERANCE = 0.1  # of a slot: slots are not exactly alike
_MOVING = 16.0  # products of numbers that take as long as to make one number in memory, roughly


def take_turns(fetches: object, *, already_run: int = 0) -> int:
    """Order the operations of the slots of each device, in TensorFlow's default graph; results stay the same.

    A device goes on with a slot until that waits for another device. Then it begins the next slot, or goes on with the
    first one that can. It has as many slots in progress as keep the devices busy, and begins another when one has
    ended. This is known as 1F1B. Where all devices wait for slots that have not begun, as in front of a batch norm, one
    begins nevertheless. Steps with loops keep their order.

    Args:
      fetches: what a session runs at once, each time: tensors and operations of a training step, in any nest.
      already_run: number of the graph's operations, in their order, that a session may have run. They stay as they are.

    Returns:
      The number of times that a device changes from one slot to another.
    """
    graph = tf.get_default_graph()
    slots = slot_of_operations(graph)
    if not slots:
        return 0
    operations = graphs.operations_to_run(tf.nest.flatten(fetches))
    if any(op.type in facts.GRAPH_LOOPS for op in operations):
        return 0
    device_of, fixed = device_finder(), frozenset(graph.get_operations()[:already_run])
    runs: dict[str, list[tuple[int, list[tf.Operation]]]] = {}
    work = _Work(operations, slots, device_of)
    for op in _Simulation(work, _find_bounds(work)).run():
        if op in work.members:
            device, slot = work.members[op]
            of_device = runs.setdefault(device, [])
            if not of_device or of_device[-1][0] != slot:
                of_device.append((slot, []))
            of_device[-1][1].append(op)
    turns = 0
    for of_device in runs.values():
        for (_, before), (_, after) in itertools.pairwise(of_device):
            turns += 1
            _follow(before, [op for op in after if op not in fixed])
    return turns


class _Work:
    """The operations of a step.

    Args:
      operations: each after those that it waits for.
      slots: {operation: the slot that it computes for}.
      device_of: a function from an operation to its device.
    """

    def __init__(
        self,
        operations: Sequence[tf.Operation],
        slots: Mapping[tf.Operation, int],
        device_of: Callable[[tf.Operation], str],
    ) -> None:
        self.operations = operations
        self.device_of = {op: device_of(op) for op in operations}
        self.number_of = {op: number for number, op in enumerate(operations)}
        self.waited = {op: {x for x in graphs.before(op) if x in self.number_of} for op in operations}
        self.readers: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
        for op, waited in self.waited.items():
            for x in waited:
                self.readers[x].append(op)
        self.members = self._find_members({op: (self.device_of[op], slots[op]) for op in operations if op in slots})
        self.efforts = {op: _effort(op) for op in self.members}
        self.totals: dict[str, float] = collections.defaultdict(float)  # of devices
        for op, (device, _) in self.members.items():
            self.totals[device] += self.efforts[op]

    def _find_members(self, places: Mapping[tf.Operation, _Place]) -> dict[tf.Operation, _Place]:
        """Return the operations that take turns: those of the slots, without two kinds that would hold up a slot.

        * Those that all slots wait for, and that no product comes before: the number of all examples, for instance.
        * Those that wait for later slots, and that no product comes after, such as the update of a weight.
        """
        bits = {place: 1 << number for number, place in enumerate(dict.fromkeys(places.values()))}
        later = {
            (device, slot): sum(bit for (other, than), bit in bits.items() if other == device and than > slot)
            for device, slot in bits
        }
        heavy = set(filter(is_heavy, self.operations))
        light: set[tf.Operation] = set()  # no product comes before
        for op, waited in self.waited.items():
            if op not in heavy and waited <= light:
                light.add(op)

        def find_joining(counted: Collection[tf.Operation]) -> set[tf.Operation]:
            """Return the operations that wait for later slots, by operations that count."""
            behind: dict[tf.Operation, int] = {}  # a bit for each slot that an operation waits for
            for op, waited in self.waited.items():
                behind[op] = functools.reduce(
                    operator.or_, (behind[x] for x in waited), bits[places[op]] if op in counted else 0
                )
            return {op for op, place in places.items() if behind[op] & later[place]}

        before_products = graphs.reachable(heavy, self.waited.__getitem__)
        joining = find_joining(places)
        awaited = light & graphs.reachable(joining & before_products, self.waited.__getitem__)
        last = (joining & light | find_joining(places.keys() - light)) - before_products
        return {op: place for op, place in places.items() if op not in last and op not in awaited}


class _Turns:
    """The slots of a device, as a step goes on.

    Args:
      slots: those of the device.
      bound: how many it has in progress.
    """

    def __init__(self, slots: Collection[int], bound: int) -> None:
        self._new, self._bound = sorted(slots, reverse=True), bound  # slots that have not begun
        self._ready: dict[int, list[int]] = {}  # numbers of operations, by slot
        self._in_progress: set[int] = set()
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
        self._current, self.is_busy = slot, True
        number = heapq.heappop(self._ready[slot])
        if not self._ready[slot]:
            del self._ready[slot]
        return number

    def end(self, slot: int) -> None:
        """End a slot."""
        self._in_progress.discard(slot)


class _Simulation:
    """A step in which each device does the operations of its slots one by one, and all others as soon as it can.

    Speeds are not known: all devices have as much to do as each other, and a message takes half as long as a slot.

    Args:
      work: the step.
      bounds: {device: how many slots it has in progress}; absent: one.
    """

    def __init__(self, work: _Work, bounds: Mapping[str, int]) -> None:
        self._work = work
        self._missing = {op: len(waited) for op, waited in work.waited.items()}
        self._left = collections.Counter(work.members.values())  # operations of each slot that have not ended
        slots: dict[str, set[int]] = collections.defaultdict(set)
        for device, slot in self._left:
            slots[device].add(slot)
        self._counts = {device: len(own) for device, own in slots.items()}
        self._turns = {device: _Turns(own, bounds.get(device, 1)) for device, own in slots.items()}
        self._now = 0.0
        self._begun: list[tf.Operation] = []
        self._events: list[tuple[float, int, str]] = []  # when, an operation's number, where its result is known then
        self._since: dict[_Place, float] = {}  # when the first product of each slot begins
        self.durations: dict[str, list[float]] = {device: [] for device in self._turns}  # of slots, from there on

    def run(self) -> list[tf.Operation]:
        """Return the operations in the order in which they begin."""
        for op, missing in self._missing.items():
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

    def _arrive(self, op: tf.Operation) -> None:
        if op in self._work.members:
            device, slot = self._work.members[op]
            self._turns[device].add(slot, self._work.number_of[op])
        else:
            self._begin(op, 0.0)

    def _go_on(self, device: str, *, must_begin: bool = False) -> None:
        turns = self._turns[device]
        slot = None if turns.is_busy else turns.next_slot(must_begin=must_begin)
        if slot is not None:
            op = self._work.operations[turns.begin(slot)]
            if is_heavy(op):
                self._since.setdefault((device, slot), self._now)
            self._begin(op, self._work.efforts[op] / (self._work.totals[device] or 1.0))

    def _begin(self, op: tf.Operation, seconds: float) -> None:
        self._begun.append(op)
        device, number = self._work.device_of[op], self._work.number_of[op]
        heapq.heappush(self._events, (self._now + seconds, number, device))
        arrival = self._now + seconds + (0.5 / self._counts[device] if device in self._counts else 0.0)
        for other in sorted({self._work.device_of[reader] for reader in self._work.readers[op]} - {device}):
            heapq.heappush(self._events, (arrival, number, other))

    def _notice(self, number: int, device: str) -> None:
        """Count an operation that has ended, and begin what waits for it on a device."""
        op = self._work.operations[number]
        place = self._work.members.get(op)
        if place is not None and place[0] == device:
            self._turns[device].is_busy = False
            self._left[place] -= 1
            if not self._left[place]:
                self._turns[device].end(place[1])
                self.durations[device].append(self._now - self._since.get(place, self._now))
        for reader in self._work.readers[op]:
            if self._work.device_of[reader] == device:
                self._missing[reader] -= 1
                if not self._missing[reader]:
                    self._arrive(reader)


def _find_bounds(work: _Work) -> dict[str, int]:
    """Return {device: how many slots it must have in progress so that no device is idle}.

    With one in progress everywhere, a slot takes as long as it must. By Little's law, as many must be in progress as a
    device computes in that time.
    """
    alone = _Simulation(work, {})
    alone.run()
    return {
        device: max(1, math.ceil(len(durations) * max(durations) - _TOLERANCE))  # a device is busy for one second
        for device, durations in alone.durations.items()
    }


def _effort(op: tf.Operation) -> float:
    """Return how long an operation takes, roughly: the products of numbers in it, or the numbers that it makes."""
    made = sum(y.shape.num_elements() or 0 for y in op.outputs)
    if not is_heavy(op):
        return _MOVING * made
    sizes = sorted((x.shape.num_elements() or 0 for x in op.inputs), reverse=True)[:2]
    return math.sqrt(math.prod(sizes) * made)  # [m, k] by [k, n]: m k n


def _follow(before: Sequence[tf.Operation], after: Sequence[tf.Operation]) -> None:
    """Have a device begin some operations once it has done others of its own."""
    reading = {x.op for op in before for x in op.inputs}
    here = set(after)
    with tf.device(before[0].device):
        turn = create("NoOp", [], [], "turn", {})
    turn._add_control_inputs([op for op in before if op not in reading])
    for op in after:
        if not any(x.op in here for x in op.inputs):
            op._add_control_input(turn)

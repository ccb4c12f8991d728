"""Have the slots of a device compute one after another, so that each frees its memory for the next.

TensorFlow would compute all slots at once, and keep the activations of all.
"""

import collections
import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, graphs
from mtf_hetero._support.alike import slot_of_operations
from mtf_hetero._support.ops import create
from mtf_hetero.mesh.traffic.counting import device_finder
from mtf_hetero.mesh.traffic.waiting import is_heavy

_MOVING = 16.0  # products of numbers that take as long as to make one number in memory, roughly


def take_turns(fetches: object, *, already_run: int = 0) -> int:
    """Order the operations of the slots of each device, in TensorFlow's default graph; results stay the same.

    Of the operations that are ready, a device takes one of the first slot. So the slots of one device follow each
    other. Of several devices that each have a stage of a network, one goes on with a later slot while it waits for
    another device, and returns to an earlier one as soon as it can. Steps with loops keep their order.

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
    for op in _Simulation(operations, slots, device_of).run():
        if op in slots:
            of_device = runs.setdefault(device_of(op), [])
            if not of_device or of_device[-1][0] != slots[op]:
                of_device.append((slots[op], []))
            of_device[-1][1].append(op)
    turns = 0
    for of_device in runs.values():
        for (_, before), (_, after) in itertools.pairwise(of_device):
            turns += 1
            _follow(before, [op for op in after if op not in fixed])
    return turns


class _Simulation:
    """A step in which each device does the operations of its slots one by one, and all others as soon as it can.

    Args:
      operations: of the step, each after those that it waits for.
      slots: {operation: the slot that it computes for}.
      device_of: a function from an operation to its device.
    """

    def __init__(
        self,
        operations: Sequence[tf.Operation],
        slots: Mapping[tf.Operation, int],
        device_of: Callable[[tf.Operation], str],
    ) -> None:
        self._operations, self._slots, self._device_of = operations, slots, device_of
        self._number_of = {op: number for number, op in enumerate(operations)}
        self._readers: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
        self._missing = {}
        for op in operations:
            waited = {x for x in graphs.before(op) if x in self._number_of}
            self._missing[op] = len(waited)
            for x in waited:
                self._readers[x].append(op)
        self._now = 0.0
        self._begun: list[tf.Operation] = []
        self._ends: list[tuple[float, int]] = []  # of operations that have begun, and their numbers
        self._ready: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)  # slots and numbers
        self._busy: set[str] = set()

    def run(self) -> list[tf.Operation]:
        """Return the operations in the order in which they begin."""
        for op in self._operations:
            if not self._missing[op]:
                self._arrive(op)
        while self._ends or any(self._ready.values()):
            while self._ends and self._ends[0][0] <= self._now:
                self._finish(self._operations[heapq.heappop(self._ends)[1]])
            for device, ready in self._ready.items():
                if ready and device not in self._busy:
                    self._busy.add(device)
                    op = self._operations[heapq.heappop(ready)[1]]
                    self._begin(op, _effort(op))
            if self._ends:
                self._now = self._ends[0][0]
        return self._begun

    def _arrive(self, op: tf.Operation) -> None:
        if op in self._slots:
            heapq.heappush(self._ready[self._device_of(op)], (self._slots[op], self._number_of[op]))
        else:
            self._begin(op, 0.0)

    def _begin(self, op: tf.Operation, effort: float) -> None:
        self._begun.append(op)
        heapq.heappush(self._ends, (self._now + effort, self._number_of[op]))

    def _finish(self, op: tf.Operation) -> None:
        if op in self._slots:
            self._busy.discard(self._device_of(op))
        for reader in self._readers[op]:
            self._missing[reader] -= 1
            if not self._missing[reader]:
                self._arrive(reader)


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

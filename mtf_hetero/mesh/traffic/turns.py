"""Have the slots of a device compute one after another, so that each frees its memory for the next.

TensorFlow would compute all slots at once, and keep the activations of all.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, graphs
from mtf_hetero._support.alike import slot_of_operations
from mtf_hetero._support.ops import create
from mtf_hetero.mesh.traffic.counting import device_finder
from mtf_hetero.mesh.traffic.slots import Simulation, Work, find_bounds
from mtf_hetero.mesh.traffic.waiting import is_heavy

_MOVING = 16.0  # products of numbers that take as long as to make one number in memory, roughly


def take_turns(fetches: object, *, already_run: int = 0) -> int:
    """Order the operations of the slots of each device, in TensorFlow's default graph; results stay the same.

    The order is that of `slots.Simulation`. Where all devices wait for slots that have not begun, as in front of a
    batch norm, one begins nevertheless. Steps with loops keep their order.

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
    work, fixed = _find_work(operations, slots), frozenset(graph.get_operations()[:already_run])
    runs: dict[int, list[tuple[int, list[tf.Operation]]]] = {}
    for number in Simulation(work, find_bounds(work)).run():
        if number in work.members:
            device, slot = work.members[number]
            of_device = runs.setdefault(device, [])
            if not of_device or of_device[-1][0] != slot:
                of_device.append((slot, []))
            of_device[-1][1].append(operations[number])
    turns = 0
    for of_device in runs.values():
        for (_, before), (_, after) in itertools.pairwise(of_device):
            turns += 1
            _follow(before, [op for op in after if op not in fixed])
    return turns


def _find_work(operations: Sequence[tf.Operation], slots: Mapping[tf.Operation, int]) -> Work:
    """Return the operations of a lowered step as its work; each comes after those that it waits for."""
    device_of, devices = device_finder(), dict[str, int]()
    numbers = {op: number for number, op in enumerate(operations)}
    return Work(
        [{numbers[x] for x in graphs.before(op) if x in numbers} for op in operations],
        [devices.setdefault(device_of(op), len(devices)) for op in operations],
        {numbers[op]: slot for op, slot in slots.items() if op in numbers},
        {number for op, number in numbers.items() if is_heavy(op)},
        lambda number: _effort(operations[number]),
    )


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

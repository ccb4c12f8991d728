"""Steps in a row: the operations of a lowered step, several times in one graph, for one call of a session.

A call over workers, its feeds and its fetches take longer than a small step. In one call, a step begins where its
variables are ready: on each processor, its read of a slice waits for the write of the step before. Nothing else waits,
but at most two steps are on a device at a time, because each has tensors of its own.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mtf_hetero._compat import tf
from mtf_hetero._support import copies, facts, garbage, graphs

_SHARED = frozenset({"Const", "VarHandleOp"})  # all steps have them in common
_ORDERED = facts.VARIABLE_READS | facts.VARIABLE_WRITES
# Operations with a state that is a variable's, or that each step has anew
_REPEATABLE = _SHARED | _ORDERED | facts.BEGINNING_ANEW | {"MapUnstage"}
_AT_A_TIME = 2  # steps whose tensors take memory on a device


class Carried(NamedTuple):
    """The value of a variable of this process, which one step gives the next one on the devices.

    Args:
      before: the slice of each processor, an operation of its own.
      after: the slice of each processor after the step, of the same shape.
    """

    before: Sequence[tf.Tensor]
    after: Sequence[tf.Tensor]


class Copy(NamedTuple):
    """A step of a row.

    Args:
      results: tensors of its fetches.
      done: runs its updates.
      places: {placeholder of the first step: the one in its place}, of all that is fed to this step.
    """

    results: Sequence[tf.Tensor]
    done: tf.Operation
    places: Mapping[tf.Tensor, tf.Tensor]


class Row:
    """Makes copies of a step in its graph.

    Args:
      first: the step, whose placeholders stand for themselves.
      carried: the variables that stay in this process.
    """

    def __init__(self, first: Copy, carried: Sequence[Carried]) -> None:
        self._first, self._graph, self._carried = first, first.done.graph, carried
        self._before = [x for each in carried for x in each.before]
        self._after = [x for each in carried for x in each.after]
        self._given = {x.op for x in self._before}
        copied = graphs.reachable([first.done, *(x.op for x in (*first.results, *self._after))], self._behind)
        self._copied = [op for op in self._graph.get_operations() if op in copied and not self._is_shared(op)]
        self._copier = copies.Copier(self._copied)

    def _is_shared(self, op: tf.Operation) -> bool:
        return op in self._given or (op.type in _SHARED and not op.control_inputs)  # in a loop, they have some

    def _behind(self, op: tf.Operation) -> list[tf.Operation]:
        return [] if self._is_shared(op) else graphs.before(op)

    @property
    def size(self) -> int:
        """The number of operations of a copy."""
        return len(self._copied)

    @functools.cached_property
    def is_possible(self) -> bool:
        """Return whether copies give what steps in calls of their own give."""
        stateful = [op for op in self._copied if op.op_def.is_stateful or _handles(op)]
        # In a loop, the operation of a variable does not show which one that is
        return all(op.type in _REPEATABLE and (op.type not in _ORDERED or _handles(op)) for op in stateful)

    @garbage.without_collection()
    def repeat(self, count: int) -> list[Copy]:
        """Return so many steps, each after the one before it; the first one is that which is copied."""
        with self._graph.as_default(), tf.device(None), tf.control_dependencies(None):
            steps = [_Step({op.name: op for op in self._copied}, {})]
            gates = [self._gate(steps[0])]
            for _ in range(count - 1):
                given = {x.name: steps[-1].tensor(y) for x, y in zip(self._before, self._after, strict=True)}
                steps.append(_Step(self._copier.copy("in_a_row", given), given))
                self._order(steps[-2], steps[-1])
                gates.append(self._gate(steps[-1]))
                for op in self._roots if len(steps) > _AT_A_TIME else ():
                    steps[-1].operations[op.name]._add_control_input(gates[-1 - _AT_A_TIME][op.device])
        return [self._first, *map(self._describe, steps[1:])]

    @functools.cached_property
    def _roots(self) -> list[tf.Operation]:
        """The operations that wait for nothing but what is fed."""
        return graphs.roots(op for op in self._copied if op.type != "Placeholder")

    def _order(self, before: "_Step", after: "_Step") -> None:
        """Have each read of a slice wait for the writes of the step before, and each write for its reads too."""
        writes: dict[str, list[tf.Operation]] = {}
        others: dict[str, list[tf.Operation]] = {}
        for op in self._copied:
            for handle in _handles(op):
                of_handle = writes if op.type in facts.VARIABLE_WRITES else others
                of_handle.setdefault(handle, []).append(op)
        for handle, its_writes in writes.items():
            its_reads = others.get(handle, [])
            waited = before.list(its_writes)
            for op in after.list(its_reads):
                op._add_control_inputs(waited)
            for op in after.list(its_writes):
                op._add_control_inputs([*waited, *before.list(its_reads)])

    def _gate(self, step: "_Step") -> dict[str, tf.Operation]:
        """Return {device: an operation after a step's last ones there}; if it has none there, after all of them."""
        ends = [op for op in self._copied if op.type in facts.VARIABLE_WRITES]
        ends += [x.op for x in (*self._after, *self._first.results) if x.op.name in step.operations]
        of_device: dict[str, list[tf.Operation]] = {}
        for op in dict.fromkeys(ends):
            of_device.setdefault(op.device, []).append(step.operations[op.name])
        return {
            device: copies.make_gate(device, of_device.get(device) or step.list(dict.fromkeys(ends)))
            for device in {op.device for op in self._roots}
        }

    def _describe(self, step: "_Step") -> Copy:
        places = {x: step.tensor(x) for x in self._first.places if x.op.name in step.operations}
        return Copy([step.tensor(x) for x in self._first.results], step.operations[self._first.done.name], places)


class _Step(NamedTuple):
    """Operations of a copy.

    Args:
      operations: {name of the first step's operation: the one in its place}.
      given: {name of a tensor that the first step is fed: the one of the step before}.
    """

    operations: Mapping[str, tf.Operation]
    given: Mapping[str, tf.Tensor]

    def tensor(self, x: tf.Tensor) -> tf.Tensor:
        """Return the tensor in place of the first step's."""
        if x.op.name in self.operations:
            return self.operations[x.op.name].outputs[x.value_index]
        return self.given.get(x.name, x)

    def list(self, operations: Iterable[tf.Operation]) -> list[tf.Operation]:
        """Return the operations in place of the first step's."""
        return [self.operations[op.name] for op in operations]


def _handles(op: tf.Operation) -> set[str]:
    """Return the names of the variables that an operation reads or writes."""
    return {x.op.name for x in op.inputs if x.op.type == "VarHandleOp"}

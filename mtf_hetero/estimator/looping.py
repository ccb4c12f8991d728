"""Several training steps in one call of the session, as TPUEstimator's loops: hooks are called once for all of them."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from mtf_hetero._compat import flatten_fetches, tf
from mtf_hetero._support import copies, facts, garbage, graphs

MOST_OPERATIONS = 8_000  # of all steps of a call: TensorFlow prepares 1,000 in a quarter of a second
_REPEATED = facts.BEGINNING_ANEW | {"Assert", "Print", "PrintV2"}
_CALLING = facts.CALLS | facts.CONDITIONS | facts.LOOPS
_STEPS = "_mtf_hetero_steps_in_call"  # a collection of a graph


def steps_in_call(graph: tf.Graph) -> int:
    """Return how many steps the last call of a session has taken, for hooks that count steps."""
    return (graph.get_collection(_STEPS) or [1])[0]


class LoopHook(tf.train.SessionRunHook):
    """Takes several steps in one call of the session, one after the other: each begins when the one before has ended.

    A call that ends with an error, or with the end of the data, has so taken all steps before it, and no part of the
    next one. Hooks fetch tensors of the last step. The steps are copies in the graph. A copy of an operation that keeps
    a state of its own, such as TensorFlow's random numbers, begins with another state. With one, a call takes one step,
    and a line says so.

    It must be the last hook, because the others may add operations to a step.

    Args:
      most: steps of a call.
      step: fetches that run a step, the training operation first. A run that fetches that one is a call.
      hooks: all others. A tf.train.StopAtStepHook among them makes the last call shorter.
    """

    def __init__(
        self, most: int, step: Sequence[tf.Operation | tf.Tensor], hooks: Iterable[tf.train.SessionRunHook]
    ) -> None:
        self._most, self._ends = most, _operations(flatten_fetches(step)[0])
        self._graph, self._number = self._ends[0].graph, 0
        self._stops = [hook for hook in hooks if isinstance(hook, tf.train.StopAtStepHook)]
        self._copies: list[Mapping[str, tf.Operation]] = []  # of the second step, the third, ...

    def begin(self) -> None:
        """Make the copies."""
        # A session would make the sum of all summaries later
        tf.train.Scaffold.get_or_default("summary_op", tf.GraphKeys.SUMMARY_OP, tf.summary.merge_all)
        run = graphs.reachable(self._ends, _before)
        if own := sorted({op.type for op in run if _keeps_a_state(op)}):
            self._limit(1, f"the step has operations with a state of their own, {', '.join(own)}")
        elif len(run) * self._most > MOST_OPERATIONS:
            most = max(MOST_OPERATIONS // len(run), 1)
            self._limit(most, f"a step has {len(run):,} operations, and a call at most {MOST_OPERATIONS:,}")
        if self._most > 1:
            self._copy()

    def _limit(self, most: int, why: str) -> None:
        tf.logging.warning("iterations_per_loop is %d, but a call takes %d: %s", self._most, most, why)
        self._most = most

    @garbage.without_collection()
    def _copy(self) -> None:
        """Copy the step, and all that is computed of it, such as summaries."""
        after = graphs.reachable(graphs.reachable(self._ends, _before), _after)
        needed = graphs.reachable(after, _before)
        copied = [op for op in self._graph.get_operations() if op in needed]
        copier, roots, ends = copies.Copier(copied), graphs.roots(copied), self._ends
        with tf.device(None), tf.control_dependencies(None):
            for _ in range(self._most - 1):
                gates = {device: copies.make_gate(device, ends) for device in {op.device for op in roots}}
                copy = copier.copy("in_a_loop")
                for op in roots:
                    copy[op.name]._add_control_input(gates[op.device])
                ends = [copy[op.name] for op in self._ends]
                self._copies.append(copy)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._number = int(session.run(tf.train.get_global_step(session.graph)))
        vars(session)["run"] = functools.partial(self._run, session.run)

    def _run(self, run: Callable[..., list[object]], fetches: object, *arguments: object, **options: object) -> object:
        """Run what is fetched, of the last step of a call if it is one."""
        with self._graph.as_default():
            elements, build = flatten_fetches(fetches)
        if self._ends[0] not in _operations(elements):
            return run(fetches, *arguments, **options)
        left = [hook._last_step - self._number for hook in self._stops if hook._last_step is not None]
        count = max(min([self._most, *left]), 1)
        if count > 1:
            elements = [_in_copy(x, self._copies[count - 2]) for x in elements]
        values = run(elements, *arguments, **options)
        self._number += count
        self._graph.get_collection_ref(_STEPS)[:] = [count]
        return build(values)


def _operations(elements: Iterable[tf.Tensor | tf.Operation]) -> list[tf.Operation]:
    return [x if isinstance(x, tf.Operation) else x.op for x in elements]


def _in_copy(x: tf.Tensor | tf.Operation, copy: Mapping[str, tf.Operation]) -> tf.Tensor | tf.Operation:
    """Return what a copy has in place of a tensor or an operation of the first step."""
    if isinstance(x, tf.Operation):
        return copy.get(x.name, x)
    return copy[x.op.name].outputs[x.value_index] if x.op.name in copy else x


def _is_shared(op: tf.Operation) -> bool:
    """Return whether all steps have an operation in common: a constant, what is fed, and whose state others change."""
    if op.control_inputs:
        return False
    if op.type == "PlaceholderWithDefault":
        return _is_shared(op.inputs[0].op)
    is_handle = bool(op.outputs) and all(x.dtype == tf.resource for x in op.outputs)
    return not op.inputs and (op.type in ("Const", "Placeholder") or is_handle)


def _before(op: tf.Operation) -> list[tf.Operation]:
    return [each for each in graphs.before(op) if not _is_shared(each)]


def _after(op: tf.Operation) -> list[tf.Operation]:
    return [*(each for x in op.outputs for each in x.consumers()), *op._control_outputs]


def _keeps_a_state(op: tf.Operation) -> bool:
    """Return whether an operation may have a state that is neither a resource's nor made anew in each step."""
    if not op.op_def.is_stateful or op.type in _REPEATED:
        return False
    return op.type in _CALLING or all(x.dtype != tf.resource for x in op.inputs)

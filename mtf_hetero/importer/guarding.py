"""Checks that a step takes only the branches that are followed, before the step changes a variable."""

import contextlib
from collections.abc import Iterator, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, graphs
from mtf_hetero.importer.program import Guard

_MARK = "guard {} of an imported step"


def check_before_updates(guards: Sequence[Guard], chosen: Sequence[tf.Tensor], step: tf.Operation) -> None:
    """Have a step, and each of its updates, wait for the checks, so that a refused step changes nothing.

    Args:
      guards: conditions of the step.
      chosen: the value of each.
      step: runs all updates.
    """
    if not guards:
        return
    with tf.device("/cpu:0"):
        checks = [
            tf.raw_ops.Assert(condition=tf.equal(tf.cast(value, tf.int32), guard.followed), data=[_MARK.format(number)])
            for number, (guard, value) in enumerate(zip(guards, chosen, strict=True))
        ]
    for op in graphs.ancestors([step]):
        if op is step or op.type in facts.VARIABLE_WRITES:  # the step itself: all its variables may be of this process
            op._add_control_inputs(checks)


@contextlib.contextmanager
def explain_guards(guards: Sequence[Guard]) -> Iterator[None]:
    """Raise the guard's own error for a step that takes another branch.

    Raises:
      ValueError: a condition is not what it must be.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        for number, guard in enumerate(guards):
            if _MARK.format(number) in str(error):
                raise ValueError(guard.why) from error
        raise

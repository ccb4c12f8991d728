"""Operations that end a step for some of their arguments: a condition may keep these from them, so it stays one."""

from mtf_hetero._support import facts
from mtf_hetero.importer.program import Operation


def may_fail(op: Operation) -> bool:
    """Return whether some values of its inputs make an operation an error."""
    if op.island is not None:  # a branch reads what that branch alone kept
        return True
    if op.type in facts.SLICES:
        return any(x.array is None for x in op.inputs[1:])
    if op.type in facts.DIVISIONS:
        divisor = op.inputs[1].array
        return op.inputs[0].dtype.is_integer and (divisor is None or not divisor.all())
    if op.type == "Pow":  # a whole number to a negative power
        return op.inputs[0].dtype.is_integer
    return op.type in facts.FAILING

"""Signatures of operations that look up, scatter, search and reduce rows by number."""

from typing import Any

from mtf_hetero.importer.signature import Letters, Signature, Table, leading

TABLE = Table()


def _numbered(op: Any, table: int, ids: int) -> tuple[list[str], list[str], list[str]]:
    """Return letters of the axes that indices name, of those of the indices, and of the rest of the table.

    Args:
      op: the operation.
      table: number of the operand that indices are of, or -1: of the result.
      ids: number of the operand with the indices, whose last axis has one number for each axis that it names.
    """
    shape, indices = (op.outputs[0] if table < 0 else op.inputs[table]).shape, op.inputs[ids].shape
    count = indices[-1]
    named = [f"v{i}" for i in range(count)]
    return named, [f"i{i}" for i in range(len(indices) - 1)], [f"d{i}" for i in range(count, len(shape))]


@TABLE.rule("GatherNd")
def _gather(op: Any) -> Signature:
    named, looked_up, rest = _numbered(op, 0, 1)
    operands = [[*named, *rest], [*looked_up, "k"]]
    return Signature(operands, [[*looked_up, *rest]], whole=frozenset([*named, "k"]))


@TABLE.rule("ScatterNd")
def _scatter(op: Any) -> Signature | None:
    """Return the signature of a sum of rows, whose indices a layout may split."""
    if op.inputs[2].array is None or op.inputs[1].dtype.is_bool:
        return None
    named, looked_up, rest = _numbered(op, -1, 0)
    operands: list[Letters | None] = [[*looked_up, "k"], [*looked_up, *rest], None]
    whole = frozenset([*named, "k"])
    return Signature(operands, [[*named, *rest]], whole=whole, summed=frozenset(looked_up), shape=2)


@TABLE.rule(*(f"TensorScatter{kind}" for kind in ("Add", "Sub", "Update", "Max", "Min")))
def _update(op: Any) -> Signature:
    named, looked_up, rest = _numbered(op, 0, 1)
    operands = [[*named, *rest], [*looked_up, "k"], [*looked_up, *rest]]
    return Signature(operands, [[*named, *rest]], whole=frozenset([*named, *looked_up, "k"]))


@TABLE.rule(*(f"UnsortedSegment{kind}" for kind in ("Max", "Min", "Prod")))
@TABLE.rule(*(f"Segment{kind}" for kind in ("Sum", "Mean", "Max", "Min", "Prod")))
def _segments(op: Any) -> Signature:
    data, ids, *others = op.inputs
    numbered = [f"i{i}" for i in range(len(ids.shape))]
    rest = [f"d{i}" for i in range(len(ids.shape), len(data.shape))]
    operands: list[Letters | None] = [[*numbered, *rest], numbered, *[None] * len(others)]
    return Signature(operands, [["v", *rest]], whole=frozenset(["v", *numbered]))


@TABLE.rule("LowerBound", "UpperBound")
def _search(op: Any) -> Signature:
    return Signature([["n", "s"], ["n", "m"]], [["n", "m"]], whole=frozenset("s"))


@TABLE.rule("ReverseSequence")
def _reverse_sequence(op: Any) -> Signature:
    axes = list(range(len(op.inputs[0].shape)))
    return Signature([axes, [op.attr("batch_dim", 0)]], [axes], whole=frozenset([op.attr("seq_dim")]))


@TABLE.rule("NthElement")
def _nth(op: Any) -> Signature | None:
    return leading(op, [1, None], [0])


@TABLE.rule("HistogramFixedWidth")
def _histogram(op: Any) -> Signature:
    letters = list(range(len(op.inputs[0].shape)))
    return Signature([letters, ["r"], None], [["b"]], whole=frozenset("rb"), summed=frozenset(letters))


@TABLE.rule("InTopK")
def _in_top(op: Any) -> Signature:
    return Signature([["n", "c"], ["n"]], [["n"]], whole=frozenset("c"))


@TABLE.rule("Fill")
def _fill(op: Any) -> Signature | None:
    """Return the signature of a fill with a number that the step computes."""
    letters = list(range(len(op.outputs[0].shape)))
    return None if op.inputs[0].array is None else Signature([None, []], [letters])

"""Report of replicated work: operations that the layout does not split, with the user's lines."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import facts
from mtf_hetero.importer import moments, normalization, table
from mtf_hetero.importer.nodes import user_line
from mtf_hetero.importer.program import Operation, Program, within
from mtf_hetero.importer.work import estimate_flops
from mtf_hetero.layout import Layout

_SHOWN, _LEAST = 8, 0.0005  # entries of a printed report, and the share that one has at least


@dataclasses.dataclass(frozen=True)
class Entry:
    """Operations of one type and one line that every device computes on all of its input.

    Args:
      kind: the type.
      line: the user's line, "model.py:12".
      count: number of operations.
      share: their part of the step's FLOPs.
      has_rule: whether another layout may split them.
    """

    kind: str
    line: str
    count: int
    share: float
    has_rule: bool


@dataclasses.dataclass(frozen=True)
class Undivided:
    """All replicated work, the largest share first.

    Args:
      entries: by type and line.
      share: the part of the step's FLOPs that is replicated.
      unjoined: {line: number}, of batch norms and moments that are written in another way than Keras writes them. They
        are right, but slower: of a batch norm, each part is an operation; of moments, two exchanges take turns.
    """

    entries: tuple[Entry, ...]
    share: float
    unjoined: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        large = [entry for entry in self.entries if entry.share >= _LEAST]
        share = f"{self.share:.1%}" if self.share >= _LEAST else f"less than {_LEAST:.2%}"
        lines = [f"replicated on every device: {share} of the FLOPs" if self.entries else "no operation is replicated"]
        for entry in large[:_SHOWN]:
            why = "" if entry.has_rule else ", which no layout splits"
            times = f" x {entry.count}" if entry.count > 1 else ""
            lines.append(f"  {entry.share:6.1%}  {entry.kind}{times}  {entry.line}{why}")
        if len(large) > _SHOWN:
            lines.append(f"  and {len(large) - _SHOWN} more")
        for line, count in self.unjoined.items():
            times = f" x {count}" if count > 1 else ""
            lines.append(f"  slow, for its pattern is not recognized: batch norm or moments{times}  {line}")
        return "\n".join(lines)


def report(
    work: Mapping[Operation, set[mtf.Dimension]], layout: Layout, operations: Sequence[Operation] = ()
) -> Undivided:
    """Report the replicated work, and those of a program's operations that are slow for they were not joined."""
    flops = {op: estimate_flops(op) for op in work}
    total = sum(flops.values()) or 1
    found: dict[tuple[str, str, bool], list[int]] = collections.defaultdict(list)
    for op, dims in work.items():
        if layout.size > 1 and not layout.splits(dims):
            has_rule = table.find_signature(op) is not None
            found[op.type, op.line, has_rule].append(flops[op])
    entries = [
        Entry(kind, line, len(numbers), sum(numbers) / total, has_rule)
        for (kind, line, has_rule), numbers in found.items()
    ]
    entries.sort(key=lambda entry: -entry.share)
    unjoined = [*moments.find_unjoined(operations), *normalization.find_unjoined(operations)]
    return Undivided(
        tuple(entries), sum(entry.share for entry in entries), collections.Counter(op.line for op in unjoined)
    )


def warn(program: Program) -> None:
    """Warn of what a step leaves out, and of random numbers that may be others than TensorFlow's."""
    if program.effects:
        kinds = sorted({f"{effect.type} ({user_line(effect)})" for effect in program.effects})
        tf.logging.warning("left out of the divided step, which has no use for them: %s", ", ".join(kinds))
    drawing = [op for op in within(program.operations) if op.type in facts.DRAWS]
    lines = sorted({f"{op.type} ({op.line})" for op in drawing if op.attr("seed") or op.attr("seed2")})
    if lines:
        tf.logging.warning(
            "random numbers from a seed begin again with each new size of a batch, training and change of the "
            "shares; use a stateless function of tf.random in place of: %s",
            ", ".join(lines),
        )

"""Format the results of a test for each class, as JSON and as a short table for a terminal."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

import numpy as np

from mtf_hetero._support import tables

ALL_ROWS, WORST_ROWS = 20, 10  # of a table: up to 20 classes are all shown; of more, the 10 worst
_NAME_WIDTH = 24  # of a class, so that a row has room in a terminal


@dataclasses.dataclass(frozen=True)
class ClassResult:
    """One class in a test.

    Args:
      number: of the class.
      name: of the class; its number if the data set has no names.
      examples: number of labels of this class.
      right: number of these that are predicted as this class.
      taken_for: (name, count) of the other class that is most often predicted for it; None: no such class.
    """

    number: int
    name: str
    examples: int
    right: int
    taken_for: tuple[str, int] | None

    @property
    def accuracy(self) -> float | None:
        """Share of the labels that are predicted; None if the class has no label."""
        return self.right / self.examples if self.examples else None


def of_classes(
    names: Sequence[str], examples: np.ndarray, right: np.ndarray, confusion: np.ndarray | None
) -> tuple[ClassResult, ...]:
    """Return the result of each class, in their order.

    Args:
      names: of the classes; none: unknown.
      examples: [classes], number of labels of each class.
      right: [classes], number of these that are predicted.
      confusion: [classes, predicted]; None: it was not counted.
    """
    names = names or tuple(map(str, range(len(examples))))
    found = []
    for number, name in enumerate(names):
        taken_for = None
        if confusion is not None:
            others = np.where(np.arange(len(names)) == number, 0, confusion[number])
            most = int(others.argmax())
            taken_for = (names[most], int(others[most])) if others[most] else None
        found.append(ClassResult(number, name, int(examples[number]), int(right[number]), taken_for))
    return tuple(found)


def worst_first(classes: Sequence[ClassResult]) -> list[ClassResult]:
    """Return the classes by accuracy, the lowest first; classes without a label come last."""
    return sorted(classes, key=lambda c: (c.accuracy is None, c.accuracy, -c.examples, c.number))


def table(classes: Sequence[ClassResult], unit: str) -> str:
    """Return lines for a terminal: the worst classes, and the accuracy of the others."""
    ordered = worst_first(classes)
    shown = ordered if len(ordered) <= ALL_ROWS else ordered[:WORST_ROWS]
    rows = [("class", unit, "accuracy", "most often taken for")]
    for result in shown:
        taken_for = "" if result.taken_for is None else f"{_short(result.taken_for[0])} ({result.taken_for[1]:,})"
        accuracy = "-" if result.accuracy is None else f"{result.accuracy:.4f}"
        rows.append((_short(result.name), f"{result.examples:,}", accuracy, taken_for))
    lines = tables.lines(rows, "<>><")
    rest = [result.accuracy for result in ordered[len(shown) :] if result.accuracy is not None]
    if rest:
        lines.append(f"... {len(ordered) - len(shown):,} more classes, accuracy {rest[0]:.4f} to {rest[-1]:.4f}")
    return "\n".join(lines)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 3]}..."


def as_rows(classes: Sequence[ClassResult]) -> list[dict[str, object]]:
    """Return the classes for JSON."""
    return [
        {
            "class": result.number,
            "name": result.name,
            "examples": result.examples,
            "right": result.right,
            "accuracy": result.accuracy,
        }
        for result in classes
    ]


def dumps(result: Mapping[str, object]) -> str:
    """Return JSON in which each row of a list has one line."""
    parts = []
    for name, value in result.items():
        if isinstance(value, list):
            text = ",\n    ".join(json.dumps(row, allow_nan=False) for row in value)
            text = f"[\n    {text}\n  ]"
        else:
            text = json.dumps(value, indent=2, allow_nan=False).replace("\n", "\n  ")
        parts.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"

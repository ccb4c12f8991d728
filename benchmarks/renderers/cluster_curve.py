"""The report on learning on a cluster: the curves of all layouts in one picture, and how far apart they are."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cases.cluster_curve import WAYS
from benchmarks.cases.learning_curve import ONE
from benchmarks.renderers import markdown
from benchmarks.renderers.learning_curve import SMOOTHED_STEPS, differences, draw, introduce, smooth, standard_error

Row = Mapping[str, Any]
_ROUNDING = 1e-9  # float64 losses that are closer than that differ by rounding alone


def _division(row: Row) -> str:
    sizes = [":".join(map(str, parts)) for parts in row["sizes"].values() if len(parts) > 1]
    return "; ".join(dict.fromkeys(sizes)) or "-"


def _differences(rows: Sequence[Row], name: str) -> dict[str, dict[int, float]]:
    """{way: how far the losses in that column of its row are from those on one device}."""
    reference = next((row[name] for row in rows if row["variant"] == ONE), None)
    if reference is None:
        return {}
    return {row["variant"]: differences(row[name], reference) for row in rows if row["variant"] != ONE}


def _table(rows: Sequence[Row], found: Mapping[str, Mapping[int, float]]) -> str:
    steps = sorted({step for of_way in found.values() for step in of_way})
    header = ["", "cores", "sizes", "s/step", "first loss", f"mean of the last {SMOOTHED_STEPS}", "test accuracy"]
    lines = []
    for row in rows:
        off = found.get(row["variant"], {})
        lines.append(
            [
                row["variant"],
                row["local_cluster"].replace(",", ", "),
                _division(row),
                markdown.spread(row["wall_seconds_per_step"]),
                f"{row['losses'][0]:.6f}",
                markdown.number(smooth(row["losses"])[1][-1], 4),
                f"{row['final_accuracy']:.1%} +- {standard_error(row):.1%}",
                *(f"{off[step]:.1e}" if step in off else "-" for step in steps),
            ]
        )
    return markdown.table([*header, *(f"off up to step {step}" for step in steps)], lines)


def _in_float64(rows: Sequence[Row]) -> list[str]:
    found = {way: max(off.values()) for way, off in _differences(rows, "float64_losses").items()}
    if not found:
        return []
    row = rows[0]
    parts = [f"{off:.1e} ({way})" for way, off in found.items()]
    text = (
        f"In float64 the losses of {len(row['float64_losses'])} steps of {row['float64_model']} on "
        f"{row['float64_dataset']}, on the same workers, are those of one device within {', '.join(parts)} of their "
        "value."
    )
    if max(found.values()) < _ROUNDING:
        text += " So what the layouts differ by there is rounding: sums are added up in another order."
    return [text]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws cluster_curve.png; returns the body of the report."""
    order = list(WAYS)
    rows = sorted(rows, key=lambda row: order.index(row["variant"]))
    draw(rows, directory / "cluster_curve.png", lambda row: row["variant"])
    limits = dict.fromkeys(
        note.rpartition("limited by ")[2] for row in rows for note in row["notes"] if "limited by " in note
    )
    return "\n\n".join(
        [
            "![Training loss and test accuracy](cluster_curve.png)",
            introduce(rows[0]),
            f"Each worker is a process of its own, limited by {' or '.join(limits)}. s/step: median (minimum to "
            "maximum) of all steps but the first of each session. off: the largest relative difference to the loss of "
            "the same step on one device.",
            _table(rows, _differences(rows, "losses")),
            *_in_float64(rows),
        ]
    )

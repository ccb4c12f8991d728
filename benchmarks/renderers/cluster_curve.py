"""The report on learning on a cluster: the curves of all layouts in one picture, and how far apart they are."""

import pathlib
from collections.abc import Mapping, Sequence

from benchmarks.cases.cluster_curve import WAYS
from benchmarks.cases.learning_curve import ONE
from benchmarks.renderers.learning_curve import (
    SMOOTHED_STEPS,
    differences,
    draw,
    introduce,
    last_loss,
    standard_error,
)
from benchmarks.renderers.tables import Row, table_of

_ROUNDING = 1e-9  # float64 losses that are closer than that differ by rounding alone


def _division(row: Row) -> str | None:
    sizes = [":".join(map(str, parts)) for parts in row["sizes"].values() if len(parts) > 1]
    return "; ".join(dict.fromkeys(sizes)) or None


def _name(row: Row) -> str:
    """A way in a picture: "filters, 2 : 1 on workers of 1.0, 0.5 core"."""
    layout, _, shares = row["variant"].partition(" ")
    cores = row["local_cluster"].replace(",", ", ")
    way = ONE if row["variant"] == ONE else f"{layout}, {shares.replace(',', ' : ')}" if shares else layout
    return f"{way} ({cores} core)"


def _differences(rows: Sequence[Row], column: str) -> dict[str, dict[int, float]]:
    """{way: how far the losses in that column of its row are from those on one device}."""
    reference = next((row[column] for row in rows if row["variant"] == ONE), None)
    if reference is None:
        return {}
    return {row["variant"]: differences(row[column], reference) for row in rows if row["variant"] != ONE}


def _table(rows: Sequence[Row], off: Mapping[str, Mapping[int, float]]) -> str:
    def difference(row: Row, step: int) -> str | None:
        of_way = off.get(row["variant"], {})
        return f"{of_way[step]:.1e}" if step in of_way else None

    columns = {
        "": lambda row: row["variant"],
        "cores": lambda row: row["local_cluster"].replace(",", ", "),
        "sizes": _division,
        "s/step": lambda row: row["wall_seconds_per_step"],
        "first loss": lambda row: f"{row['losses'][0]:.6f}",
        f"mean of the last {SMOOTHED_STEPS}": last_loss,
        "test accuracy": lambda row: f"{row['final_accuracy']:.1%} +- {standard_error(row):.1%}",
    }
    for step in sorted({step for of_way in off.values() for step in of_way}):
        columns[f"off up to step {step}"] = lambda row, step=step: difference(row, step)
    return table_of(rows, columns)


def _in_float64(rows: Sequence[Row]) -> list[str]:
    off = {way: max(of_way.values()) for way, of_way in _differences(rows, "float64_losses").items()}
    if not off:
        return []
    row = rows[0]
    text = (
        f"In float64 the losses of {len(row['float64_losses'])} steps of {row['float64_model']} on "
        f"{row['float64_dataset']}, on the same workers, are those of one device within "
        f"{', '.join(f'{most:.1e} ({way})' for way, most in off.items())} of their value."
    )
    if max(off.values()) < _ROUNDING:
        text += " So what the layouts differ by there is rounding: sums are added up in another order."
    return [text]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws cluster_curve.png; returns the body of the report."""
    order = list(WAYS)
    rows = sorted(rows, key=lambda row: order.index(row["variant"]))
    draw(rows, directory / "cluster_curve.png", _name)
    notes = [note for row in rows for note in row["notes"] if "limited by " in note]
    limits = dict.fromkeys(note.rpartition("limited by ")[2] for note in notes)
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

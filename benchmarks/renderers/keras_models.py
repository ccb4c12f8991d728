"""The report on Keras models: the difference of each from Keras, on every layout."""

import functools
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.keras_models import AGAIN, LAYOUTS, MODELS
from benchmarks.renderers.document import MOST_CONCLUSIONS, Part, Report
from benchmarks.renderers.tables import Row, Table, bullets, could_not, group_by, machines, power, succeeded, table

KINDS = {"output": "outputs", "gradient": "gradients", "weight": "weights", "average": "moving averages"}
_LIMITS = {"output": 1e-4, "gradient": 1e-3, "weight": 1e-3, "average": 1e-3}


def _worst(rows: Sequence[Row], kind: str) -> float | None:
    """Return the largest difference on any layout; a model without batch norm has no averages."""
    return max((row[kind] for row in rows if kind in row), default=None)


def _draw(models: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    colours = dict(zip(KINDS.values(), drawing.COLOURS, strict=False))
    with drawing.panels(path, height=1.2 + 0.22 * len(models), colours=colours, ncols=2) as (ax,):
        for kind, label in KINDS.items():
            worst = {name: _worst(of, kind) for name, of in models.items()}
            pairs = [(max(value, 1e-16), name) for name, value in worst.items() if value is not None]
            if pairs:
                ax.scatter(*zip(*pairs, strict=True), s=14, color=colours[label])
        for limit in sorted(set(_LIMITS.values())):
            ax.axvline(limit, color=drawing.GREY, linestyle="--", linewidth=1)
        ax.set_xscale("log")
        ax.invert_yaxis()
        ax.set_xlabel("largest difference from Keras, on any layout")


def _table(models: Mapping[str, Sequence[Row]], again: Mapping[str, Sequence[Row]]) -> Table:
    header = [
        "model",
        "million weights",
        "layers",
        "layouts",
        *KINDS.values(),
        "outputs in float32",
        "Keras's own outputs",
        "Keras's own gradients",
    ]
    lines = [
        [
            f"{name}, in float32" if of[0].get("dtype") == "float32" else name,
            f"{of[0]['weights'] / 1e6:.1f}",
            of[0]["layers"],
            _layouts(of),
            *(power(_worst(of, kind)) for kind in KINDS),
            power(_worst(of, "float32")),
            *(power(_worst(again.get(name, []), kind)) for kind in ("output", "gradient")),
        ]
        for name, of in models.items()
    ]
    return table(header, lines)


def _tables(models: Mapping[str, Sequence[Row]], again: Mapping[str, Sequence[Row]]) -> list[Part]:
    """Return a table for each machine; models with layouts on several have their own."""
    places = group_by(models.items(), lambda item: machines(item[1]))
    parts: list[Part] = []
    for place, of_place in places.items():
        parts += [f"## Models on {place}"] if len(places) > 1 else []
        parts.append(_table(dict(of_place), again))
    return parts


def _layouts(rows: Sequence[Row]) -> str:
    present = [layout for layout in LAYOUTS if layout in [row["layout"] for row in rows]]
    return "all" if len(present) == len(LAYOUTS) else ", ".join(present)


def _conclude(models: Mapping[str, Sequence[Row]], again: Mapping[str, Sequence[Row]]) -> list[str]:
    if not models:
        return [f"{name}: {_own(of)}." for name, of in again.items()][:MOST_CONCLUSIONS]
    outside = {
        name: of for name, of in models.items() if any((_worst(of, kind) or 0.0) > _LIMITS[kind] for kind in KINDS)
    }
    texts = [
        f"{len(models) - len(outside)} of {len(models)} models agree with Keras within the limits, on every layout."
    ]
    if outside:
        notes = [f"{name} ({_differences(of)})" for name, of in outside.items()]
        texts.append(f"Outside: {'; '.join(notes)}. Keras's own differences are in the last columns.")
    float32 = [value for of in models.values() if (value := _worst(of, "float32")) is not None]
    if float32:
        texts.append(f"Inference in float32 on one device differs by at most {max(float32):.0e}.")
    return texts


def _differences(rows: Sequence[Row]) -> str:
    worst = {kind: _worst(rows, kind) or 0.0 for kind in KINDS}
    return ", ".join(f"{KINDS[kind]} {worst[kind]:.0e}" for kind in KINDS if worst[kind] > _LIMITS[kind])


def _own(rows: Sequence[Row]) -> str:
    worst = [f"{KINDS[kind]} {_worst(rows, kind) or 0.0:.0e}" for kind in ("output", "gradient")]
    return f"Keras's own: {', '.join(worst)}" if rows else "Keras's own: not measured"


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a line per model."""
    good = succeeded(rows)
    ordered = sorted(good, key=lambda row: MODELS.index(row["model"]) if row["model"] in MODELS else len(MODELS))
    models = group_by((row for row in ordered if row["layout"] != AGAIN), lambda row: row["model"])
    again = group_by((row for row in good if row["layout"] == AGAIN), lambda row: row["model"])
    first = rows[0]
    shares = ":".join(f"{share:g}" for share in first["shares"])
    parts: list[Part] = [
        "The largest difference from Keras, on any layout, in float64: of outputs in training and inference, and of "
        f"gradients, weights and moving averages in {first['steps']} steps of gradient descent with momentum. Outputs "
        "in float32 are those of inference on one device.",
        f"Layouts: {', '.join(f'`{layout}`' for layout in LAYOUTS)}. `batch` and `filters` are split {shares} over "
        "three processors. Differences are relative to a tensor's largest value, or to 1 if that is less; those of "
        "gradients to at least a hundredth of the largest gradient. The dashed lines are the limits: 1e-4 for outputs, "
        "1e-3 for the rest.",
        "Keras's own: the difference of Keras from itself after each number of its images is replaced by the next "
        "larger one. A change of the last bit can flip a ReLU or a maximum.",
        *_tables(models, again),
        bullets(could_not("compared", rows, "model")),
    ]
    draw = functools.partial(_draw, models) if models else None
    return Report(_conclude(models, again), parts, "Differences from Keras", draw)

"""The report on Keras models: how far each is from Keras, on every layout, and a picture of it."""

import pathlib
from collections.abc import Sequence

from benchmarks import drawing
from benchmarks.cases.keras_models import AGAIN, LAYOUTS, MODELS
from benchmarks.renderers.tables import Row, bullets, could_not, group_by, table

KINDS = {"output": "outputs", "gradient": "gradients", "weight": "weights", "average": "moving averages"}
_LIMITS = {"output": 1e-4, "gradient": 1e-3, "weight": 1e-3, "average": 1e-3}


def _worst(rows: Sequence[Row], kind: str) -> float | None:
    """The largest difference on any layout; a model without batch norm has no averages."""
    return max((row[kind] for row in rows if kind in row), default=None)


def _power(value: float | None) -> str | None:
    return None if value is None else "0" if not value else f"{value:.0e}"


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws keras_models.png; returns the body of the report."""
    good = [row for row in rows if "failed" not in row]
    ordered = sorted(good, key=lambda row: MODELS.index(row["model"]) if row["model"] in MODELS else len(MODELS))
    models = group_by((row for row in ordered if row["layout"] != AGAIN), lambda row: row["model"])
    again = group_by((row for row in good if row["layout"] == AGAIN), lambda row: row["model"])
    figure, axes = drawing.make(1, 1, height=1.2 + 0.22 * len(models))
    ax = axes[0][0]
    for number, (kind, label) in enumerate(KINDS.items()):
        worst = {name: _worst(of, kind) for name, of in models.items()}
        pairs = [(max(value, 1e-16), name) for name, value in worst.items() if value is not None]
        if pairs:
            ax.scatter(*zip(*pairs, strict=True), s=14, color=drawing.COLOURS[number], label=label)
    for limit in sorted(set(_LIMITS.values())):
        ax.axvline(limit, color=drawing.GREY, linestyle="--", linewidth=1)
    ax.set_xscale("log")
    ax.invert_yaxis()
    ax.set_xlabel("largest difference from Keras, on any layout")
    drawing.legend(figure, {label: drawing.COLOURS[number] for number, label in enumerate(KINDS.values())})
    drawing.save(figure, directory / "keras_models.png")
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
            ", ".join(layout for layout in LAYOUTS if layout in [row["layout"] for row in of]),
            *(_power(_worst(of, kind)) for kind in KINDS),
            _power(_worst(of, "float32")),
            *(_power(_worst(again.get(name, []), kind)) for kind in ("output", "gradient")),
        ]
        for name, of in models.items()
    ]
    within = [
        name
        for name, of in models.items()
        if all((_worst(of, kind) or 0.0) <= limit for kind, limit in _LIMITS.items())
    ]
    first = rows[0]
    shares = ":".join(f"{share:g}" for share in first["shares"])
    return "\n\n".join(
        [
            "![Differences from Keras](keras_models.png)",
            "The largest difference from Keras, on any of the layouts, of outputs in training and inference, and of "
            f"gradients, weights and moving averages in {first['steps']} steps of gradient descent with momentum, in "
            f"float64; of what is inferred on one device, in float32 too. `batch` and `filters` are divided {shares} "
            "over three processors. Differences are relative to a tensor's largest value, or to 1 if that is less; "
            "those of gradients to a hundredth of the largest gradient at least. The dashed lines are the limits, 1e-4 "
            f"for outputs and 1e-3 for the rest: {len(within)} of {len(models)} models are within.",
            "Keras's own: how far Keras is from itself where each number of its images is the next larger "
            "one. A ReLU, or a maximum, may decide otherwise after a change of the last bit.",
            table(header, lines),
            bullets(could_not("compared", rows, "model")),
        ]
    ).strip()

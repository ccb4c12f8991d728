"""The report on Keras training: seconds of a step beside those of model.fit, and a picture of them."""

import pathlib
from collections.abc import Sequence

from benchmarks import drawing
from benchmarks.cases.keras_fit import KERAS, OURS, WORKERS
from benchmarks.renderers.tables import Row, group_by, median, table_of

_COLOURS = {KERAS: drawing.GREY, OURS: drawing.COLOURS[0]}


def _draw(settings: dict[str, list[Row]], path: pathlib.Path) -> None:
    most = max(map(len, settings.values()))
    figure, axes = drawing.make(1, len(settings), width=4.6, height=1.0 + 0.28 * most)
    for ax, (setting, rows) in zip(axes[0], settings.items(), strict=True):
        lengths = {f"{row['network']}: {row['way']}": row["batch_size"] / median(row) for row in rows}
        drawing.bars(ax, lengths, [_COLOURS.get(row["way"], drawing.COLOURS[1]) for row in rows], "images a second")
        ax.set_title(setting)
    drawing.save(figure, path)


def _table(rows: Sequence[Row]) -> str:
    columns = {
        "network, batch": lambda row: f"{row['network']}, {row['batch_size']}",
        "way": lambda row: row["way"],
        "s a step": lambda row: row["wall_seconds_per_step"],
        "over Keras": lambda row: row["wall_ratio"],
    }
    if rows[0]["setting"] != WORKERS:  # a worker's processor time is not the training process's
        columns["processor s a step"] = lambda row: row["cpu_seconds_per_step"]
        columns["processor time over Keras"] = lambda row: row["cpu_ratio"]
    return table_of(rows, columns, labels=2)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws keras_fit.png; returns the body of the report."""
    settings = group_by(rows, lambda row: row["setting"])
    _draw(settings, directory / "keras_fit.png")
    first = rows[0]
    parts = [
        "![Images a second](keras_fit.png)",
        f"Images of {first['pixels']} x {first['pixels']}, stochastic gradient descent with momentum, the same weights "
        f"and images for all ways of a setting. Median (minimum to maximum) of {first['repeats']} steps, in turns; "
        "over Keras: the ratios of steps of one round.",
    ]
    for setting, of_setting in settings.items():
        if setting == WORKERS:
            workers = ", ".join(f"{fraction:g}" for fraction in of_setting[0]["fractions"])
            about = f"Keras on one core; mtf_hetero on workers of {workers} cores, by the layout that auto takes."
        else:
            about = "All on the same cores of one machine; compiled: with jit_compile."
        parts += [f"## {setting.capitalize()}", about, _table(of_setting)]
    return "\n\n".join(parts)

"""The report on Keras training: seconds of a step beside those of model.fit, and a picture of them."""

import pathlib
from collections.abc import Sequence

from benchmarks import drawing
from benchmarks.cases.keras_fit import AUTO, FIRST_STEP, KERAS, LENGTHS, OURS, WORKERS
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


def _first_steps(rows: Sequence[Row]) -> list[str]:
    """The section on the time to the first step."""
    about = (
        "Seconds from the call of `fit` until its first step is done, each in a new process. Images of "
        f"{rows[0]['pixels']} x {rows[0]['pixels']} with stochastic gradient descent and momentum; a Transformer of "
        f"{rows[0]['layers']} layers with Adam. Median (minimum to maximum) of {rows[0]['repeats']} processes, in "
        "turns."
    )
    columns = {
        "network, batch": lambda row: f"{row['network']}, {row['batch_size']}",
        "way": lambda row: row["way"],
        "s to the first step": lambda row: row["wall_seconds"],
        "over Keras": lambda row: row["wall_ratio"],
        "processor s": lambda row: row["cpu_seconds"],
        "processor time over Keras": lambda row: row["cpu_ratio"],
    }
    return ["## Time to the first step", about, table_of(rows, columns, labels=2)]


def _lengths(rows: Sequence[Row]) -> list[str]:
    """The section on batches of many lengths."""
    about = (
        f"Two epochs of {rows[0]['lengths']} batches, each of another length, of two small convolutions with Adam: "
        f"seconds of the whole call of `fit`. Median (minimum to maximum) of {rows[0]['repeats']} processes, in turns."
    )
    columns = {
        "way": lambda row: row["way"],
        "s": lambda row: row["wall_seconds"],
        "processor s": lambda row: row["cpu_seconds"],
        "peak memory, MB": lambda row: f"{median(row, 'peak_bytes') / 1e6:.0f}",
    }
    return ["## Batches of many lengths", about, table_of(rows, columns)]


def _auto(rows: Sequence[Row]) -> list[str]:
    """The section on the choice of a layout."""
    fractions = " and ".join(f"{fraction:g}" for fraction in rows[0]["fractions"])
    about = (
        f'Seconds from the call of `fit` with `layout="auto"` until the first step is done, on workers of {fractions} '
        "cores, and what it printed. The number of steps is that of the training which is announced."
    )
    columns = {
        "network, batch": lambda row: f"{row['network']}, {row['batch_size']}",
        "steps": lambda row: f"{row['steps']:,}",
        "s to the first step": lambda row: f"{median(row, 'wall_seconds'):.1f}",
        "chosen": lambda row: row["said"],
    }
    return ["## The choice of a layout", about, table_of(rows, columns, labels=2)]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws keras_fit.png; returns the body of the report."""
    settings = group_by(rows, lambda row: row["setting"])
    others = {name: settings.pop(name) for name in (FIRST_STEP, LENGTHS, AUTO) if name in settings}
    sections = {FIRST_STEP: _first_steps, LENGTHS: _lengths, AUTO: _auto}
    parts = _steps(settings, directory)
    for name, of_setting in others.items():
        parts += sections[name](of_setting)
    return "\n\n".join(parts)


def _steps(settings: dict[str, list[Row]], directory: pathlib.Path) -> list[str]:
    """The picture, and a section on the steps of each setting."""
    if not settings:
        return []
    _draw(settings, directory / "keras_fit.png")
    first = next(iter(settings.values()))[0]
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
    return parts

"""The report on Keras training: step times of mtf_hetero.keras.fit beside those of model.fit."""

import functools
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.keras_fit import AUTO, CALLS, COMPILED, FIRST_STEP, KERAS, LENGTHS, ONE_DEVICE, OURS, WORKERS
from benchmarks.renderers.document import MOST_CONCLUSIONS, Part, Report
from benchmarks.renderers.tables import Columns, Row, Table, group_by, median, span, succeeded, tabulate

# Columns
_NETWORK: Columns = {"network, batch": lambda row: f"{row['network']}, {row['batch_size']}"}
_WAY: Columns = {"way": lambda row: row["way"]}
_RATIO: Columns = {"over Keras": lambda row: row["wall_ratio"]}
_CPU: Columns = {"processor s": lambda row: row["cpu_seconds"]}
_COLOURS = {KERAS: drawing.GREY, COMPILED: drawing.COLOURS[1], OURS: drawing.COLOURS[0]}


def _draw(settings: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    most = max(map(len, settings.values()))
    with drawing.panels(path, len(settings), len(settings), height=1.0 + 0.28 * most) as axes:
        for ax, (setting, group) in zip(axes, settings.items(), strict=True):
            rows = succeeded(group)
            lengths = {f"{row['network']}: {row['way']}": 1.0 / median(row, "wall_ratio") for row in rows}
            drawing.bars(ax, lengths, [_COLOURS[row["way"]] for row in rows], "examples per second, Keras = 1")
            ax.set_title(setting)


def _table(rows: Sequence[Row]) -> Table:
    columns = _NETWORK | _WAY | {"s per step": lambda row: row["wall_seconds_per_step"]} | _RATIO
    if rows[0]["setting"] != WORKERS:  # a worker's processor time is not the training process's
        columns["processor s per step"] = lambda row: row["cpu_seconds_per_step"]
        columns["processor time over Keras"] = lambda row: row["cpu_ratio"]
    return tabulate(rows, columns, labels=2)


def _first_steps(rows: Sequence[Row]) -> list[Part]:
    """Return the section on the time to the first step."""
    about = (
        "Seconds from the call of `fit` until its first step is done, each in a new process. Images of "
        f"{rows[0]['pixels']} x {rows[0]['pixels']} with stochastic gradient descent and momentum; a Transformer of "
        f"{rows[0]['layers']} layers with Adam. Median (minimum to maximum) of {rows[0]['repeats']} processes, in "
        "turns."
    )
    columns = _NETWORK | _WAY | {"s to the first step": lambda row: row["wall_seconds"]} | _RATIO | _CPU
    columns |= {"processor time over Keras": lambda row: row["cpu_ratio"]}
    return ["## Time to the first step", about, tabulate(rows, columns, labels=2)]


def _lengths(rows: Sequence[Row]) -> list[Part]:
    """Return the section on batches of many lengths."""
    about = (
        f"Two small convolutions with Adam, two epochs of {rows[0]['lengths']} batches, each of another length: "
        f"seconds of one call of `fit`. Median (minimum to maximum) of {rows[0]['repeats']} processes, in turns."
    )
    columns = _WAY | {"s": lambda row: row["wall_seconds"]} | _CPU
    columns |= {"peak memory, MB": lambda row: f"{median(row, 'peak_bytes') / 1e6:.0f}"}
    return ["## Batches of many lengths", about, tabulate(rows, columns)]


def _auto(rows: Sequence[Row]) -> list[Part]:
    """Return the section on the choice of a layout."""
    fractions = " and ".join(f"{fraction:g}" for fraction in rows[0]["fractions"])
    about = (
        f'Seconds from the call of `fit` with `layout="auto"` until the first step is done, on workers of {fractions} '
        "cores, and the line that it printed. Steps are those of the training that was asked for."
    )
    columns = _NETWORK | {
        "steps": lambda row: f"{row['steps']:,}",
        "s to the first step": lambda row: f"{median(row, 'wall_seconds'):.1f}",
        "chosen": lambda row: row["said"],
    }
    return ["## The choice of a layout", about, tabulate(rows, columns, labels=2)]


def _calls(rows: Sequence[Row]) -> list[Part]:
    """Return the section on several steps in one call."""
    speeds = next((row["shares"] for row in rows if row["where"] == WORKERS), None)
    about = "Seconds of a step, with several steps in one call: Keras's `steps_per_execution`. Batches of "
    about += f"{rows[0]['batch_size']}, with Adam. Median (minimum to maximum) of {rows[0]['repeats']} times "
    about += f"{rows[0]['steps']} steps, in turns; over Keras: ratios of the steps of one round."
    if speeds is not None:
        about += f" On workers, the batch is split {speeds[0]:g} : {speeds[1]:g}; Keras has the faster core alone."
    columns = _NETWORK | {"on": lambda row: row["where"], "steps in a call": lambda row: str(row["steps_per_call"])}
    columns |= _WAY | {"s per step": lambda row: row["wall_seconds_per_step"]} | _RATIO
    return ["## Several steps in one call", about, tabulate(rows, columns, labels=4)]


def _ratio(rows: Sequence[Row]) -> list[float]:
    """Return the medians of mtf_hetero's step times, or others, over Keras's."""
    return [median(row, "wall_ratio") for row in succeeded(rows) if row["way"].startswith(OURS)]


def _conclude(settings: Mapping[str, Sequence[Row]]) -> list[str]:
    texts = {
        ONE_DEVICE: "On one device, mtf_hetero's step time is {} times that of Keras.",
        WORKERS: "On two unequal workers, its step time is {} times that of Keras on the faster one.",
        FIRST_STEP: "Its first step is done after {} times the time that Keras needs.",
        LENGTHS: "With batches of many lengths it needs {} times as long as Keras.",
    }
    ratios = {setting: _ratio(settings[setting]) for setting in texts if setting in settings}
    texts = [texts[setting].format(span(of)) for setting, of in ratios.items() if of]
    if AUTO in settings:
        slowest = max(median(row, "wall_seconds") for row in settings[AUTO])
        texts.append(f'`layout="auto"` starts the first step after at most {slowest:.1f} s.')
    most = MOST_CONCLUSIONS
    return [*texts[: most - 1], " ".join(texts[most - 1 :])] if len(texts) > most else texts


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table per setting."""
    settings = group_by(rows, lambda row: row["setting"])
    stepped = {name: group for name, group in settings.items() if name in (ONE_DEVICE, WORKERS)}
    parts = _steps(stepped)
    for name, describe in {FIRST_STEP: _first_steps, LENGTHS: _lengths, CALLS: _calls, AUTO: _auto}.items():
        parts += describe(settings[name]) if name in settings else []
    draw = functools.partial(_draw, stepped) if stepped else None
    return Report(_conclude(settings), parts, "Examples per second, relative to Keras", draw)


def _steps(settings: Mapping[str, Sequence[Row]]) -> list[Part]:
    """Return a section on the steps of each setting."""
    if not settings:
        return []
    first = next(iter(settings.values()))[0]
    parts: list[Part] = [
        f"Images of {first['pixels']} x {first['pixels']}, stochastic gradient descent with momentum; sequences with "
        "Adam. All ways of a setting have the same weights and examples. Median (minimum to maximum) of "
        f"{first['repeats']} steps, in turns; "
        "over Keras: ratios of the steps of one round.",
    ]
    for setting, of_setting in settings.items():
        if setting == WORKERS:
            workers = " and ".join(f"{fraction:g}" for fraction in of_setting[0]["fractions"])
            about = f'Keras on one core; mtf_hetero on workers of {workers} cores, with `layout="auto"`.'
        else:
            about = "All on the same cores of one machine; compiled: with `jit_compile`."
        parts += [f"## {setting.capitalize()}", about, _table(of_setting)]
    return parts

"""The reports on learning: of images, on one machine and on a cluster; and of volumes."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colors, patches

from benchmarks import drawing
from benchmarks.cases.learning import ONE, UNEVEN, WAYS
from benchmarks.pictures import unpack
from benchmarks.renderers.tables import Row, cell, division, number, table, table_of

_SMOOTHED_STEPS = 20
_WIDTH, _WIDTH_BELOW = 1.4, 3.2
_DASH = 4
_ROUNDING = 1e-9  # float64 losses that are closer than that differ by rounding alone
_SYMBOLS = {"omega_m": r"$\Omega_m$", "sigma_8": r"$\sigma_8$", "n_s": r"$n_s$"}
_SLICES = {
    "image": "a slice of the scan",
    "true": "true classes",
    "network": "predicted by the network",
    "thresholds": "predicted by thresholds",
}


def _smooth(losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the mean loss of the steps up to each."""
    window = min(_SMOOTHED_STEPS, len(losses))
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    return np.arange(window, len(losses) + 1), means


def _last_loss(row: Row) -> str:
    """The smoothed loss at the end."""
    return number(float(_smooth(row["losses"])[1][-1]), 4)


def _draw_losses(ax: Any, row: Row, label: str, **style: Any) -> None:
    """Draws the training losses of a run, thin, and their smoothed curve in a style."""
    losses = row["losses"]
    ax.plot(np.arange(1, len(losses) + 1), losses, color=style["color"], linewidth=0.5, alpha=0.3)
    ax.plot(*_smooth(losses), label=label, **style)


def _draw_curves(rows: Sequence[Row], path: pathlib.Path, name: Callable[[Row], str]) -> None:
    """Draws loss and test accuracy of runs, whose first one is what the others are compared with.

    The first line is thick and below the others, whose dashes take turns: all are seen where they agree.
    """
    others = len(rows) - 1
    lines: list[Any] = ["-"] if others == 1 else [(_DASH * i, (_DASH, _DASH * (others - 1))) for i in range(others)]
    widths = [{"linewidth": _WIDTH_BELOW}, *({"linewidth": _WIDTH, "linestyle": line} for line in lines)]
    styles: list[dict[str, Any]] = [{"color": c, **width} for c, width in zip(drawing.COLOURS, widths, strict=False)]
    figure, ((loss_ax, accuracy_ax),) = drawing.make(1, 2, width=5.2, height=3.8)
    for row, style in zip(rows, styles, strict=True):
        _draw_losses(loss_ax, row, name(row), **style)
        steps, accuracy = zip(*row["accuracy"], strict=True)
        percent = [100 * value for value in accuracy]
        accuracy_ax.plot(steps, percent, **style, marker="o", markersize=style["linewidth"] + 2)
    loss_ax.set_ylabel(f"loss (thin: each step, thick: mean of {_SMOOTHED_STEPS} steps)")
    accuracy_ax.set_ylabel("accuracy in %")
    accuracy_ax.set_ylim(bottom=0)
    for ax, title in ((loss_ax, "training"), (accuracy_ax, "test")):
        ax.set_title(title)
        ax.set_xlabel(f"step of {rows[0]['batch_size']} images")
    drawing.legend(figure, {name(row): style["color"] for row, style in zip(rows, styles, strict=True)}, ncols=4)
    drawing.save(figure, path)


def _introduce(row: Row) -> str:
    """What is trained, and on how many images it is tested."""
    images = _final_images(row)
    whole = "all " if images == row["test_images"] else ""
    rate = f"{row['learning_rate_schedule']} rate"
    rate += "" if row.get("learning_rate") is None else f" of {row['learning_rate']:g}"
    return (
        f"{row['model']} ({row['parameters']:,} parameters) on {row['dataset']}, {row['steps']} steps of "
        f"{row['batch_size']} images, {row['optimizer']}, {rate}, seed {row['seed']}: "
        "the same initial values, the same images in the same order. The picture's accuracies are of "
        f"{row['tested_images']:,} test images, the table's of {whole}{images:,}."
    )


def _final_images(row: Row) -> int:
    """Images of the last test; rows that do not say so were tested on all."""
    return row.get("final_images", row["test_images"])


def _standard_error(row: Row) -> float:
    """Of the accuracy in the last test."""
    accuracy = row["final_accuracy"]
    return (accuracy * (1 - accuracy) / _final_images(row)) ** 0.5


def _differences(losses: Sequence[float], reference: Sequence[float]) -> dict[int, float]:
    """{step: the largest relative difference of two runs' losses up to that step}, for some steps and the last."""
    steps = min(len(losses), len(reference))
    first, second = np.asarray(losses[:steps]), np.asarray(reference[:steps])
    relative = np.abs(first - second) / np.abs(second)
    return {n: float(relative[:n].max()) for n in sorted({1, 10, 50, steps}) if n <= steps}


def render_curve(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws learning_curve.png, loss and test accuracy of both runs; returns the body of the report."""

    def name(row: Row) -> str:
        return ONE if row["shares"] is None else f"{row['shares']} on {len(row['devices'])} devices"

    columns = {
        "": name,
        "loss of the first step": lambda row: f"{row['losses'][0]:.6f}",
        f"mean loss of the last {_SMOOTHED_STEPS}": _last_loss,
        "test accuracy": lambda row: f"{row['final_accuracy']:.2%}",
        "standard error": lambda row: f"{_standard_error(row):.2%}",
    }
    rows = sorted(rows, key=lambda row: row["variant"] == UNEVEN)
    _draw_curves(rows, directory / "learning_curve.png", lambda row: name(row).replace(",", " : "))
    sizes = next((row["sizes"] for row in rows if row["shares"] is not None), {})
    parts = ["![Training loss and test accuracy](learning_curve.png)", _introduce(rows[0]), table_of(rows, columns)]
    if len(rows) > 1:
        off = _differences(rows[0]["losses"], rows[1]["losses"])
        steps = ", ".join(f"{difference:.1e} up to step {step}" for step, difference in off.items())
        parts.append(f"Largest relative difference between the two losses of a step: {steps}.")
    divided = "; ".join(f"{name}: {', '.join(map(str, parts))}" for name, parts in sizes.items())
    return "\n\n".join([*parts, f"How the dimensions are divided: {divided}"])


def _cores(row: Row) -> str:
    return row["local_cluster"].replace(",", ", ")


def _name_on_cluster(row: Row) -> str:
    """A way in a picture: "filters, 2 : 1 on workers of 1.0, 0.5 core"."""
    layout, _, shares = row["variant"].partition(" ")
    way = ONE if row["variant"] == ONE else f"{layout}, {shares.replace(',', ' : ')}" if shares else layout
    return f"{way} ({_cores(row)} core)"


def _off(rows: Sequence[Row], column: str) -> dict[str, dict[int, float]]:
    """{way: how far the losses in that column of its row are from those on one device}."""
    reference = next((row[column] for row in rows if row["variant"] == ONE), None)
    if reference is None:
        return {}
    return {row["variant"]: _differences(row[column], reference) for row in rows if row["variant"] != ONE}


def _cluster_table(rows: Sequence[Row], off: Mapping[str, Mapping[int, float]]) -> str:
    def difference(row: Row, step: int) -> str | None:
        of_way = off.get(row["variant"], {})
        return f"{of_way[step]:.1e}" if step in of_way else None

    columns = {
        "": lambda row: row["variant"],
        "cores": _cores,
        "sizes": division,
        "s/step": lambda row: row["wall_seconds_per_step"],
        "first loss": lambda row: f"{row['losses'][0]:.6f}",
        f"mean of the last {_SMOOTHED_STEPS}": _last_loss,
        "test accuracy": lambda row: f"{row['final_accuracy']:.1%} +- {_standard_error(row):.1%}",
    }
    for step in sorted({step for of_way in off.values() for step in of_way}):
        columns[f"off up to step {step}"] = lambda row, step=step: difference(row, step)
    return table_of(rows, columns)


def _in_float64(rows: Sequence[Row]) -> list[str]:
    off = {way: max(of_way.values()) for way, of_way in _off(rows, "float64_losses").items()}
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


def render_cluster_curve(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws cluster_curve.png, the curves of all layouts; returns the body of the report."""
    order = list(WAYS)
    rows = sorted(rows, key=lambda row: order.index(row["variant"]))
    _draw_curves(rows, directory / "cluster_curve.png", _name_on_cluster)
    notes = [note for row in rows for note in row["notes"] if "limited by " in note]
    limits = dict.fromkeys(note.rpartition("limited by ")[2] for note in notes)
    return "\n\n".join(
        [
            "![Training loss and test accuracy](cluster_curve.png)",
            _introduce(rows[0]),
            f"Each worker is a process of its own, limited by {' or '.join(limits)}. s/step: median (minimum to "
            "maximum) of all steps but the first of each session. off: the largest relative difference to the loss of "
            "the same step on one device.",
            _cluster_table(rows, _off(rows, "losses")),
            *_in_float64(rows),
        ]
    )


def _draw_volume_loss(ax: Any, row: Row, label: str) -> None:
    """Draws the training loss, and that of the test set; the label says what it is."""
    _draw_losses(ax, row, f"training loss, mean of {_SMOOTHED_STEPS} steps", color=drawing.COLOURS[1])
    steps, metrics = zip(*row["tests"], strict=True)
    losses = [values["loss"] for values in metrics]
    ax.plot(steps, losses, color=drawing.COLOURS[2], marker="o", label="loss of the test set")
    ax.set_ylim(bottom=0)
    ax.set_title("learning")
    ax.set_xlabel(f"step of {row['batch_size']} volumes")
    ax.set_ylabel(label)


def _introduce_volumes(row: Row) -> str:
    """What is trained, on what, and how it is divided."""
    depth = next((sizes for name, sizes in row["sizes"].items() if name.startswith("depth of ")), [])
    return (
        f"{row['model']} ({row['parameters']:,} parameters), {row['steps']} steps of {row['batch_size']} volumes, Adam "
        f"with a rate of {row['learning_rate']:g} that falls to zero as a cosine, seed {row['seed']}; "
        f"{row['train_volumes']:,} volumes to learn from, mirrored and turned at random, and {row['test_volumes']:,} "
        f"to test on. Two logical devices of one CPU hold {' and '.join(map(str, depth))} planes of each volume. A "
        f"step takes {cell(row['wall_seconds_per_step'])} s."
    )


def _draw_universes(row: Row, path: pathlib.Path) -> None:
    true, predicted, ridge = (np.array(row[name]) for name in ("true", "told", "ridge"))
    figure, axes = drawing.make(1, 1 + len(row["targets"]), width=3.4, height=3.6)
    _draw_volume_loss(axes[0, 0], row, "mean squared error of normalised parameters")
    for i, (ax, name) in enumerate(zip(axes[0, 1:], row["targets"], strict=True)):
        bounds = [true[:, i].min(), true[:, i].max()]
        ax.plot(bounds, bounds, color=drawing.GREY, linewidth=1, label="predicted = true")
        ax.scatter(true[:, i], ridge[:, i], s=9, color=drawing.COLOURS[4], label="predicted by ridge regression")
        ax.scatter(true[:, i], predicted[:, i], s=9, color=drawing.COLOURS[0], label=f"predicted by {row['model']}")
        symbol = _SYMBOLS.get(name, name)
        ax.set_title(name)
        ax.set_xlabel(f"true {symbol}")
        ax.set_ylabel(f"predicted {symbol}")
    drawing.legend(figure, ncols=5)
    drawing.save(figure, path)


def _scores(row: Row) -> str:
    """Mean absolute error and R2 of each parameter, of each way to predict it."""
    true = np.array(row["true"])
    ways = {"mean": np.broadcast_to(row["train_mean"], true.shape), "ridge regression": np.array(row["ridge"])}
    ways[row["model"]] = np.array(row["told"])
    variance = np.square(true - true.mean(0)).sum(0)
    errors = [np.abs(predicted - true).mean(0) for predicted in ways.values()]
    r2 = [1.0 - np.square(predicted - true).sum(0) / variance for predicted in ways.values()]
    header = ["", *(f"error of {name}" for name in ways), *(f"R2 of {name}" for name in ways)]
    lines = [
        [target, *(of_way[i] for of_way in errors), *(f"{of_way[i]:.2f}" for of_way in r2)]
        for i, target in enumerate(row["targets"])
    ]
    return table(header, lines)


def render_cosmology(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws cosmology.png, predicted against true parameters; returns the body of the report."""
    (row,) = rows
    _draw_universes(row, directory / "cosmology.png")
    made_by = row["set"]
    return "\n\n".join(
        [
            "![Loss, and predicted against true parameters](cosmology.png)",
            f"Simulated universes of {made_by['size']} cells along each edge, {made_by['cell']:g} Mpc/h each: dark "
            "matter by second-order Lagrangian perturbation theory. " + _introduce_volumes(row),
            "Of the test universes, mean absolute error and R2, 1 less the share of the variance that is left. The "
            "mean is that of the training universes. Ridge regression is on the logarithms of power spectrum and "
            "histogram, with the penalty that does best for each parameter in five-fold cross-validation.",
            _scores(row),
        ]
    )


def _draw_scan(row: Row, path: pathlib.Path) -> None:
    figure, axes = drawing.make(1, 1 + len(_SLICES), width=3.0, height=3.2)
    _draw_volume_loss(axes[0, 0], row, "cross entropy of a voxel")
    classes = colors.ListedColormap(["#000000", drawing.COLOURS[4]])
    for ax, (key, title) in zip(axes[0, 1:], _SLICES.items(), strict=True):
        style = {"cmap": "gray"} if key == "image" else {"cmap": classes, "vmin": 0, "vmax": len(row["classes"]) - 1}
        ax.imshow(unpack(row["slice"][key]), origin="lower", interpolation="nearest", **style)
        ax.set_title(title)
        ax.set_axis_off()
    axes[0, 2].add_patch(patches.Rectangle((0, 0), 0, 0, color=drawing.COLOURS[4], label=row["classes"][-1]))
    drawing.legend(figure)
    drawing.save(figure, path)


def render_segmentation(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws segmentation.png, a slice with what is predicted of it; returns the body of the report."""
    (row,) = rows
    _draw_scan(row, directory / "segmentation.png")
    made_by, (low, high), dice = row["set"], row["thresholds"], row["dice"]
    lines = [[name, *(of_way[i] for of_way in dice.values())] for i, name in enumerate(row["classes"]) if i]
    return "\n\n".join(
        [
            "![Loss, and a slice of the back half](segmentation.png)",
            f"Scan: {made_by['scan']}. Patches of {made_by['edge']} voxels along each edge, those to learn from of its "
            "front half, those to test on side by side in its back half: a demonstration on one head, which says "
            "nothing of others. " + _introduce_volumes(row),
            f"Of all test patches together. The thresholds, from {low} to below {high} of 255, are those with the best "
            "Dice in the front half.",
            table(["Dice", *dice], lines),
        ]
    )

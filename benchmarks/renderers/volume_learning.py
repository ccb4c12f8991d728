"""What the reports on learning from volumes have in common: the loss of each step, and the sentence on the run."""

from typing import Any

from benchmarks import drawing
from benchmarks.renderers.learning_curve import SMOOTHED_STEPS, draw_losses
from benchmarks.renderers.tables import Row, cell


def draw_loss(ax: Any, row: Row, label: str) -> None:
    """Draws the training loss, and that of the test set; the label says what it is."""
    draw_losses(ax, row, f"training loss, mean of {SMOOTHED_STEPS} steps", color=drawing.COLOURS[1])
    steps, metrics = zip(*row["tests"], strict=True)
    losses = [values["loss"] for values in metrics]
    ax.plot(steps, losses, color=drawing.COLOURS[2], marker="o", label="loss of the test set")
    ax.set_ylim(bottom=0)
    ax.set_title("learning")
    ax.set_xlabel(f"step of {row['batch_size']} volumes")
    ax.set_ylabel(label)


def introduce(row: Row) -> str:
    """What is trained, on what, and how it is divided."""
    depth = next((sizes for name, sizes in row["sizes"].items() if name.startswith("depth of ")), [])
    return (
        f"{row['model']} ({row['parameters']:,} parameters), {row['steps']} steps of {row['batch_size']} volumes, Adam "
        f"with a rate of {row['learning_rate']:g} that falls to zero as a cosine, seed {row['seed']}; "
        f"{row['train_volumes']:,} volumes to learn from, mirrored and turned at random, and {row['test_volumes']:,} "
        f"to test on. Two logical devices of one CPU hold {' and '.join(map(str, depth))} planes of each volume. A "
        f"step takes {cell(row['wall_seconds_per_step'])} s."
    )

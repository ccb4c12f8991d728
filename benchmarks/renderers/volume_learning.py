"""What the reports on learning from volumes have in common: the loss of each step, and the sentence on the run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import figures
from benchmarks.renderers import markdown
from benchmarks.renderers.learning_curve import SMOOTHED_STEPS, smooth

Row = Mapping[str, Any]


def draw_loss(ax: Any, row: Row, *, what: str) -> None:
    """Draws the training loss, and that of the test set.

    Args:
      ax: where to.
      row: of the run.
      what: is the loss.
    """
    losses = row["losses"]
    ax.plot(np.arange(1, len(losses) + 1), losses, color=figures.COLOURS[0], linewidth=0.5, alpha=0.3)
    ax.plot(*smooth(losses), color=figures.COLOURS[0], label=f"training, mean of {SMOOTHED_STEPS} steps")
    steps, found = zip(*row["tests"], strict=True)
    ax.plot(steps, [metrics["loss"] for metrics in found], color=figures.COLOURS[1], marker="o", label="test")
    ax.set_ylim(bottom=0)
    ax.set_title(what)
    ax.set_xlabel(f"step of {row['batch_size']} volumes")
    ax.legend(loc="upper right")


def introduce(row: Row) -> str:
    """What is trained, on what, and how it is divided."""
    depth = next((sizes for name, sizes in row["sizes"].items() if name.startswith("depth of ")), [])
    return (
        f"{row['model']} ({row['parameters']:,} parameters), {row['steps']} steps of {row['batch_size']} volumes, Adam "
        f"with a rate of {row['learning_rate']:g} that falls to zero as a cosine, seed {row['seed']}; "
        f"{row['train_volumes']:,} volumes to learn from, mirrored and turned at random, and {row['test_volumes']:,} "
        f"to test on. Two logical devices of one CPU hold {' and '.join(map(str, depth))} planes of each volume. A "
        f"step takes {markdown.spread(row['wall_seconds_per_step'])} s."
    )

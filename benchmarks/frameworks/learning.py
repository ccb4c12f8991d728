"""A training run in pieces, with the loss of every step and the test accuracy after each piece."""

import contextlib
from typing import Any

from models import training
from models.config import Config
from mtf_hetero import tf
from mtf_hetero.hooks import LOSS_COLLECTION_KEY


class _LossHook(tf.train.SessionRunHook):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def begin(self) -> None:
        self._loss = tf.get_collection(LOSS_COLLECTION_KEY)[-1]

    def before_run(self, run_context: Any) -> Any:
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.losses.append(float(run_values.results))


class LearningRun:
    """What `python -m models.train` does with these settings.

    Args:
      **config: as in models.config.Config.

    Raises:
      ValueError: settings that do not fit together, or data that is not there.
    """

    def __init__(self, **config: Any) -> None:
        self._config = Config(**config)
        self._run = training.prepare(self._config, contextlib.ExitStack())
        self._step = 0

    def describe(self) -> dict[str, Any]:
        """The layout, and how it divides the dimensions."""
        layout = self._run.layout
        return {
            "layout": [list(rule) for rule in layout.rules],
            "sizes": {f"{name} of {size}": list(layout.split(name, size)) for name, size in self._run.split_dims},
            "parameters": self._run.parameters,
            "test_images": self._run.dataset.test_size,
        }

    def train_to(self, step: int) -> list[float]:
        """Trains until this step; returns the loss of each step on the way."""
        hook = _LossHook()
        config, start = self._config, self._step

        def input_fn() -> Any:
            return self._run.dataset.train_input_fn(
                config.batch_size, config.train_epochs, config.seed, start_batch=start
            )

        self._run.estimator.train(input_fn, hooks=[hook], max_steps=step)
        self._step = step
        return hook.losses

    def test(self, batches: int | None = None) -> float:
        """Accuracy on the test images, or on the first batches of them."""
        dataset, batch_size = self._run.dataset, self._config.batch_size
        results = self._run.estimator.evaluate(lambda: dataset.test_input_fn(batch_size), steps=batches)
        return float(results["accuracy"])

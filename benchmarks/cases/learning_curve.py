"""Learning curve: the paper's CIFAR-10 network at 70, 25, 5 on three devices, and on one device.

    python -m benchmarks.run learning_curve --data_dir=...

Both runs begin with the same initial values and see the same images in the same order, with the paper's batch size and
optimizer. The data is CIFAR-10 as tensorflow-datasets prepares it in --data_dir (by default ~/tensorflow_datasets).

Time: about an hour on two cores. Expected: the two curves lie on each other at first; float32 sums are added up in
another order, which training amplifies, and after some hundred steps they differ as two runs of one program on two
machines do.
"""

import dataclasses
import tempfile
from typing import Any, ClassVar

from benchmarks.cases.base import Case, progress
from benchmarks.process import Child
from benchmarks.rows import Writer

_TARGET = "benchmarks.frameworks.learning:LearningRun"
UNEVEN, ONE = "70,25,5", "one device"
_DEVICES = {UNEVEN: ("cpu:0", "cpu:1", "cpu:2"), ONE: ("cpu:0",)}
_TRAIN_IMAGES = 4000  # at least, in any of the data sets; only the number of epochs is reckoned from it


@dataclasses.dataclass(frozen=True)
class LearningCurve(Case):
    """The case.

    Args:
      steps: training steps.
      data_dir: where prepared data sets are; None: ~/tensorflow_datasets.
      model: a name in models.MODELS.
      dataset: a data set.
      batch_size: images per step, and per batch of the test.
      optimizer: one of models.config.OPTIMIZERS.
      test_every: steps between tests.
      test_batches: batches of a test on the way; the last test takes all images.
    """

    name: ClassVar[str] = "learning_curve"
    summary: ClassVar[str] = "paper_cifar learns CIFAR-10 at 70,25,5 as it does on one device"

    steps: int = 500
    data_dir: str | None = None
    model: str = "paper_cifar"
    dataset: str = "cifar10"
    batch_size: int = 200
    optimizer: str = "adafactor"
    test_every: int = 50
    test_batches: int = 10

    def variants(self) -> tuple[str, ...]:
        return tuple(_DEVICES)

    def make_toy(self) -> "LearningCurve":
        return dataclasses.replace(
            self, toy=True, steps=4, model="lenet", dataset="mnist5k", batch_size=20, test_every=2, test_batches=1
        )

    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        with progress(len(variants) * self.steps, "steps") as bar:
            for variant in variants:
                bar.set_description(variant)
                with tempfile.TemporaryDirectory(prefix="learning_curve_") as model_dir:
                    writer.write(variant, self._train(variant, model_dir, bar))

    def _train(self, variant: str, model_dir: str, bar: Any) -> dict[str, Any]:
        devices = list(_DEVICES[variant])
        shares = variant if len(devices) > 1 else None
        config = {
            "model": self.model,
            "dataset": self.dataset,
            "data_dir": self.data_dir,
            "model_dir": model_dir,
            "batch_size": self.batch_size,
            "train_epochs": -(-self.steps * self.batch_size // _TRAIN_IMAGES),
            "max_steps": self.steps,
            "optimizer": self.optimizer,
            "learning_rate_schedule": "constant",
            "list_speed": shares,
            "devices": devices,
            "seed": self.seed,
        }
        losses: list[float] = []
        accuracy: list[tuple[int, float]] = []
        with Child(_TARGET, config) as child:
            description = child.call("describe")
            while len(losses) < self.steps:
                start = len(losses)
                step = min(start + self.test_every, self.steps)
                losses += child.call("train_to", step=step)
                bar.update(step - start)
                accuracy.append((step, child.call("test", batches=self.test_batches)))
            final = child.call("test")
        return {
            **{key: value for key, value in config.items() if key not in ("data_dir", "model_dir", "list_speed")},
            **description,
            "shares": shares,
            "warmup": 0,
            "steps": self.steps,
            "repeats": 1,
            "tested_images": self.test_batches * self.batch_size,
            "losses": losses,
            "accuracy": accuracy,
            "final_accuracy": final,
        }

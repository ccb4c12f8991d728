"""Learning curve: the paper's CIFAR-10 network at 70, 25, 5 on three devices, and on one device.

    python -m benchmarks.run learning_curve --data_dir=...

Both runs begin with the same initial values and see the same images in the same order, with the paper's batch size and
optimizer. The data is CIFAR-10 as tensorflow-datasets prepares it in --data_dir (by default ~/tensorflow_datasets).

Time: about an hour on two cores. Expected: the two curves lie on each other at first; float32 sums are added up in
another order, which training amplifies, and after some hundred steps they differ as two runs of one program on two
machines do.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from benchmarks.cases.learning import Learning
from benchmarks.process import Child

UNEVEN, ONE = "70,25,5", "one device"


@dataclasses.dataclass(frozen=True)
class LearningCurve(Learning):
    """The case.

    Args:
      data_dir: where prepared data sets are; None: ~/tensorflow_datasets.
      model: a name in models.MODELS.
      dataset: a data set.
      optimizer: one of models.train.config.OPTIMIZERS.
      learning_rate: None: the optimizer's own.
      test_batches: batches of a test on the way.
      final_batches: batches of the last test; None: all images.
    """

    name: ClassVar[str] = "learning_curve"
    summary: ClassVar[str] = "paper_cifar learns CIFAR-10 at 70,25,5 as it does on one device"
    target: ClassVar[str] = "benchmarks.frameworks.learning:LearningRun"
    tests_column: ClassVar[str] = "accuracy"
    hidden: ClassVar[tuple[str, ...]] = ("data_dir", "model_dir")

    data_dir: str | None = None
    model: str = "paper_cifar"
    dataset: str = "cifar10"
    optimizer: str = "adafactor"
    learning_rate: float | None = None
    test_batches: int = 10
    final_batches: int | None = None

    def make_toy(self) -> Self:
        small = {"batch_size": 20, "steps": 4, "test_every": 2, "test_batches": 1}
        return dataclasses.replace(self, toy=True, model="lenet", dataset="mnist5k", **small)

    @property
    def ways(self) -> tuple[str, ...]:
        return (UNEVEN, ONE)

    def place(self, variant: str) -> Mapping[str, Any]:
        """What a variant has of a configuration for itself: devices and layout."""
        if variant == ONE:
            return {"devices": ["cpu:0"]}
        return {"devices": ["cpu:0", "cpu:1", "cpu:2"], "list_speed": UNEVEN}

    def config(self, variant: str, directory: str) -> dict[str, Any]:
        return {
            "model": self.model,
            "dataset": self.dataset,
            "data_dir": self.data_dir,
            "model_dir": directory,
            "batch_size": self.batch_size,
            "max_steps": self.steps,
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "learning_rate_schedule": "constant",
            "seed": self.seed,
            **self.place(variant),
        }

    def test_arguments(self) -> dict[str, Any]:
        return {"batches": self.test_batches}

    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        all_images = child.call("describe")["test_images"]
        return {
            "final_accuracy": child.call("test", batches=self.final_batches),
            "final_images": min((self.final_batches or all_images) * self.batch_size, all_images),
            "tested_images": self.test_batches * self.batch_size,
        }

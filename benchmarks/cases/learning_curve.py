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
from typing import Any, ClassVar, Self

from benchmarks.cases.base import Case, progress
from benchmarks.process import Child
from benchmarks.rows import Writer, summarise

_TARGET = "benchmarks.frameworks.learning:LearningRun"
UNEVEN, ONE = "70,25,5", "one device"


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
      learning_rate: None: the optimizer's own.
      test_every: steps between tests.
      test_batches: batches of a test on the way.
      final_batches: batches of the last test; None: all images.
    """

    name: ClassVar[str] = "learning_curve"
    summary: ClassVar[str] = "paper_cifar learns CIFAR-10 at 70,25,5 as it does on one device"

    steps: int = 500
    data_dir: str | None = None
    model: str = "paper_cifar"
    dataset: str = "cifar10"
    batch_size: int = 200
    optimizer: str = "adafactor"
    learning_rate: float | None = None
    test_every: int = 50
    test_batches: int = 10
    final_batches: int | None = None

    def variants(self) -> tuple[str, ...]:
        return (UNEVEN, ONE)

    def place(self, variant: str) -> dict[str, Any]:
        """What a variant has of models.config.Config for itself: devices and layout."""
        if variant == ONE:
            return {"devices": ["cpu:0"]}
        return {"devices": ["cpu:0", "cpu:1", "cpu:2"], "list_speed": UNEVEN}

    def measure_more(self, child: Child, model_dir: str) -> dict[str, Any]:
        """What else goes into a row, found by a LearningRun that has been trained."""
        return {}

    def make_toy(self) -> Self:
        return dataclasses.replace(
            self, toy=True, steps=4, model="lenet", dataset="mnist5k", batch_size=20, test_every=2, test_batches=1
        )

    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        with progress(len(variants) * self.steps, "steps") as bar:
            for variant in variants:
                bar.set_description(variant)
                with tempfile.TemporaryDirectory(prefix=f"{self.name}_") as model_dir:
                    writer.write(variant, self._train(variant, model_dir, bar))

    def _train(self, variant: str, model_dir: str, bar: Any) -> dict[str, Any]:
        config = {
            "model": self.model,
            "dataset": self.dataset,
            "data_dir": self.data_dir,
            "model_dir": model_dir,
            "batch_size": self.batch_size,
            "max_steps": self.steps,
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "learning_rate_schedule": "constant",
            "seed": self.seed,
            **self.place(variant),
        }
        losses: list[float] = []
        seconds: list[float] = []
        accuracy: list[tuple[int, float]] = []
        with Child(_TARGET, config) as child:
            description = child.call("describe")
            while len(losses) < self.steps:
                start = len(losses)
                step = min(start + self.test_every, self.steps)
                piece = child.call("train_to", step=step)
                losses += piece["losses"]
                seconds += piece["seconds"][1:] or piece["seconds"]  # a session begins slowly
                bar.update(step - start)
                accuracy.append((step, child.call("test", batches=self.test_batches)))
            final = child.call("test", batches=self.final_batches)
            more = self.measure_more(child, model_dir)
            child.call("close")
        all_images = description["test_images"]
        return {
            **{key: value for key, value in config.items() if key not in ("data_dir", "model_dir", "list_speed")},
            **description,
            "shares": config.get("list_speed"),
            "warmup": 0,
            "steps": self.steps,
            "repeats": 1,
            "tested_images": self.test_batches * self.batch_size,
            "final_images": min((self.final_batches or all_images) * self.batch_size, all_images),
            "wall_seconds_per_step": summarise(seconds),
            "losses": losses,
            "accuracy": accuracy,
            "final_accuracy": final,
            **more,
        }

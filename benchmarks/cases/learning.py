"""Cases in which a model is trained in pieces, and tested after each; and those of them that learn from volumes."""

import abc
import dataclasses
import functools
import os
import tempfile
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.harness import Case, Part
from benchmarks.process import Child
from benchmarks.rows import Writer, summarise


@dataclasses.dataclass(frozen=True)
class Learning(Case, abc.ABC):
    """Trains each variant in a temporary directory, in a child that is a benchmarks.frameworks.learning.LearningRun.

    Args:
      steps: training steps.
      batch_size: images or volumes per step, and per batch of the test.
      test_every: steps between tests.
    """

    unit: ClassVar[str] = "steps"
    target: ClassVar[str]
    tests_column: ClassVar[str]
    hidden: ClassVar[tuple[str, ...]]  # what of a configuration is a place of this machine, or has another name in rows

    steps: int = 500
    batch_size: int = 200
    test_every: int = 50

    @property
    def units(self) -> int:
        return self.steps

    @property
    @abc.abstractmethod
    def ways(self) -> tuple[str, ...]:
        """The names of the variants."""

    @abc.abstractmethod
    def config(self, variant: str, directory: str) -> dict[str, Any]:
        """The arguments of a run, which are those of models.train.config.Config."""

    @abc.abstractmethod
    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        """What else goes into a row, asked of a run that has been trained."""

    def test_arguments(self) -> dict[str, Any]:
        """Of the run's method `test`."""
        return {}

    def parts(self) -> Mapping[str, Part]:
        return {variant: functools.partial(self._train, variant) for variant in self.ways}

    def _train(self, variant: str, writer: Writer, bar: Any) -> None:
        losses: list[float] = []
        seconds: list[float] = []
        tests: list[tuple[int, Any]] = []
        with tempfile.TemporaryDirectory(prefix=f"{self.name}_") as directory:
            config = self.config(variant, directory)
            with Child(self.target, config) as child:
                description = child.call("describe")
                while len(losses) < self.steps:
                    step = min(len(losses) + self.test_every, self.steps)
                    piece = child.call("train_to", step=step)
                    bar.update(step - len(losses))
                    losses += piece["losses"]
                    seconds += piece["seconds"][1:] or piece["seconds"]  # a session begins slowly
                    tests.append((step, child.call("test", **self.test_arguments())))
                more = self.finish(child, directory)
                child.call("close")
        values = {
            **self.columns(warmup=0, repeats=1, shares=config.get("list_speed")),
            **{name: value for name, value in config.items() if name not in (*self.hidden, "list_speed")},
            **description,
            "wall_seconds_per_step": summarise(seconds),
            "losses": losses,
            self.tests_column: tests,
            **more,
        }
        writer.write(variant, values)


@dataclasses.dataclass(frozen=True)
class VolumeLearning(Learning):
    """Makes a set of volumes, trains on it and tests on the way.

    Args:
      epochs: how often a volume may be seen; the rate reaches zero at the last step all the same.
      learning_rate: of Adam, at first; it falls to zero as a cosine.
      shares: speeds of the two devices, over which depth is divided.
    """

    tests_column: ClassVar[str] = "tests"
    hidden: ClassVar[tuple[str, ...]] = ("dataset", "model_dir", "made_by")
    model: ClassVar[str]

    steps: int = 1500
    batch_size: int = 8
    test_every: int = 300
    epochs: int = 1000
    learning_rate: float = 1e-3
    shares: str = "2,1"

    @abc.abstractmethod
    def describe_set(self) -> dict[str, Any]:
        """What the set is made by."""

    @property
    def ways(self) -> tuple[str, ...]:
        return (self.model,)

    def config(self, variant: str, directory: str) -> dict[str, Any]:
        return {
            "model": variant,
            "dataset": os.path.join(directory, "set"),
            "model_dir": os.path.join(directory, "model"),
            "made_by": self.describe_set(),
            "batch_size": self.batch_size,
            "train_epochs": self.epochs,
            "max_steps": self.steps,
            "augment": True,
            "optimizer": "adam",
            "learning_rate": self.learning_rate,
            "learning_rate_schedule": "cosine",
            "layout": "spatial",
            "mesh_shape": "depth:2",
            "list_speed": self.shares,
            "devices": ["cpu:0", "cpu:1"],
            "seed": self.seed,
        }

    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        return {"set": self.describe_set(), **child.call("findings")}

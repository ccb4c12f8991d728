"""What the cases have in common in which a 3D CNN learns from volumes whose depth is divided over unequal devices."""

import abc
import dataclasses
import os
import tempfile
from typing import Any, ClassVar

from benchmarks.cases.base import Case, progress
from benchmarks.process import Child
from benchmarks.rows import Writer, summarise


@dataclasses.dataclass(frozen=True)
class VolumeLearning(Case):
    """Makes a set of volumes in a temporary directory, trains on it and tests on the way.

    Args:
      steps: training steps.
      epochs: how often a volume may be seen; the rate reaches zero at the last step all the same.
      batch_size: volumes per step.
      learning_rate: of Adam, at first; it falls to zero as a cosine.
      test_every: steps between tests of the whole test set.
      shares: speeds of the two devices, over which depth is divided.
    """

    steps: int = 1500
    epochs: int = 1000
    batch_size: int = 8
    learning_rate: float = 1e-3
    test_every: int = 300
    shares: str = "2,1"

    model: ClassVar[str]
    target: ClassVar[str]  # a benchmarks.frameworks.volume_learning.VolumeRun

    @abc.abstractmethod
    def describe_set(self) -> dict[str, Any]:
        """What the set is made by."""

    def variants(self) -> tuple[str, ...]:
        return (self.model,)

    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        for variant in variants:
            with (
                progress(self.steps, "steps") as bar,
                tempfile.TemporaryDirectory(prefix=f"{self.name}_") as directory,
            ):
                writer.write(variant, self._learn(directory, bar))

    def _learn(self, directory: str, bar: Any) -> dict[str, Any]:
        made_by = self.describe_set()
        config = {
            "model": self.model,
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
        losses: list[float] = []
        seconds: list[float] = []
        tests: list[tuple[int, dict[str, float]]] = []
        place = {"dataset": os.path.join(directory, "set"), "model_dir": os.path.join(directory, "model")}
        with Child(self.target, {"made_by": made_by, **config, **place}) as child:
            description = child.call("describe")
            while len(losses) < self.steps:
                start = len(losses)
                piece = child.call("train_to", step=min(start + self.test_every, self.steps))
                losses += piece["losses"]
                seconds += piece["seconds"][1:] or piece["seconds"]  # a session begins slowly
                bar.update(len(losses) - start)
                tests.append((len(losses), child.call("metrics")))
            findings = child.call("findings")
            child.call("close")
        return {
            **{key: value for key, value in config.items() if key != "list_speed"},
            **description,
            "set": made_by,
            "shares": self.shares,
            "warmup": 0,
            "steps": self.steps,
            "repeats": 1,
            "wall_seconds_per_step": summarise(seconds),
            "losses": losses,
            "tests": tests,
            **findings,
        }

"""What the cases have in common in which a 3D CNN learns from volumes whose depth is divided over unequal devices."""

import abc
import dataclasses
import os
from typing import Any, ClassVar

from benchmarks.cases.learning import Learning
from benchmarks.process import Child


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

"""Learning curve on a cluster: the paper's CIFAR-10 network on workers of unequal speed, by every layout, and on one.

    python -m benchmarks.run cluster_curve --data_dir=...

Each worker is a process with a core or, by a CPU quota of the kernel, less, and each run is what
`python -m models.train --local_cluster=1.0,0.5 --layout=batch --list_speed=2,1` does. All begin with the same initial
values and see the same images in the same order, and take steps of plain gradient descent, which magnifies the
differences between two orders of a float32 sum less than Adafactor does. On the same workers a smaller network is
then trained in float64, which leaves nothing of such differences to see.

Time: about a quarter of an hour on two cores. Expected: the curves lie on each other, the float32 losses of a step
agree within 1e-4 for five steps and within some per cent at the end, and the float64 losses within 1e-10.
"""

import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

from benchmarks.cases.learning_curve import ONE, LearningCurve
from benchmarks.process import Child

_TWO, _THREE = "1.0,0.5", "0.7,0.5,0.3"
WAYS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        ONE: {"local_cluster": "1.0"},
        "batch 2,1": {"local_cluster": _TWO, "layout": "batch", "list_speed": "2,1"},
        "filters 2,1": {"local_cluster": _TWO, "layout": "filters", "list_speed": "2,1"},
        "even": {"local_cluster": _TWO, "layout": "even"},
        "hybrid 2,1": {"local_cluster": _TWO, "layout": "hybrid", "list_speed": "2,1"},
        "spatial 2,1": {"local_cluster": _TWO, "layout": "spatial", "list_speed": "2,1"},
        "filters 70,50,30": {"local_cluster": _THREE, "layout": "filters", "list_speed": "70,50,30"},
    }
)


@dataclasses.dataclass(frozen=True)
class ClusterCurve(LearningCurve):
    """The case.

    Args:
      float64_model: a name in models.MODELS, to be trained in float64.
      float64_dataset: its data set.
      float64_steps: its training steps.
    """

    name: ClassVar[str] = "cluster_curve"
    summary: ClassVar[str] = "paper_cifar learns CIFAR-10 on unequal workers, by every layout, as it does on one"

    steps: int = 100
    batch_size: int = 50
    optimizer: str = "sgd"
    learning_rate: float | None = 0.01
    final_batches: int | None = 40
    float64_model: str = "lenet"
    float64_dataset: str = "mnist5k"
    float64_steps: int = 30

    @property
    def ways(self) -> tuple[str, ...]:
        return (ONE, "filters 2,1") if self.toy else tuple(WAYS)

    def place(self, variant: str) -> Mapping[str, Any]:
        return WAYS[variant]

    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        float64 = {"model": self.float64_model, "dataset": self.float64_dataset}
        place = {"steps": self.float64_steps, "model_dir": os.path.join(directory, "float64")}
        return {
            **super().finish(child, directory),
            **{f"float64_{name}": value for name, value in float64.items()},
            "float64_losses": child.call("losses_in_float64", **float64, **place),
        }

    def make_toy(self) -> Self:
        return dataclasses.replace(super().make_toy(), final_batches=2, float64_steps=3)

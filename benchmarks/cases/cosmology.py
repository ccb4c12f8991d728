"""Regression: a small CosmoFlow predicts the parameters of simulated universes, its volumes' depth divided 2:1.

    python -m benchmarks.run cosmology

The universes are made by `mtf_hetero.data.cosmology` in a temporary directory: dark matter by second-order Lagrangian
perturbation theory, 64 cells of 4 Mpc/h along each edge, 600 to learn from and 100 to test on. The network is
`python -m models.train --model=cosmoflow_small --layout=spatial --mesh_shape=depth:2 --list_speed=2,1` on two logical
devices of the CPU. Beside it stand what knows nothing, the mean, and what knows the physics: ridge regression on the
power spectrum and the histogram of each volume.

Time: six to fifteen minutes on two cores. Expected: R2 of about 0.5 for omega_m, 0.9 for sigma_8 and 0.1 for n_s, which
is hardly to be distinguished from omega_m; a little below those of ridge regression.
"""

import dataclasses
from typing import Any, ClassVar, Self

from benchmarks.cases.learning import VolumeLearning


@dataclasses.dataclass(frozen=True)
class Cosmology(VolumeLearning):
    """The case.

    Args:
      size: cells along an edge.
      cell: edge of a cell, Mpc/h.
      train: universes to learn from.
      test: universes to test on.
    """

    name: ClassVar[str] = "cosmology"
    summary: ClassVar[str] = "a small CosmoFlow predicts the parameters of simulated universes, at 2:1 in depth"
    model: ClassVar[str] = "cosmoflow_small"
    target: ClassVar[str] = "benchmarks.frameworks.universes:Universes"

    size: int = 64
    cell: float = 4.0
    train: int = 600
    test: int = 100

    def describe_set(self) -> dict[str, Any]:
        return {"size": self.size, "cell": self.cell, "train": self.train, "test": self.test, "seed": self.seed}

    def make_toy(self) -> Self:
        return dataclasses.replace(self, toy=True, steps=4, batch_size=2, test_every=2, size=16, train=12, test=5)

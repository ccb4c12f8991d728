"""Segmentation: a small 3D U-Net segments the brain in a scan of a head, its patches' depth divided 2:1.

    apt-get download mricron-data && dpkg -x mricron-data_*.deb scans
    MRICRON_TEMPLATES=scans/usr/share/mricron/templates python -m benchmarks.run segmentation

The scan is Colin27 (T1, 1 mm, the average of 27 of one man's head: Holmes et al. 1998), the brain that which Debian's
package mricron-data has cut out of it. Patches of 32 x 32 x 32 voxels from its front half are learned from; the back
half is cut into such patches, and all of them are tested on. The network is `python -m models.train
--model=unet3d_small --layout=spatial --mesh_shape=depth:2 --list_speed=2,1` on two logical devices of the CPU. Beside
it stands what needs no network: the range of intensities that predicts the brain of the front half best. Scalp and
marrow are as bright as the brain: only its surroundings distinguish it. One head is a demonstration, and says nothing
of others.

Time: three minutes on two cores. Expected: a Dice of 0.9; the range reaches 0.82.
"""

import dataclasses
from typing import Any, ClassVar, Self

from benchmarks.cases.learning import VolumeLearning


@dataclasses.dataclass(frozen=True)
class Segmentation(VolumeLearning):
    """The case.

    Args:
      scan: "colin27", or "phantom" for a head that is made up.
      edge: voxels along an edge of a patch.
      patches: to learn from.
    """

    name: ClassVar[str] = "segmentation"
    summary: ClassVar[str] = "a small 3D U-Net segments the brain in a scan of a head, at 2:1 in depth"
    model: ClassVar[str] = "unet3d_small"
    target: ClassVar[str] = "benchmarks.frameworks.scans:Scan"

    steps: int = 600
    batch_size: int = 4
    learning_rate: float = 3e-3
    test_every: int = 150
    scan: str = "colin27"
    edge: int = 32
    patches: int = 160

    def describe_set(self) -> dict[str, Any]:
        return {"scan": self.scan, "edge": self.edge, "patches": self.patches, "seed": self.seed}

    def make_toy(self) -> Self:
        small = {"steps": 4, "batch_size": 2, "test_every": 2, "edge": 8, "patches": 6}
        return dataclasses.replace(self, toy=True, scan="phantom", **small)

"""Segmentation: a small 3D U-Net tells grey and white matter of a head, its patches' depth divided 2:1.

    pip install -e ".[benchmarks]"
    python -m benchmarks.run segmentation

The scan is the MNI152 template (T1, 1 mm, brain alone) with its maps of grey and white matter, which nilearn carries.
Patches of 32 x 32 x 32 voxels from its front half are learned from; the back half is cut into such patches, and all of
them are tested on. The two sides of this template mirror each other, so that it must not be halved between left and
right. The network is `python -m models.train --model=unet3d_small --layout=spatial --mesh_shape=depth:2
--list_speed=2,1` on two logical devices of the CPU. Beside it stands what needs no network: the two thresholds that
divide the intensities of the front half best. One head is a demonstration, and tells nothing of others.

Time: about five minutes on two cores. Expected: a mean Dice of about 0.9. The thresholds reach 0.95: in this template,
an average of many heads without noise, intensity alone tells the tissues apart.
"""

import dataclasses
from typing import Any, ClassVar, Self

from benchmarks.cases.volume_learning import VolumeLearning


@dataclasses.dataclass(frozen=True)
class Segmentation(VolumeLearning):
    """The case.

    Args:
      scan: "mni152", or "phantom" for a head that is made up.
      edge: voxels along an edge of a patch.
      patches: to learn from.
    """

    name: ClassVar[str] = "segmentation"
    summary: ClassVar[str] = "a small 3D U-Net tells grey and white matter of a scan, at 2:1 in depth"
    model: ClassVar[str] = "unet3d_small"
    target: ClassVar[str] = "benchmarks.frameworks.scans:Scan"

    steps: int = 600
    batch_size: int = 4
    learning_rate: float = 3e-3
    test_every: int = 150
    scan: str = "mni152"
    edge: int = 32
    patches: int = 160

    def describe_set(self) -> dict[str, Any]:
        return {"scan": self.scan, "edge": self.edge, "patches": self.patches, "seed": self.seed}

    def make_toy(self) -> Self:
        small = {"steps": 4, "batch_size": 2, "test_every": 2, "edge": 8, "patches": 6}
        return dataclasses.replace(self, toy=True, scan="phantom", **small)

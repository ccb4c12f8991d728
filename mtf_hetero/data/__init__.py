"""Data sets: images, one set of which the extra `train` installs, and volumes, of which each processor reads its slab.

A name is imported when it is first asked for: TensorFlow is not loaded before it is needed.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from mtf_hetero._support import lazy
from mtf_hetero.data import own

if TYPE_CHECKING:
    from mtf_hetero.data._volumes_files import Manifest, Planes, write_volumes
    from mtf_hetero.data.augmentation import Augmentation
    from mtf_hetero.data.dataset import Dataset
    from mtf_hetero.data.laid_out import laid_out_batches
    from mtf_hetero.data.records import UnreadableError, unreadable_as_value_error
    from mtf_hetero.data.volumes import Slab, Volumes, laid_out_volumes, load_volumes

__all__ = [
    "DATASETS",
    "Augmentation",
    "Dataset",
    "Manifest",
    "Planes",
    "Slab",
    "UnreadableError",
    "Volumes",
    "full_name",
    "is_own",
    "laid_out_batches",
    "laid_out_volumes",
    "load",
    "load_volumes",
    "unreadable_as_value_error",
    "write_volumes",
]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Augmentation": "augmentation",
        "Dataset": "dataset",
        "Manifest": "_volumes_files",
        "Planes": "_volumes_files",
        "Slab": "volumes",
        "UnreadableError": "records",
        "Volumes": "volumes",
        "laid_out_batches": "laid_out",
        "laid_out_volumes": "volumes",
        "load_volumes": "volumes",
        "unreadable_as_value_error": "records",
        "write_volumes": "_volumes_files",
    },
)


def _load_mnist5k() -> "Dataset":
    from mtf_hetero.data import mnist5k

    return mnist5k.load()


DATASETS: Mapping[str, Callable[[], "Dataset"]] = MappingProxyType({"mnist5k": _load_mnist5k})


def is_own(name: str, data_dir: str | None = None) -> bool:
    """Tells whether a name is of a user's own images: of a path, or of a function.

    Args:
      name: what `load` takes.
      data_dir: where tensorflow-datasets has prepared sets.
    """
    return own.is_own(name, data_dir, built_in=tuple(DATASETS))


def full_name(name: str, data_dir: str | None = None) -> str:
    """The name of a data set that means the same in any working directory: of one's own data or volumes, a full path.

    Args:
      name: what `load` or `load_volumes` takes.
      data_dir: where tensorflow-datasets has prepared sets.
    """
    return own.in_full(name) if is_own(name, data_dir) else name


def load(
    name: str,
    data_dir: str | None = None,
    *,
    image_size: Sequence[int] = (),
    seed: int = 1,
    class_names: Sequence[str] = (),
) -> "Dataset":
    """Finds a data set of images; they are read when they are first asked for. Nothing is ever downloaded.

    Args:
      name: one of DATASETS, or an image set of tensorflow-datasets as it names it: "cifar10", "mnist:3.0.1"; or a
        user's own images: a directory with a folder per class, a .csv or .npz file, or "module:function".
      data_dir: where tensorflow-datasets has prepared the set; None: ~/tensorflow_datasets.
      image_size: height and width to which a user's own images are brought; none: they have one size.
      seed: of the choice of test images of a user's own data, where nothing else says which they are.
      class_names: of a user's own data, those that a trained network knows; none: those of the data.

    Raises:
      ValueError: the set is not there, is damaged, or is not one of equally sized images with a label each.

    Example:
      >>> load("mnist5k").train_size
      4000
    """
    if is_own(name, data_dir):
        return own.load(name, image_size=image_size, seed=seed, class_names=class_names)
    if image_size:
        size = ",".join(map(str, image_size))
        raise ValueError(f"--image_size is {size}, but the images of {name!r} already have one size; remove it")
    if name in DATASETS:
        return DATASETS[name]()
    from mtf_hetero.data import prepared

    return prepared.load(name, data_dir, built_in=tuple(DATASETS))

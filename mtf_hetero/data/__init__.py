"""Data sets of images and volumes. The extra `train` installs one set of images.

Example:
  >>> dataset = load("mnist5k")  # or a directory with a folder of images per class
  >>> dataset.train_size, dataset.classes
  (4000, 10)
  >>> volumes = load_volumes("volumes/")  # as `mtf-hetero data` and write_volumes prepare them

Each name is imported at its first use, so that TensorFlow is loaded late.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtf_hetero._support import lazy
from mtf_hetero.data import known, own
from mtf_hetero.data.known import DATASETS
from mtf_hetero.data.own import full_name, is_own

if TYPE_CHECKING:
    from mtf_hetero.data._volumes_files import Manifest, Planes, write_volumes
    from mtf_hetero.data.augmentation import Augmentation
    from mtf_hetero.data.dataset import Dataset
    from mtf_hetero.data.examples import Examples, Slab
    from mtf_hetero.data.laid_out import laid_out_batches, laid_out_volumes
    from mtf_hetero.data.records import UnreadableError, unreadable_as_value_error
    from mtf_hetero.data.volumes import Volumes, load_volumes

__all__ = [
    "DATASETS",
    "Augmentation",
    "Dataset",
    "Examples",
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
        "Examples": "examples",
        "Manifest": "_volumes_files",
        "Planes": "_volumes_files",
        "Slab": "examples",
        "UnreadableError": "records",
        "Volumes": "volumes",
        "laid_out_batches": "laid_out",
        "laid_out_volumes": "laid_out",
        "load_volumes": "volumes",
        "unreadable_as_value_error": "records",
        "write_volumes": "_volumes_files",
    },
)


def load(
    name: str,
    data_dir: str | None = None,
    *,
    image_size: Sequence[int] = (),
    seed: int = 1,
    class_names: Sequence[str] = (),
    needs_images: bool = True,
) -> "Dataset":
    """Find a data set of images. The images are read at their first use, and nothing is downloaded.

    Args:
      name: one of DATASETS, or an image set of tensorflow-datasets as it names it: "cifar10", "mnist:3.0.1"; or a
        user's own images: a directory with a folder per class, a .csv or .npz file, or "module:function".
      data_dir: where tensorflow-datasets has prepared the set; None: ~/tensorflow_datasets.
      image_size: height and width to which a user's own images are resized; none: all have one size.
      seed: for the choice of test images, if a user's own data have no test set.
      class_names: the classes of a trained network, for a user's own data; none: the classes of the data.
      needs_images: False gives one of PREPARED_SETS without its images if it is not prepared.

    Raises:
      ValueError: the set is missing or damaged, or lacks images of one size with a label each.

    Example:
      >>> load("mnist5k").train_size
      4000
    """
    if is_own(name, data_dir):
        return own.load(name, image_size=image_size, seed=seed, class_names=class_names)
    if name in known.DATASETS:
        found = known.DATASETS[name]()
    else:
        from mtf_hetero.data import prepared

        found = prepared.load(name, data_dir, needs_images=needs_images)
    if image_size:
        size = ",".join(map(str, image_size))
        raise ValueError(f"--image_size is {size}, but the images of {name!r} already have one size; remove it")
    return found

"""A user's own images: a directory with a folder per class, a CSV file, a NumPy archive, or a function of tf.data."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtf_hetero.data import known

if TYPE_CHECKING:
    from mtf_hetero.data.dataset import Dataset

STATISTICS_IMAGES = 500  # to decode 1,000 photos of a telephone takes a minute
CSV, NPZ = ".csv", ".npz"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PATH = re.compile(r"[./~]|.*/$|.*\.(npz|csv)$", re.IGNORECASE)


def is_own(name: str, data_dir: str | None = None) -> bool:
    """Return whether a name is that of a user's own data: a path or a function.

    The name of a built-in or prepared set comes before a directory of that name. A path that begins with a dot or ends
    with a slash is always a directory.

    Args:
      name: the value of --dataset.
      data_dir: where prepared sets are.
    """
    if _PATH.match(name):
        return True
    from mtf_hetero.data import prepared  # late: the threads of NumPy keep a local cluster from its own network

    with contextlib.suppress(OSError):  # the name is too long for a path
        if name in known.DATASETS or prepared.find(name, prepared.data_root(data_dir)) is not None:
            return False
    return os.path.isdir(name) or bool(_FUNCTION.fullmatch(name))


def full_name(name: str, data_dir: str | None = None) -> str:
    """Return the name of a data set for any working directory: a full path for own data and volumes."""
    if not is_own(name, data_dir) or (_FUNCTION.fullmatch(name) and not os.path.exists(name)):
        return name
    return _full_path(name)


def _full_path(name: str) -> str:
    return os.path.abspath(os.path.expanduser(name))


def load(name: str, *, image_size: Sequence[int] = (), seed: int = 1, class_names: Sequence[str] = ()) -> "Dataset":
    """Find a user's own images. No image of a directory or of a CSV file is decoded.

    Args:
      name: a directory, a .csv or .npz file, or module:function.
      image_size: height and width to which images are resized; none: all have one size.
      seed: for the choice of test images, if the data have no test set.
      class_names: the classes of a trained network, in its order; none: the classes of the data.

    Raises:
      ValueError: one line with the file and its fault.
    """
    path = _full_path(name)
    is_file = os.path.isfile(path)
    if os.path.isdir(path) or (is_file and path.lower().endswith(CSV)):
        from mtf_hetero.data import pictures  # here, because it needs TensorFlow, like the others

        found = pictures.load_files(name, path, size=image_size, seed=seed, class_names=class_names)
    elif is_file and path.lower().endswith(NPZ):
        from mtf_hetero.data import arrays

        found = arrays.load_arrays(path, size=image_size, seed=seed)
    elif _FUNCTION.fullmatch(name):
        from mtf_hetero.data import functions

        found = functions.call_function(name, size=image_size)
    else:
        what = "is not a directory, .csv or .npz file" if os.path.exists(path) else "does not exist"
        raise ValueError(
            f"--dataset is {name!r}, and {path} {what}; name a directory with a folder of images per class"
        )
    if class_names and found.class_names != tuple(class_names):
        raise ValueError(
            f"--dataset is {name!r}, which has the classes {', '.join(found.class_names)}, but the network was trained "
            f"on {', '.join(class_names)}; give data of the same classes"
        )
    return dataclasses.replace(found, name=name, statistics_images=STATISTICS_IMAGES)

"""A user's own images: a directory with a folder per class, a CSV file, a NumPy archive, or a function of tf.data."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtf_hetero.data.dataset import Dataset
    from mtf_hetero.data.source import Found

STATISTICS_IMAGES = 500
CSV, NPZ = ".csv", ".npz"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PATH = re.compile(r"[./~]|.*/$|.*\.(npz|csv)$", re.IGNORECASE)


def is_own(name: str, data_dir: str | None = None, *, built_in: Sequence[str] = ()) -> bool:
    """Return whether a name is that of a user's own data: a path or a function.

    A set that is built in or prepared has the name before a directory that happens to be called so; a path with a slash
    at its end, or one that begins with a dot, is never that of such a set.

    Args:
      name: what --dataset says.
      data_dir: where prepared sets are.
      built_in: names of sets that are built in.
    """
    if _PATH.match(name):
        return True
    from mtf_hetero.data import prepared  # imports NumPy, whose threads keep a local cluster from a network of its own

    with contextlib.suppress(OSError):  # a name that is too long for a path: of nothing
        if name in built_in or prepared.find(name, prepared.data_root(data_dir)) is not None:
            return False
    return os.path.isdir(name) or bool(_FUNCTION.fullmatch(name))


def in_full(name: str) -> str:
    """A name of own data that means the same in any working directory; a function's stays as it is."""
    if _FUNCTION.fullmatch(name) and not os.path.exists(name):
        return name
    return os.path.abspath(os.path.expanduser(name))


def load(name: str, *, image_size: Sequence[int] = (), seed: int = 1, class_names: Sequence[str] = ()) -> "Dataset":
    """Find a user's own images. No image of a directory or of a CSV file is decoded.

    Args:
      name: a directory, a .csv or .npz file, or module:function.
      image_size: height and width to which images are brought; none: they have one size.
      seed: of the choice of test images where nothing else says which they are.
      class_names: those that a trained network knows, in its order; none: those of the data.

    Raises:
      ValueError: in one line, what is wrong with which file.
    """
    from mtf_hetero.data.dataset import Dataset
    from mtf_hetero.data.source import TEST, TRAIN

    found = _find(name, in_full(name), {"size": tuple(image_size), "class_names": tuple(class_names)}, seed)
    train, test = (found.sources[split] for split in (TRAIN, TEST))
    return Dataset(
        name,
        found.image_shape,
        len(found.class_names),
        train.size,
        test.size,
        found.sources.__getitem__,
        found.class_names,
        digest=found.digest,
        notes=found.notes,
        statistics_images=STATISTICS_IMAGES,
    )


def _find(name: str, path: str, wanted: Mapping[str, Any], seed: int) -> "Found":
    """Open the data. Import what needs TensorFlow here."""
    is_file = os.path.isfile(path)
    if os.path.isdir(path) or (is_file and path.lower().endswith(CSV)):
        from mtf_hetero.data import pictures

        return pictures.load_files(name, path, seed=seed, **wanted)
    if is_file and path.lower().endswith(NPZ):
        from mtf_hetero.data import arrays

        return arrays.load_arrays(path, seed=seed, **wanted)
    if _FUNCTION.fullmatch(name):
        from mtf_hetero.data import functions

        return functions.call_function(name, **wanted)
    what = "is not a directory, .csv or .npz file" if os.path.exists(path) else "does not exist"
    raise ValueError(f"--dataset is {name!r}, and {path} {what}; name a directory with a folder of images per class")

"""Find the images that `--input` names: files, folders and patterns.

This module does not import TensorFlow, so that a mistake is reported at once.
"""

import glob
import os
import pathlib
from collections.abc import Iterator, Sequence

from mtf_hetero.data.listing import ENDINGS, find_images

NPY = ".npy"
_MEANT = f"name images ({', '.join(ENDINGS)}), folders or patterns of them, or one file of numpy.save, {NPY}"


def find(inputs: Sequence[str]) -> list[str]:
    """Return the paths of images, in the order of the inputs.

    The paths of a pattern, or of a folder and its subfolders, are sorted.

    Args:
      inputs: paths of images and of folders of them, and patterns such as "photos/*.jpg".

    Raises:
      ValueError: an input is or has no image.
    """
    return [path for given in inputs for path in _find(given)]


def _folders_below(path: pathlib.Path) -> Iterator[str]:
    """Yield a folder and its subfolders, except hidden ones."""
    for folder, folders, _ in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield folder


def _find(given: str) -> list[str]:
    path = pathlib.Path(given).expanduser()
    if os.path.isdir(path):
        found = [image for folder in _folders_below(path) for image in find_images(folder)[0]]
        if not found:
            raise ValueError(f"--input is {given!r}, a folder without JPEG and PNG images; {_MEANT}")
        return found
    if os.path.lexists(path):
        if not os.path.isfile(path):
            raise ValueError(f"--input is {given!r}, which is not a regular file; name another file")
        if path.suffix.lower() not in ENDINGS:
            raise ValueError(f"--input is {given!r}; {_MEANT}")
        return [str(path)]
    found = [] if glob.escape(given) == given or "\0" in given else sorted(glob.glob(str(path), recursive=True))
    found = [name for name in found if name.lower().endswith(ENDINGS) and os.path.isfile(name)]
    if not found:
        raise ValueError(f"--input is {given!r}, where there are no images; {_MEANT}")
    return found

"""Small sets of images as users have them: files in folders, in lists and in archives."""

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "owl")


def draw(path, size=(6, 6), *, mode="RGB", seed=0):
    """Writes an image of random pixels, of a (height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def draw_folders(root, count=12, size=(6, 6), suffix=".png", classes=CLASSES):
    """Writes so many images, a class after the other in turn, with a folder for each class."""
    for number in range(count):
        draw(root / classes[number % len(classes)] / f"{number:03}{suffix}", size, seed=number)
    return root


def arrays(count=12, test=5):
    """The arrays of an archive, with three classes."""
    random = np.random.default_rng(count)
    images = {
        split: random.integers(0, 256, (size, 6, 6, 3), dtype=np.uint8)
        for split, size in (("train", count), ("test", test))
    }
    return {
        **{f"x_{split}": part for split, part in images.items()},
        **{f"y_{split}": np.arange(len(part)) % 3 for split, part in images.items()},
    }

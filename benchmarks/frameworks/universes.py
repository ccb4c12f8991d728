"""Simulated universes to learn from, and what ridge regression predicts of them."""

from typing import Any

import numpy as np

from benchmarks.frameworks.volume_learning import VolumeRun, read
from mtf_hetero import data
from mtf_hetero.data.cosmology import power_spectrum, write_universes

_BINS = 16  # of the power spectrum
_LEVELS = 24  # of the histogram
_PENALTIES = np.logspace(-3, 4, 29)
_PARTS = 5  # of the training set, for the choice of the penalty


def summarise(volumes: data.Volumes, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of power spectrum and histogram of each volume, [volumes, numbers], and its targets.

    The volumes hold log(1 + density).
    """
    cell = volumes.manifest.provenance["cell"]
    bins = min(_BINS, volumes.image_shape[0] // 4)
    edges = np.linspace(0.0, 4.0, _LEVELS + 1)
    numbers, targets = [], []
    for image, target in read(volumes, split):
        values = image[..., 0].astype(np.float64)
        _, power = power_spectrum(np.expm1(values), cell, bins)
        counts, _ = np.histogram(np.clip(values, 0.0, edges[-1]), edges)
        numbers.append([*np.log(power), *np.log(counts + 1.0)])
        targets.append(target)
    return np.array(numbers), np.array(targets)


def ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression on standardised columns.

    Args:
      x: [volumes, numbers].
      y: [volumes, targets].
      penalty: of the squared weights.

    Returns:
      (weights [numbers, targets], constants [targets]).
    """
    mean, deviation = x.mean(0), x.std(0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    z, centre = (x - mean) / deviation, y.mean(0)
    weights = np.linalg.solve(z.T @ z + penalty * np.eye(z.shape[1]), z.T @ (y - centre)) / deviation[:, None]
    return weights, centre - mean @ weights


def best_ridge(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ridge regression whose penalty does best, for each target, on parts of the training set that it lacks."""
    parts = np.arange(len(x)) % _PARTS
    errors = np.zeros([len(_PENALTIES), y.shape[1]])
    for part in range(_PARTS):
        for number, penalty in enumerate(_PENALTIES):
            weights, constants = ridge(x[parts != part], y[parts != part], penalty)
            errors[number] += np.square(x[parts == part] @ weights + constants - y[parts == part]).sum(0)
    chosen = [ridge(x, y, float(_PENALTIES[best])) for best in errors.argmin(0)]
    weights = np.stack([w[:, i] for i, (w, _) in enumerate(chosen)], axis=1)
    return weights, np.array([c[i] for i, (_, c) in enumerate(chosen)])


class Universes(VolumeRun):
    """A training run on simulated universes."""

    def make(self, directory: str, **made_by: Any) -> None:
        """Simulates them.

        Args:
          directory: where the set is to be.
          **made_by: as in mtf_hetero.data.cosmology.write_universes.
        """
        write_universes(directory, **made_by)

    def findings(self) -> dict[str, Any]:
        """Each test universe's parameters, those that the network predicts, and those by ridge regression."""
        x, y = summarise(self.volumes, "train")
        test_x, true = summarise(self.volumes, "test")
        weights, constants = best_ridge(x, y)
        return {
            "targets": list(self.volumes.targets),
            "train_mean": y.mean(0).tolist(),
            "true": true.tolist(),
            "told": self.predictions("targets").tolist(),
            "ridge": (test_x @ weights + constants).tolist(),
        }

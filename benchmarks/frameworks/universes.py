"""Simulated universes to learn from, and what ridge regression predicts of them."""

from typing import Any

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.frameworks.learning import VolumeRun, read
from mtf_hetero import data
from mtf_hetero.data.preparing.cosmology import power_spectrum, write_universes

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


def best_ridge(x: np.ndarray, y: np.ndarray) -> Any:
    """Ridge regression whose penalty does best, for each target, on parts of the training set that it lacks."""
    parts = PredefinedSplit(np.arange(len(x)) % _PARTS)
    ridge = make_pipeline(StandardScaler(), Ridge())
    search = GridSearchCV(ridge, {"ridge__alpha": _PENALTIES}, cv=parts, scoring="neg_mean_squared_error")
    return MultiOutputRegressor(search).fit(x, y)


class Universes(VolumeRun):
    """A training run on simulated universes, which are made by mtf_hetero.data.preparing.cosmology.write_universes."""

    def make(self, directory: str, **made_by: Any) -> None:
        write_universes(directory, **made_by)

    def findings(self) -> dict[str, Any]:
        """Each test universe's parameters, those that the network predicts, and those by ridge regression."""
        x, y = summarise(self.volumes, "train")
        test_x, true = summarise(self.volumes, "test")
        return {
            "targets": list(self.volumes.targets),
            "train_mean": y.mean(0).tolist(),
            "true": true.tolist(),
            "told": self.predictions("targets").tolist(),
            "ridge": best_ridge(x, y).predict(test_x).tolist(),
        }

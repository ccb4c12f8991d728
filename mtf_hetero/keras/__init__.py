"""Keras models on uneven meshes: the one room that imports Keras, when a name of it is first asked for."""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.keras.builder import Builder, build
    from mtf_hetero.keras.fitting import evaluate, fit, predict
    from mtf_hetero.keras.twin import to_keras
    from mtf_hetero.keras.weights import Weight

__all__ = ["Builder", "Weight", "build", "evaluate", "fit", "predict", "to_keras"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Builder": "builder",
        "Weight": "weights",
        "build": "builder",
        "evaluate": "fitting",
        "fit": "fitting",
        "predict": "fitting",
        "to_keras": "twin",
    },
)

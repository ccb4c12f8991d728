"""Keras models on uneven meshes: the one room that imports Keras, when a name of it is first asked for.

Example:
  >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
  >>> fit(model, images, labels, batch_size=64, epochs=3, devices=["gpu:0", "cpu:0"])  # as model.fit does
  >>> evaluate(model, images, labels, devices=["gpu:0", "cpu:0"])
  >>> steps = build(model)  # an mtf program: from an mtf.Tensor to an mtf.Tensor
  >>> logits = steps(x, training=False)
"""

import sys
from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.keras.builder import Builder, build
    from mtf_hetero.keras.fitting import evaluate, fit, predict
    from mtf_hetero.keras.twin import to_keras

__all__ = ["Builder", "build", "evaluate", "fit", "predict", "to_keras"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Builder": "builder",
        "build": "builder",
        "evaluate": "fitting",
        "fit": "fitting",
        "predict": "fitting",
        "to_keras": "twin",
    },
)

# A program that goes on with `import keras` does not see TensorFlow's start-up messages
sys.meta_path.insert(0, lazy.ImportedBy("keras", "mtf_hetero.keras._keras", unless="tensorflow"))

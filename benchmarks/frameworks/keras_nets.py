"""The same networks in Keras 3 on TensorFlow, as a Keras user writes and trains them: compile, train_on_batch."""

from typing import Any

import keras

from benchmarks.frameworks.trainer import LEARNING_RATE, Trainer
from benchmarks.networks import AvgPool, Conv, Layer, MaxPool


def _layer(layer: Layer) -> Any:
    if isinstance(layer, MaxPool):
        return keras.layers.MaxPooling2D(2)
    if isinstance(layer, AvgPool):
        return keras.layers.AveragePooling2D(2)
    if isinstance(layer, Conv):
        return keras.layers.Conv2D(
            layer.filters, layer.size, padding="same", use_bias=layer.use_bias, activation="relu"
        )
    return keras.layers.Dense(layer.units, activation="relu" if layer.relu else None)


class KerasTrainer(Trainer):
    """Trains by train_on_batch, whose step Keras compiles to a graph; the batch is a tensor already."""

    def build(self, values: list[Any], *, jit_compile: bool | str = False) -> int:
        """Take Trainer's arguments; `jit_compile`: as in keras.Model.compile."""
        layers = [_layer(layer) for layer in self.network.layers]
        first_dense = next(i for i, layer in enumerate(layers) if isinstance(layer, keras.layers.Dense))
        layers.insert(first_dense, keras.layers.Flatten())
        self._model = keras.Sequential([keras.Input(self.network.image_shape), *layers])
        self._model.set_weights(values)
        compile_: Any = self._model.compile  # whose annotation leaves out jit_compile=False
        compile_(
            optimizer=keras.optimizers.SGD(LEARNING_RATE),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=jit_compile,
        )
        self._batch = keras.ops.convert_to_tensor(self.images), keras.ops.convert_to_tensor(self.labels)
        return self._model.count_params()

    def step(self) -> float:
        self._model.reset_metrics()  # train_on_batch returns the mean of the losses since the last reset
        return float(self._model.train_on_batch(*self._batch))

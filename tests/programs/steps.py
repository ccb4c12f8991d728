"""Steps to import: training steps of Keras models of many kinds, and loops that use no Keras."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from import_oracle import Made, ids, images, rows

from mtf_hetero import tf

L = keras.layers
SEED = 3


def crossentropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _use_floats(name: str) -> None:
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)  # Keras keeps the policy that it made for the type before


def of_keras(build: Callable[[], Any], optimizer: Callable[[], Any], data: Callable[[], Any], **options: Any) -> Any:
    """Return a maker of the training step of a Keras model, with its losses, optimizer and metrics."""

    def make() -> Made:
        keras.backend.clear_session()
        keras.utils.set_random_seed(SEED)
        _use_floats(options.get("floatx", "float64"))
        try:
            model, inputs = build(), data()
            model.compile(optimizer(), options.get("loss", crossentropy)(), metrics=options.get("metrics"))
            model.optimizer.build(model.trainable_variables)
            model._symbolic_build(data_batch=inputs[0])
        finally:
            _use_floats("float32")
        step = tf.compat.v2.function(lambda x, y: model.train_step((x, y)), autograph=False)
        found = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
        return step, [v.value for v in {id(v): v for v in found}.values()], inputs

    return make


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam(**options: Any) -> Any:
    return lambda: keras.optimizers.Adam(0.01, **options)


def perceptron() -> Any:
    return keras.Sequential([keras.Input((12,)), L.Dense(14, "relu"), L.Dense(21, "tanh"), L.Dense(5)])


def convolutional() -> Any:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(14, 3, padding="same", name="first"),
            L.BatchNormalization(),
            L.ReLU(),
            L.MaxPooling2D(2),
            L.Conv2D(7, 3, strides=2, padding="same", activation="relu", name="second"),
            L.Flatten(),
            L.Dense(21, "relu"),
            L.Dropout(0.3, seed=3),
            L.Dense(5),
        ]
    )


def transformer() -> Any:
    """Attends to earlier words alone, and to no padding."""
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(11, 8, mask_zero=True, name="words")(inputs)
    a = L.MultiHeadAttention(7, 4, dropout=0.1, name="attention")(x, x, use_causal_mask=True)
    x = L.LayerNormalization()(x + a)
    x = L.LayerNormalization()(x + L.Dense(8)(L.Dense(14, "gelu", name="wide")(x)))
    return keras.Model(inputs, L.Dense(5)(L.GlobalAveragePooling1D()(x)))


def recurrent(layer: Any, masks: bool = False, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        cell = layer(7, name="cell", **options)
        embedding = L.Embedding(11, 8, mask_zero=masks)
        return keras.Sequential([keras.Input((6,), dtype="int32"), embedding, cell, L.Dense(5)])

    return build


def tape() -> Made:
    """A loop with a GradientTape and no Keras: two layers, momentum, a learning rate that falls, a target network."""
    rng = np.random.default_rng(SEED)
    weights = [tf.Variable(rng.standard_normal(shape) / 4, name=name) for name, shape in SHAPES.items()]
    moments = [tf.Variable(tf.zeros_like(w), trainable=False, name=f"{w.name[:-2]}_moment") for w in weights]
    targets = [tf.Variable(w, trainable=False, name=f"{w.name[:-2]}_target") for w in weights]
    count = tf.Variable(0, trainable=False, dtype=tf.int64, name="count")

    def forward(x, w, b, v):
        return tf.tanh(x @ w + b) @ v

    @tf.compat.v2.function
    def step(x, y):
        with tf.GradientTape() as t:
            difference = forward(x, *weights) - 0.1 * forward(x, *targets)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, difference))
        rate = 0.1 / (1.0 + tf.cast(count, tf.float64))
        for w, m, g in zip(weights, moments, t.gradient(loss, weights)):
            m.assign(0.9 * m + g)
            w.assign_sub(rate * m)
        count.assign_add(1)
        if count % 2 == 0:
            for w, target in zip(weights, targets):
                target.assign(w)
        return loss, {"norm": tf.linalg.global_norm(weights), "none": None}

    return step, [*weights, *moments, *targets, count], rows()


SHAPES = {"w": (12, 14), "b": (14,), "v": (14, 5)}

STEPS = {
    "perceptron": of_keras(perceptron, adam(), rows, metrics=["accuracy"]),
    "convolutional": of_keras(convolutional, sgd, images, metrics=["accuracy"]),
    "transformer": of_keras(transformer, lambda: keras.optimizers.AdamW(0.01), ids, metrics=["accuracy"]),
    "LSTM": of_keras(recurrent(L.LSTM, masks=True), adam(), ids),
    "GRU": of_keras(recurrent(L.GRU, dropout=0.2, recurrent_dropout=0.1), lambda: keras.optimizers.RMSprop(0.01), ids),
    "tape": tape,
}

"""Steps to import: training steps of Keras models of many kinds, and loops that use no Keras."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from import_oracle import Made, ids, images, rows

from mtf_hetero import tf

L, K = keras.layers, keras.ops
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


def single(data: Callable[[], Any]) -> Callable[[], Any]:
    """Return the same data in single precision."""
    return lambda: [(x.astype("float32"), y) for x, y in data()]


def scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2)


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
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(11, 8, name="words")(inputs)
    a = L.MultiHeadAttention(7, 4, dropout=0.1, name="attention")(x, x)
    x = L.LayerNormalization()(x + a)
    x = L.LayerNormalization()(x + L.Dense(8)(L.Dense(14, "gelu", name="wide")(x)))
    return keras.Model(inputs, L.Dense(5)(L.GlobalAveragePooling1D()(x)))


def masked() -> Any:
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(11, 8, mask_zero=True)(inputs)
    x = L.MultiHeadAttention(7, 4, name="attention")(x, x, use_causal_mask=True)
    return keras.Model(inputs, L.Dense(5)(L.GlobalAveragePooling1D()(x)))


def recurrent(layer: Any, masks: bool = False, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        cell = layer(7, name="cell", **options)
        embedding = L.Embedding(11, 8, mask_zero=masks)
        return keras.Sequential([keras.Input((6,), dtype="int32"), embedding, cell, L.Dense(5)])

    return build


class Odd(L.Layer):
    """Sorts, accumulates, inverts a matrix, and adds a loss."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], shape[-1]), initializer="orthogonal")

    def call(self, x):
        self.add_loss(0.01 * K.mean(K.square(x)))
        inverse = tf.linalg.inv(self.w)
        return K.cumsum(K.sort(x, axis=-1), axis=-1) @ inverse + K.flip(x, axis=-1)


def odd() -> Any:
    return keras.Sequential([keras.Input((12,)), Odd(), L.Dense(5)])


class Own(keras.Model):
    """Has a train_step of its own, tied weights, and a gradient of a gradient."""

    def __init__(self):
        super().__init__()
        self.dense, self.head = L.Dense(12, "tanh", name="tied"), L.Dense(5)

    def call(self, x):
        x = self.dense(x)
        return self.head(x @ K.transpose(self.dense.kernel))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                out = self(x, training=True)
            slope = inner.gradient(out, x)
            loss = self.compute_loss(x, y, out) + 0.1 * K.mean(slope**2)
        gradients = outer.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


def own() -> Any:
    model = Own()
    model(np.zeros((1, 12)))
    return model


def with_lora() -> Any:
    """Keras's LoRA keeps its weights in float32: the same, by hand."""

    class Adapted(L.Layer):
        def build(self, shape):
            self.frozen = self.add_weight(shape=(shape[-1], 14), trainable=False)
            self.a, self.b = self.add_weight(shape=(shape[-1], 2)), self.add_weight(shape=(2, 14))

        def call(self, x):
            return K.relu(x @ (self.frozen + 0.5 * self.a @ self.b))

    return keras.Sequential([keras.Input((12,)), Adapted(), L.Dense(5)])


def mobile() -> Any:
    base = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=5, classifier_activation=None)
    return keras.Model(base.input, base.output)


def depthwise() -> Any:
    x = inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(7, 3, strides=2, padding="same", use_bias=False)(x)
    x = L.ReLU(6)(L.BatchNormalization()(L.DepthwiseConv2D(3, padding="same", use_bias=False, name="single")(x)))
    x = L.DepthwiseConv2D(3, depth_multiplier=2, name="double")(L.ZeroPadding2D(1)(x))
    x = L.Conv2D(6, 3, dilation_rate=2, padding="same", activation="hard_swish")(x)
    x = L.AveragePooling2D(2)(L.Conv2DTranspose(4, 3, strides=2, padding="same")(x))
    x = L.Concatenate()([x, L.UpSampling2D(2, interpolation="bilinear")(L.MaxPooling2D(2)(x))])
    return keras.Model(inputs, L.Dense(5)(L.GlobalMaxPooling2D()(x)))


def grouped() -> Any:
    """TensorFlow has no gradient of convolutions in groups in float64 on a CPU."""
    x = inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, groups=2, padding="same")(L.Conv2D(6, 3)(x))
    return keras.Model(inputs, L.Dense(5)(L.GlobalMaxPooling2D()(x)))


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
    "perceptron, momentum": of_keras(perceptron, sgd, rows),
    "convolutional": of_keras(convolutional, adam(), images, metrics=["accuracy"]),
    "convolutional, momentum": of_keras(convolutional, sgd, images),
    "transformer": of_keras(transformer, adam(), ids, metrics=["accuracy"]),
    "transformer, momentum": of_keras(transformer, sgd, ids),
    "masked": of_keras(masked, lambda: keras.optimizers.AdamW(0.01), ids),
    "LSTM": of_keras(recurrent(L.LSTM), adam(), ids),
    "LSTM unrolled": of_keras(recurrent(L.LSTM, unroll=True), adam(), ids),
    "LSTM masked": of_keras(recurrent(L.LSTM, masks=True), adam(), ids),
    "GRU": of_keras(recurrent(L.GRU), adam(), ids),
    "GRU dropout": of_keras(recurrent(L.GRU, dropout=0.2, recurrent_dropout=0.1), adam(), ids),
    "odd": of_keras(odd, adam(clipnorm=1.0, use_ema=True), rows),
    "own": of_keras(own, lambda: keras.optimizers.RMSprop(0.01), rows),
    "adapted": of_keras(with_lora, adam(), rows),
    "accumulated": of_keras(perceptron, adam(gradient_accumulation_steps=2), rows),
    "scaled": of_keras(perceptron, scaled, rows),
    "muon": of_keras(perceptron, lambda: keras.optimizers.Muon(0.01), single(rows), floatx="float32"),  # its rate is
    "adafactor": of_keras(perceptron, lambda: keras.optimizers.Adafactor(0.01), rows),
    "depthwise": of_keras(depthwise, sgd, images),
    "grouped": of_keras(grouped, sgd, single(images), floatx="float32"),
    "mobile": of_keras(mobile, sgd, lambda: images(size=32)),
    "tape": tape,
}

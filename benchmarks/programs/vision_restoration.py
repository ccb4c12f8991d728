"""Programs that restore and enhance images."""

from typing import Any

import numpy as np

from benchmarks.programs.registry import BATCH, KerasStep, Made, keras, program
from benchmarks.programs.vision_classification import images
from benchmarks.programs.vision_dense import regression
from mtf_hetero import tf

L, K = keras.layers, keras.ops


class Edsr(keras.Model):
    """A functional model with a step of its own."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        for metric in self.metrics:
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


@program("vision", source="keras.io examples/vision/edsr.py")
def edsr() -> Made:
    """Residual blocks, and upsampling by depth_to_space; the mean absolute error."""
    inputs = keras.Input((8, 8, 3))
    x = first = L.Conv2D(14, 3, padding="same")(L.Rescaling(1.0 / 255)(inputs))
    for _ in range(2):
        x = x + L.Conv2D(14, 3, padding="same")(L.Conv2D(14, 3, padding="same", activation="relu")(x))
    x = L.Conv2D(14, 3, padding="same")(x) + first
    for _ in range(2):
        x = L.Lambda(lambda x: tf.nn.depth_to_space(x, 2))(L.Conv2D(56, 3, padding="same")(x))
    x = L.Rescaling(255.0)(L.Conv2D(3, 3, padding="same")(x))
    model = Edsr(inputs, x)
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([2], [1e-4, 5e-5])
    return regression(model, images(32), "mae", keras.optimizers.Adam(rate))


def _select(first: Any, second: Any) -> Any:
    """MIRNet: weighs two resolutions by attention over channels."""
    width = first.shape[-1]
    pooled = L.GlobalAveragePooling2D(keepdims=True)(L.Add()([first, second]))
    small = L.Conv2D(width // 2, 1, activation="relu")(pooled)
    return sum(K.softmax(L.Conv2D(width, 1)(small), axis=-1) * x for x in (first, second))


def _attend_twice(x: Any) -> Any:
    """MIRNet: attention over space and over channels."""
    y = L.Conv2D(14, 3, padding="same")(L.Conv2D(14, 3, padding="same", activation="relu")(x))
    both = [K.mean(y, axis=-1, keepdims=True), K.max(y, axis=-1, keepdims=True)]
    space = y * L.Conv2D(1, 1, activation="sigmoid")(L.Concatenate()(both))
    squeezed = L.Conv2D(7, 1, activation="relu")(L.GlobalAveragePooling2D(keepdims=True)(y))
    channels = y * L.Conv2D(14, 1, activation="sigmoid")(squeezed)
    return x + L.Conv2D(14, 1)(L.Concatenate()([space, channels]))


def charbonnier(y_true: Any, y_pred: Any) -> Any:
    """Return a smooth absolute difference."""
    return K.mean(K.sqrt(K.square(y_true - y_pred) + 1e-6))


@program(
    "vision",
    source="keras.io examples/vision/mirnet.py",
    tolerance=1e-6,
    reason="tf.image.psnr, its metric, computes in float32",
)
def mirnet() -> Made:
    """Streams of two resolutions that exchange what they found."""
    inputs = keras.Input((8, 8, 3))
    x = first = L.Conv2D(14, 3, padding="same")(inputs)
    small = L.Conv2D(14, 1)(L.MaxPooling2D(2)(L.Conv2D(14, 3, padding="same", activation="relu")(x)))
    x, small = _attend_twice(x), _attend_twice(small)
    x = _select(x, L.UpSampling2D(2)(L.Conv2D(14, 1)(small)))
    outputs = inputs + L.Conv2D(3, 3, padding="same")(first + L.Conv2D(14, 3, padding="same")(x))
    model = keras.Model(inputs, outputs)

    def noise(y_true: Any, y_pred: Any) -> Any:
        return tf.image.psnr(y_pred, y_true, max_val=255.0)

    return regression(model, images(8), charbonnier, keras.optimizers.Adam(1e-4), metrics=[noise])


class ZeroDce(keras.Model):
    """Curves of each pixel that brighten images; four losses that need no target."""

    def __init__(self, curves: int = 4) -> None:
        super().__init__()
        self.curves = curves
        inputs = keras.Input((16, 16, 3))
        layers = [L.Conv2D(7, 3, padding="same", activation="relu") for _ in range(3)]
        first = layers[0](inputs)
        second = layers[1](first)
        third = layers[2](L.Concatenate()([second, first]))
        last = L.Conv2D(3 * curves, 3, padding="same", activation="tanh")(L.Concatenate()([first, third]))
        self.network = keras.Model(inputs, last)
        names = "total", "smooth", "space", "colour", "exposure"
        self.trackers = {name: keras.metrics.Mean(name=name) for name in names}

    @property
    def metrics(self) -> Any:
        return list(self.trackers.values())

    def compute_losses(self, x: Any) -> dict[str, Any]:
        curves = self.network(x)
        y = x
        for i in range(self.curves):
            y = y + curves[..., 3 * i : 3 * i + 3] * (tf.square(y) - y)
        down = tf.reduce_sum(tf.square(curves[:, 1:] - curves[:, :-1])) / 15
        right = tf.reduce_sum(tf.square(curves[:, :, 1:] - curves[:, :, :-1])) / 15
        red, green, blue = tf.unstack(tf.reduce_mean(y, axis=(1, 2)), axis=-1)
        colour = tf.sqrt(
            tf.square(tf.square(red - green)) + tf.square(tf.square(red - blue)) + tf.square(tf.square(green - blue))
        )
        bright = tf.nn.avg_pool2d(tf.reduce_mean(y, axis=3, keepdims=True), ksize=4, strides=4, padding="VALID")
        sides = np.zeros((3, 3, 1, 4))
        sides[1, 1] = 1.0
        sides[[1, 1, 0, 2], [0, 2, 1, 1], 0, range(4)] = -1.0
        near = [
            tf.nn.conv2d(tf.nn.avg_pool2d(tf.reduce_mean(of, 3, keepdims=True), 4, 4, "VALID"), sides, 1, "SAME")
            for of in (x, y)
        ]
        return {
            "smooth": 200 * 2 * (down + right) / BATCH,
            "space": tf.reduce_mean(tf.reduce_sum(tf.square(near[0] - near[1]), axis=-1)),
            "colour": 5 * tf.reduce_mean(colour),
            "exposure": 10 * tf.reduce_mean(tf.square(bright - 0.6)),
        }

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = self.compute_losses(data)
            losses["total"] = sum(losses.values())
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(losses["total"], weights), weights))
        for name, loss in losses.items():
            self.trackers[name].update_state(loss)
        return {name: tracker.result() for name, tracker in self.trackers.items()}


@program("vision", source="keras.io examples/vision/zero_dce.py")
def zero_dce() -> Made:
    """Return a network that learns without targets."""
    model = ZeroDce()
    model.compile(keras.optimizers.Adam(1e-4))
    return KerasStep(model, np.abs(images(16)) % 1)

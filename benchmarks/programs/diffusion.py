"""Programs that make images by diffusion, pixel by pixel, or in the style of others, as in keras.io."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.generative import SIZE, SOURCE, Adversaries, discriminator, generator, images_and_style, step
from benchmarks.programs.pieces import integers, uniform
from benchmarks.programs.registry import KerasStep, Loop, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops


class Augmenter(L.Layer):
    """Augments images with a probability that follows the discriminator's accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.probability = self.add_weight(shape=(), initializer=keras.initializers.Constant(0.3), trainable=False)
        self.seed = keras.random.SeedGenerator(9)
        self.layers = [
            L.RandomFlip("horizontal", seed=1),
            L.RandomTranslation(0.1, 0.1, interpolation="nearest", seed=2),
            *(L.RandomRotation(0.1, seed=3), L.RandomZoom((-0.2, 0.0), seed=4)),
        ]

    def call(self, images: Any) -> Any:
        changed = images
        for layer in self.layers:
            changed = layer(changed, training=True)
        drawn = keras.random.uniform((K.shape(images)[0], 1, 1, 1), dtype=images.dtype, seed=self.seed)
        return K.where(drawn < self.probability, changed, images)

    def follow(self, logits: Any) -> None:
        error = K.mean(0.5 * (1 + K.sign(logits))) - 0.8
        self.probability.assign(K.clip(self.probability + error / 10, 0.0, 1.0))


class Adaptive(Adversaries):
    """A discriminator that sees augmented images, and a moving average of the generator."""

    def __init__(self) -> None:
        super().__init__(generator(), discriminator())
        self.augmenter, self.average = Augmenter(), keras.models.clone_model(self.maker)

    def train_step(self, images: Any) -> Any:
        images = self.augmenter(images)
        with tf.GradientTape(persistent=True) as tape:
            made = self.augmenter(self.maker(self.drawn(images), training=True))
            real, seen = self.judge(images, training=True), self.judge(made, training=True)
            ones, zeros = K.ones_like(real), K.zeros_like(real)
            fooled = self.crossentropy(ones, seen)
            judged = self.crossentropy(ones, real) + self.crossentropy(zeros, seen)
        step(self.of_maker, tape, fooled, self.maker.trainable_weights)
        step(self.of_judge, tape, judged, self.judge.trainable_weights)
        self.augmenter.follow(real)
        for weight, mean in zip(self.maker.weights, self.average.weights):
            mean.assign(0.99 * mean + 0.01 * weight)
        return {"fooled": fooled, "judged": judged, "augmented": self.augmenter.probability}


@program(
    "generative",
    source=SOURCE.format("gan_ada"),
    dtype="float32",
    tolerance=1e-4,
    reason="Keras's layer RandomRotation fails in float64",
)
def gan_ada() -> KerasStep:
    """Augmentation through which the generator learns, and moving averages of its weights."""
    model = Adaptive()
    model.compile()
    return KerasStep(model, uniform(SIZE, SIZE, 3))


def _residual(x: Any, width: int) -> Any:
    kept = x if x.shape[-1] == width else L.Conv2D(width, 1)(x)
    x = L.BatchNormalization(center=False, scale=False)(x)
    return kept + L.Conv2D(width, 3, padding="same")(L.Conv2D(width, 3, padding="same", activation="swish")(x))


def _unet() -> Any:
    """Return a network from noisy images, and the variance of their noise, to the noise."""
    images, variances = keras.Input((SIZE, SIZE, 3)), keras.Input((1, 1, 1))
    angles = variances * np.exp(np.linspace(0.0, 3.0, 4)).astype(keras.config.floatx())
    embedded = L.UpSampling2D(SIZE)(K.concatenate([K.sin(angles), K.cos(angles)], axis=3))
    x = L.Concatenate()([L.Conv2D(7, 1)(images), embedded])
    skips = []
    for width in (7, 14):
        x = _residual(x, width)
        skips.append(x)
        x = L.AveragePooling2D(2)(x)
    x = _residual(x, 14)
    for width in (14, 7):
        x = L.Concatenate()([L.UpSampling2D(2, interpolation="bilinear")(x), skips.pop()])
        x = _residual(x, width)
    return keras.Model([images, variances], L.Conv2D(3, 1, kernel_initializer="zeros")(x))


class Implicit(keras.Model):
    """Denoises images at a time that is drawn for each, and keeps a moving average of its network."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer, self.network = L.Normalization(mean=0.5, variance=0.1), _unet()
        self.normalizer.build((None, SIZE, SIZE, 3))
        self.average, self.seed = keras.models.clone_model(self.network), keras.random.SeedGenerator(10)
        self.tracker = keras.metrics.Mean(name="noise_loss")

    @property
    def metrics(self) -> Any:
        return [self.tracker]

    def train_step(self, images: Any) -> Any:
        images = self.normalizer(images)
        noises = keras.random.normal(K.shape(images), dtype=images.dtype, seed=self.seed)
        times = keras.random.uniform((K.shape(images)[0], 1, 1, 1), dtype=images.dtype, seed=self.seed)
        angle = np.arccos(0.95) + times * (np.arccos(0.02) - np.arccos(0.95))
        signal, noise = K.cos(angle), K.sin(angle)
        with tf.GradientTape() as tape:
            found = self.network([signal * images + noise * noises, noise**2], training=True)
            loss = self.loss(noises, found)
        step(self.optimizer, tape, loss, self.network.trainable_weights)
        self.tracker.update_state(loss)
        for weight, mean in zip(self.network.weights, self.average.weights):
            mean.assign(0.99 * mean + 0.01 * weight)
        return {"noise_loss": self.tracker.result()}


@program("generative", source=SOURCE.format("ddim"))
def ddim() -> KerasStep:
    """Return a U-net that finds the noise in images."""
    model = Implicit()
    model.compile(optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4), loss=keras.losses.MeanAbsoluteError())
    return KerasStep(model, uniform(SIZE, SIZE, 3))


class Attention(L.Layer):
    """Attention of each pixel to all others, after a group norm."""

    def build(self, shape: Any) -> None:
        width = shape[-1]
        self.norm, self.layers = L.GroupNormalization(groups=2), [L.Dense(width) for _ in range(4)]

    def call(self, x: Any) -> Any:
        query, key, value, last = self.layers
        y = self.norm(x)
        q, k, v = query(y), key(y), value(y)
        scores = K.einsum("bhwc,bHWc->bhwHW", q, k) * x.shape[-1] ** -0.5
        height, width = x.shape[1:3]
        shares = K.reshape(K.softmax(K.reshape(scores, (-1, height, width, height * width))), K.shape(scores))
        return x + last(K.einsum("bhwHW,bHWc->bhwc", shares, v))


def _timed_unet() -> Any:
    """Return a network that is given noisy images and the number of their step."""
    images, times = keras.Input((SIZE, SIZE, 3)), keras.Input((), dtype="int32")
    rates = np.exp(-np.linspace(0.0, 4.0, 4)).astype(keras.config.floatx())
    angles = K.cast(times, keras.config.floatx())[:, None] * rates
    time = L.Dense(14, "swish")(K.concatenate([K.sin(angles), K.cos(angles)], axis=-1))

    def block(x: Any, width: int) -> Any:
        kept = x if x.shape[-1] == width else L.Conv2D(width, 1)(x)
        y = L.Conv2D(width, 3, padding="same")(K.silu(L.GroupNormalization(2)(x)))
        y = y + L.Dense(width)(time)[:, None, None]
        return kept + L.Conv2D(width, 3, padding="same")(K.silu(L.GroupNormalization(2)(y)))

    first = block(L.Conv2D(6, 3, padding="same")(images), 6)
    x = Attention()(block(L.Conv2D(12, 3, strides=2, padding="same")(first), 12))
    x = L.Conv2D(6, 3, padding="same")(L.UpSampling2D(2, interpolation="nearest")(x))
    x = block(L.Concatenate()([x, first]), 6)
    return keras.Model([images, times], L.Conv2D(3, 3, padding="same")(K.silu(L.GroupNormalization(2)(x))))


class Probabilistic(keras.Model):
    """Draws a step of the diffusion for each image, and learns its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.average = _timed_unet(), _timed_unet()
        self.seed = keras.random.SeedGenerator(11)
        self.kept = np.cumprod(1.0 - np.linspace(1e-4, 0.02, 50)).astype(keras.config.floatx())

    def train_step(self, images: Any) -> Any:
        times = keras.random.randint((K.shape(images)[0],), 0, 50, seed=self.seed)
        with tf.GradientTape() as tape:
            noise = keras.random.normal(K.shape(images), dtype=images.dtype, seed=self.seed)
            kept = K.take(K.convert_to_tensor(self.kept), times)[:, None, None, None]
            found = self.network([K.sqrt(kept) * images + K.sqrt(1 - kept) * noise, times], training=True)
            loss = self.loss(noise, found)
        step(self.optimizer, tape, loss, self.network.trainable_weights)
        for weight, mean in zip(self.network.weights, self.average.weights):
            mean.assign(0.999 * mean + 0.001 * weight)
        return {"loss": loss}


@program("generative", source=SOURCE.format("ddpm"))
def ddpm() -> KerasStep:
    """Return a U-net with group norms, attention over pixels, and steps that are drawn."""
    model = Probabilistic()
    model.compile(loss=keras.losses.MeanSquaredError(), optimizer=keras.optimizers.Adam(2e-4))
    return KerasStep(model, uniform(SIZE, SIZE, 3))


class Masked(L.Layer):
    """A convolution that sees the pixels before its own."""

    def __init__(self, filters: int, size: int, with_own: bool) -> None:
        super().__init__()
        self.convolution: Any = L.Conv2D(filters, size, padding="same", activation="relu")
        self.size, self.with_own = size, with_own

    def build(self, shape: Any) -> None:
        self.convolution.build(shape)
        mask, middle = np.zeros(self.convolution.kernel.shape), self.size // 2
        mask[:middle] = mask[middle, :middle] = 1.0
        mask[middle, middle] = self.with_own
        self.mask = mask.astype(self.compute_dtype)

    def call(self, x: Any) -> Any:
        self.convolution.kernel.assign(self.convolution.kernel * self.mask)
        return self.convolution(x)


@program("generative", source=SOURCE.format("pixelcnn"))
def pixelcnn() -> KerasStep:
    """Kernels that are masked by an assignment in the forward pass."""
    inputs = keras.Input((SIZE, SIZE, 1))
    x = Masked(14, 5, False)(inputs)
    y = L.Conv2D(14, 1, activation="relu")(Masked(7, 3, True)(L.Conv2D(14, 1, activation="relu")(x)))
    x = Masked(14, 1, True)(x + y)
    model = keras.Model(inputs, L.Conv2D(1, 1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adam(5e-4), "binary_crossentropy")
    images = integers(2, SIZE, SIZE, 1).astype(keras.config.floatx())
    return KerasStep(model, (images, images))


def _features() -> Any:
    """Return a frozen network that gives its first, and its last features."""
    inputs = keras.Input((SIZE, SIZE, 3))
    first = L.Conv2D(7, 3, padding="same", activation="relu")(inputs)
    last = L.Conv2D(14, 3, padding="same", activation="relu")(L.MaxPooling2D(2)(first))
    model = keras.Model(inputs, [first, last])
    model.trainable = False
    return model


@program("generative", source=SOURCE.format("neural_style_transfer"))
def neural_style_transfer() -> Loop:
    """Images are the variable: their features, Gram matrices and total variation are the loss."""
    network = _features()
    rates: Any = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.96)
    optimizer = keras.optimizers.SGD(rates)
    image = tf.Variable(uniform(SIZE, SIZE, 3), name="image")

    def gram(x: Any) -> Any:
        return tf.einsum("bhwc,bhwd->bcd", x, x)

    @tf.compat.v2.function
    def transfer(content: Any, style: Any) -> Any:
        with tf.GradientTape() as tape:
            found, content_features, style_features = network(image), network(content), network(style)
            loss = tf.reduce_sum((found[1] - content_features[1]) ** 2)
            for a, b in zip(found, style_features):
                loss += tf.reduce_sum((gram(a) - gram(b)) ** 2) * 1e-3
            down = tf.square(image[:, :-1, :-1] - image[:, 1:, :-1])
            right = tf.square(image[:, :-1, :-1] - image[:, :-1, 1:])
            loss += 1e-3 * tf.reduce_sum(tf.pow(down + right, 1.25))
        optimizer.apply_gradients([(tape.gradient(loss, image), image)])
        return loss

    return images_and_style(transfer)


class Restyled(keras.Model):
    """A frozen encoder, features renormalized to the style's moments, and a decoder that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.taps = keras.Sequential([_features(), L.Lambda(lambda x: x[1])]), _features()
        layers = [L.Conv2D(7, 3, padding="same", activation="relu"), L.UpSampling2D(2)]
        self.decoder = keras.Sequential([keras.Input((4, 4, 14)), *layers, L.Conv2D(3, 3, padding="same")])
        self.encoder.trainable = False

    def train_step(self, data: Any) -> Any:
        style, content = data
        with tf.GradientTape() as tape:
            coded = _restyled(self.encoder(style), self.encoder(content))
            made = self.decoder(coded)
            loss = self.loss(coded, self.encoder(made))
            for a, b in zip(self.taps(style), self.taps(made)):
                for of_a, of_b in zip(_moments(a), _moments(b)):
                    loss += self.loss(of_a, of_b)
        step(self.optimizer, tape, loss, self.decoder.trainable_variables)
        return {"loss": loss}


def _moments(x: Any) -> tuple[Any, Any]:
    mean, variance = tf.nn.moments(x, axes=[1, 2], keepdims=True)
    return mean, tf.sqrt(variance + 1e-5)


def _restyled(style: Any, content: Any) -> Any:
    (mean, spread), (of_mean, of_spread) = _moments(style), _moments(content)
    return spread * (content - of_mean) / of_spread + mean


@program("generative", source=SOURCE.format("adain"))
def adain() -> KerasStep:
    """Features of a content with the moments of a style."""
    model = Restyled()
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=keras.losses.MeanSquaredError())
    return KerasStep(model, (uniform(SIZE, SIZE, 3), np.sqrt(uniform(SIZE, SIZE, 3))))

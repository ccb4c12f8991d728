"""Generative programs, as in keras.io's folder generative."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.pieces import Decoder, Tokens, integers, uniform
from benchmarks.programs.registry import KerasStep, Loop, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops
SOURCE = "keras.io examples/generative/{}.py"
SIZE, NOISE = 8, 7


def step(optimizer: Any, tape: Any, loss: Any, variables: Any) -> None:
    """Apply the gradient of a loss."""
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))


def generator(inputs: int = NOISE) -> Any:
    """Return a network from noise to images of 8x8 pixels."""
    layers = [L.Dense(2 * 2 * 14), L.LeakyReLU(0.2), L.Reshape((2, 2, 14))]
    for filters in (14, 7):
        layers += [L.Conv2DTranspose(filters, 4, strides=2, padding="same"), L.LeakyReLU(0.2)]
    last = L.Conv2D(3, 5, padding="same", activation="sigmoid")
    return keras.Sequential([keras.Input((inputs,)), *layers, last])


def discriminator(channels: int = 3, dropout: float = 0.2) -> Any:
    """Return a network from images to one number."""
    layers = []
    for filters in (7, 14):
        layers += [L.Conv2D(filters, 4, strides=2, padding="same"), L.LeakyReLU(0.2)]
    last = [L.Flatten(), L.Dropout(dropout), L.Dense(1)]
    return keras.Sequential([keras.Input((SIZE, SIZE, channels)), *layers, *last])


class Sampling(L.Layer):
    """Draws a code from its mean and the logarithm of its variance."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(7)

    def call(self, inputs: Any) -> Any:
        mean, spread = inputs
        return mean + K.exp(0.5 * spread) * keras.random.normal(K.shape(mean), dtype=mean.dtype, seed=self.seed)


class Autoencoder(keras.Model):
    """A variational autoencoder with a training step of its own."""

    def __init__(self) -> None:
        super().__init__()
        x = inputs = keras.Input((SIZE, SIZE, 1))
        for filters in (7, 14):
            x = L.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
        x = L.Dense(14, "relu")(L.Flatten()(x))
        mean, spread = L.Dense(2)(x), L.Dense(2)(x)
        self.encoder = keras.Model(inputs, [mean, spread, Sampling()([mean, spread])])
        layers = [keras.Input((2,)), L.Dense(2 * 2 * 14, "relu"), L.Reshape((2, 2, 14))]
        layers += [L.Conv2DTranspose(n, 3, strides=2, padding="same", activation="relu") for n in (14, 7)]
        self.decoder = keras.Sequential([*layers, L.Conv2DTranspose(1, 3, padding="same", activation="sigmoid")])
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "reconstruction", "divergence")]

    @property
    def metrics(self) -> Any:
        return self.trackers

    def train_step(self, images: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, spread, code = self.encoder(images)
            error = keras.losses.binary_crossentropy(images, self.decoder(code))
            error = K.mean(K.sum(error, axis=(1, 2)))
            divergence = K.mean(K.sum(-0.5 * (1 + spread - K.square(mean) - K.exp(spread)), axis=1))
            loss = error + divergence
        step(self.optimizer, tape, loss, self.trainable_weights)
        for tracker, value in zip(self.trackers, (loss, error, divergence)):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


@program("generative", source=SOURCE.format("vae"))
def vae() -> KerasStep:
    """Return a variational autoencoder: codes are drawn, and the loss is a sum of two."""
    model = Autoencoder()
    model.compile(keras.optimizers.Adam())
    return KerasStep(model, uniform(SIZE, SIZE, 1))


class Adversaries(keras.Model):
    """A generator and a discriminator with an optimizer each, and a training step for both.

    Args:
      maker: the generator.
      judge: the discriminator.
      noise: numbers that the generator is given.
    """

    def __init__(self, maker: Any, judge: Any, noise: int = NOISE) -> None:
        super().__init__()
        self.maker, self.judge, self.noise = maker, judge, noise
        self.seed = keras.random.SeedGenerator(8)
        self.crossentropy: Any = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.of_maker, self.of_judge = keras.optimizers.Adam(1e-4, 0.5), keras.optimizers.Adam(4e-4, 0.5)

    def drawn(self, images: Any) -> Any:
        return keras.random.normal((K.shape(images)[0], self.noise), dtype=images.dtype, seed=self.seed)


class Plain(Adversaries):
    """Real images count 0 and made ones 1, with noise on the labels."""

    def train_step(self, images: Any) -> Any:
        count = K.shape(images)[0]
        both = K.concatenate([self.maker(self.drawn(images)), images], axis=0)
        labels = K.concatenate([K.ones((count, 1)), K.zeros((count, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(K.shape(labels), seed=self.seed)
        with tf.GradientTape() as tape:
            judged = self.crossentropy(labels, self.judge(both, training=True))
        step(self.of_judge, tape, judged, self.judge.trainable_weights)
        with tf.GradientTape() as tape:
            made = self.judge(self.maker(self.drawn(images)), training=True)
            fooled = self.crossentropy(K.zeros((count, 1)), made)
        step(self.of_maker, tape, fooled, self.maker.trainable_weights)
        return {"judged": judged, "fooled": fooled}


@program("generative", source=SOURCE.format("dcgan_overriding_train_step"))
def dcgan_overriding_train_step() -> KerasStep:
    """Two networks, two optimizers, one training step."""
    model = Plain(generator(), discriminator())
    model.compile()
    return KerasStep(model, uniform(SIZE, SIZE, 3))


class Conditional(Adversaries):
    """Both networks are given the class, as planes of an image and as numbers beside the noise."""

    def train_step(self, data: Any) -> Any:
        images, classes = data
        planes = K.broadcast_to(classes[:, None, None], (*K.shape(images)[:3], classes.shape[-1]))
        count = K.shape(images)[0]
        made = self.maker(K.concatenate([self.drawn(images), classes], axis=1))
        pairs = [K.concatenate([x, planes], axis=-1) for x in (made, images)]
        labels = K.concatenate([K.ones((count, 1)), K.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            judged = self.crossentropy(labels, self.judge(K.concatenate(pairs, axis=0), training=True))
        step(self.of_judge, tape, judged, self.judge.trainable_weights)
        with tf.GradientTape() as tape:
            made = self.maker(K.concatenate([self.drawn(images), classes], axis=1))
            seen = self.judge(K.concatenate([made, planes], axis=-1), training=True)
            fooled = self.crossentropy(K.zeros((count, 1)), seen)
        step(self.of_maker, tape, fooled, self.maker.trainable_weights)
        return {"judged": judged, "fooled": fooled}


@program("generative", source=SOURCE.format("conditional_gan"))
def conditional_gan() -> KerasStep:
    """Adversaries that are given the class."""
    model = Conditional(generator(NOISE + 5), discriminator(3 + 5))
    model.compile()
    classes = np.eye(5, dtype=keras.config.floatx())[integers(5)]
    return KerasStep(model, (uniform(SIZE, SIZE, 3), classes))


class Penalized(Adversaries):
    """The discriminator learns several times in a step, with a penalty on its gradient."""

    def penalty(self, real: Any, made: Any) -> Any:
        share = keras.random.uniform((K.shape(real)[0], 1, 1, 1), dtype=real.dtype, seed=self.seed)
        between = real + share * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            judged = self.judge(between, training=True)
        norm = K.sqrt(K.sum(K.square(tape.gradient(judged, between)), axis=(1, 2, 3)))
        return K.mean((norm - 1.0) ** 2)

    def train_step(self, images: Any) -> Any:
        for _ in range(2):
            with tf.GradientTape() as tape:
                made = self.maker(self.drawn(images), training=True)
                distance = K.mean(self.judge(made, training=True)) - K.mean(self.judge(images, training=True))
                loss = distance + 10.0 * self.penalty(images, made)
            step(self.of_judge, tape, loss, self.judge.trainable_variables)
        with tf.GradientTape() as tape:
            fooled = -K.mean(self.judge(self.maker(self.drawn(images), training=True), training=True))
        step(self.of_maker, tape, fooled, self.maker.trainable_variables)
        return {"judged": loss, "fooled": fooled}


@program("generative", source=SOURCE.format("wgan_gp"))
def wgan_gp() -> KerasStep:
    """Return a gradient of a gradient in the loss, and batch norms in the generator."""
    layers = [L.Dense(4 * 4 * 7, use_bias=False), L.BatchNormalization(), L.LeakyReLU(0.2), L.Reshape((4, 4, 7))]
    layers += [L.UpSampling2D(2), L.Conv2D(7, 3, padding="same", use_bias=False), L.BatchNormalization()]
    last = [L.LeakyReLU(0.2), L.Conv2D(3, 3, padding="same", activation="tanh")]
    model = Penalized(keras.Sequential([keras.Input((NOISE,)), *layers, *last]), discriminator())
    model.compile()
    return KerasStep(model, uniform(SIZE, SIZE, 3))


class Cycle(keras.Model):
    """Two generators and two discriminators: what goes there and back is to be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.makers = [self.translator(), self.translator()]
        self.judges = [discriminator(dropout=0.0), discriminator(dropout=0.0)]

    def compile(self) -> None:
        super().compile()
        self.optimizers = [keras.optimizers.Adam(2e-4, 0.5) for _ in range(4)]

    @staticmethod
    def translator() -> Any:
        x = inputs = keras.Input((SIZE, SIZE, 3))
        x = L.ReLU()(L.GroupNormalization(-1)(L.Conv2D(7, 3, strides=2, padding="same")(x)))
        y = L.ReLU()(L.GroupNormalization(-1)(L.Conv2D(7, 3)(K.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect"))))
        x = L.Conv2DTranspose(7, 3, strides=2, padding="same")(x + y)
        return keras.Model(inputs, L.Conv2D(3, 3, padding="same", activation="tanh")(x))

    def train_step(self, data: Any) -> Any:
        forth, back = self.makers
        with tf.GradientTape(persistent=True) as tape:
            made = [back(data[1], training=True), forth(data[0], training=True)]
            cycled = [back(made[1], training=True), forth(made[0], training=True)]
            kept = [back(data[0], training=True), forth(data[1], training=True)]
            real = [judge(x, training=True) for judge, x in zip(self.judges, data)]
            seen = [judge(x, training=True) for judge, x in zip(self.judges, made)]
            cycle = sum(K.mean(K.abs(a - b)) for a, b in zip(cycled, data))
            same = [K.mean(K.abs(a - b)) for a, b in zip(kept, data)]
            of_makers = [K.mean((1 - seen[i]) ** 2) + 10 * cycle + 5 * same[i] for i in (1, 0)]
            of_judges = [0.5 * (K.mean((1 - a) ** 2) + K.mean(b**2)) for a, b in zip(real, seen)]
        losses, networks = [*of_makers, *of_judges], [*self.makers, *self.judges]
        for optimizer, loss, network in zip(self.optimizers, losses, networks):
            step(optimizer, tape, loss, network.trainable_variables)
        return {str(i): loss for i, loss in enumerate(losses)}


@program("generative", source=SOURCE.format("cyclegan"))
def cyclegan() -> KerasStep:
    """Four networks, four optimizers, one persistent tape."""
    model = Cycle()
    model.compile()
    return KerasStep(model, (uniform(SIZE, SIZE, 3), uniform(SIZE, SIZE, 3)[::-1].copy()))


def images_and_style(make_step: Any) -> Loop:
    """Return a loop on images of a content and of a style."""
    return Loop(make_step, (uniform(SIZE, SIZE, 3), np.sqrt(uniform(SIZE, SIZE, 3))))


def _generation(x: Any, model_inputs: Any, **options: Any) -> KerasStep:
    """Return a model of the next word, with its batch."""
    model = keras.Model(model_inputs, L.Dense(30)(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    ids = integers(30, 11)
    return KerasStep(model, (ids[:, :-1], ids[:, 1:]))


@program("generative", source=SOURCE.format("text_generation_with_miniature_gpt"))
def text_generation_with_miniature_gpt() -> KerasStep:
    """One causal layer."""
    inputs = keras.Input((10,), dtype="int32")
    return _generation(Decoder(8, 2, 14)(Tokens(10, 30, 8)(inputs)), inputs)


@program("generative", source=SOURCE.format("text_generation_gpt"))
def text_generation_gpt() -> KerasStep:
    """Two causal layers; padding does not count."""
    inputs = keras.Input((10,), dtype="int32")
    x = Tokens(10, 30, 8)(inputs)
    for _ in range(2):
        x = Decoder(8, 2, 14, dropout=0.0)(x)
    made = _generation(x, inputs)
    weights = (made.data[1] > 0).astype(keras.config.floatx())
    made.model.compile("adam", made.model.loss, weighted_metrics=["accuracy"])
    return KerasStep(made.model, (*made.data, weights))


@program("generative", source=SOURCE.format("lstm_character_level_text_generation"))
def lstm_character_level_text_generation() -> KerasStep:
    """Return an LSTM over one-hot characters."""
    model = keras.Sequential([keras.Input((10, 9)), L.LSTM(14), L.Dense(9, "softmax")])
    model.compile(keras.optimizers.RMSprop(0.01), "categorical_crossentropy")
    texts = np.eye(9, dtype=keras.config.floatx())[integers(9, 11)]
    return KerasStep(model, (texts[:, :-1], texts[:, -1]))

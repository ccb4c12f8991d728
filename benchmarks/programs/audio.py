"""Programs on sound, as in keras.io's folder audio."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.pieces import Decoder, Encoder, Tokens, integers, normal, padded
from benchmarks.programs.registry import KerasStep, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops
SOURCE = "keras.io examples/audio/{}.py"


@program("audio", source=SOURCE.format("speaker_recognition_using_cnn"))
def speaker_recognition_using_cnn() -> KerasStep:
    """Residual blocks of convolutions over the magnitudes of a Fourier transform."""
    x = inputs = keras.Input((64, 1))
    for filters, count in ((7, 2), (14, 3)):
        kept = L.Conv1D(filters, 1, padding="same")(x)
        for _ in range(count - 1):
            x = L.ReLU()(L.Conv1D(filters, 3, padding="same")(x))
        x = L.Add()([L.Conv1D(filters, 3, padding="same")(x), kept])
        x = L.MaxPooling1D(2, 2)(L.ReLU()(x))
    x = L.Flatten()(L.AveragePooling1D(3, 3)(x))
    x = L.Dense(14, "relu")(L.Dense(28, "relu")(x))
    model = keras.Model(inputs, L.Dense(5, "softmax")(x))
    model.compile("Adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (np.abs(np.fft.fft(normal(128, 1), axis=1))[:, :64], integers(5)))


class Recognizer(keras.Model):
    """An encoder of sound, a decoder of characters, and a training step of its own."""

    def __init__(self, length: int, classes: int, width: int = 8) -> None:
        super().__init__()
        convolutions = [L.Conv1D(width, 11, strides=2, padding="same", activation="relu") for _ in range(3)]
        self.encoder = keras.Sequential([*convolutions, Encoder(width, 2, 14), Encoder(width, 2, 14)])
        self.embedded, self.decoder = Tokens(length, classes, width), Decoder(width, 2, 14)
        self.head, self.classes = L.Dense(classes), classes
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> Any:
        return [self.tracker]

    def call(self, inputs: Any) -> Any:
        sounds, text = inputs
        return self.head(self.decoder(self.embedded(text), self.encoder(sounds)))

    def train_step(self, batch: Any) -> Any:
        text = batch["target"]
        given, wanted = text[:, :-1], text[:, 1:]
        with tf.GradientTape() as tape:
            found = self([batch["source"], given])
            mask = tf.math.logical_not(tf.math.equal(wanted, 0))
            loss = self.compute_loss(None, tf.one_hot(wanted, self.classes), found, sample_weight=mask)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


@program("audio", source=SOURCE.format("transformer_asr"))
def transformer_asr() -> KerasStep:
    """Return a sequence-to-sequence transformer with a learning rate that warms up."""
    model = Recognizer(9, 12)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    rates: Any = keras.optimizers.schedules.CosineDecay(0.0, 50, warmup_target=1e-3, warmup_steps=10)
    model.compile(optimizer=keras.optimizers.Adam(rates), loss=loss)
    return KerasStep(model, {"source": normal(40, 9), "target": padded(12, 10)})


@program("audio", source=SOURCE.format("ctc_asr"), tolerance=1e-7, reason="Keras computes the loss in float32")
def ctc_asr() -> KerasStep:
    """Convolutions with batch norms, bidirectional GRUs, and the loss of alignments."""
    x = inputs = keras.Input((24, 10))
    x = K.expand_dims(x, -1)
    for size, strides in (((5, 4), (2, 2)), ((3, 4), (1, 2))):
        x = L.Conv2D(4, size, strides=strides, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    x = L.Reshape((-1, x.shape[-2] * x.shape[-1]))(x)
    for i in range(2):
        x = L.Bidirectional(L.GRU(7, return_sequences=True, reset_after=True), merge_mode="concat")(x)
        x = L.Dropout(0.5)(x) if i == 0 else x
    x = L.Dropout(0.5)(L.Dense(14, "relu")(x))
    model = keras.Model(inputs, L.Dense(8)(x))
    model.compile(keras.optimizers.Adam(1e-4), keras.losses.CTC())
    return KerasStep(model, (normal(24, 10), integers(8, 4, low=1)))


class Mel(L.Layer):
    """Turns a wave into decibels of its mel frequencies."""

    def __init__(self, length: int, stride: int, channels: int) -> None:
        super().__init__()
        self.length, self.stride = length, stride
        filters = tf.signal.linear_to_mel_weight_matrix(channels, length // 2 + 1, 8000, 125.0, 3800.0, tf.float64)
        self.filters = filters.numpy()

    def call(self, wave: Any) -> Any:
        spectrum = tf.signal.stft(K.squeeze(wave, -1), self.length, self.stride, pad_end=True)
        mel = K.matmul(K.square(K.abs(spectrum)), K.cast(self.filters, wave.dtype))
        decibels = 10.0 * K.log(K.maximum(mel, 1e-6)) / np.log(10.0)
        return K.maximum(decibels, K.max(decibels) - 80.0)


class Normalized(L.Layer):
    """A convolution whose kernel has a scale of its own in each filter."""

    def __init__(self, filters: int, size: int, strides: int = 1) -> None:
        super().__init__()
        self.filters, self.size, self.strides = filters, size, strides

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(self.size, shape[-1], self.filters), initializer="he_normal")
        self.scale = self.add_weight(shape=(self.filters,), initializer="ones")

    def call(self, x: Any) -> Any:
        norm = K.sqrt(K.sum(K.square(self.kernel), axis=(0, 1), keepdims=True))
        return tf.nn.conv1d(x, self.kernel * (self.scale / (norm + 1e-6)), self.strides, "SAME")


def _vocoder() -> Any:
    """Return a network from a wave, through its mel frequencies, to a wave."""
    inputs = keras.Input((64, 1))
    x = L.LeakyReLU()(L.Conv1D(14, 7, padding="same")(Mel(16, 4, 7)(inputs)))
    for filters, stride in ((7, 2), (7, 2)):
        x = L.LeakyReLU()(L.Conv1DTranspose(filters, 4, strides=stride, padding="same")(x))
        for _ in range(2):
            y = Normalized(filters, 3)(L.LeakyReLU()(Normalized(filters, 3)(x)))
            x = L.Add()([x, y])
    return keras.Model(inputs, K.tanh(Normalized(1, 7)(L.LeakyReLU()(x))))


def _critic() -> Any:
    """Return a network from waves to all of its feature maps, at two scales."""
    x = inputs = keras.Input((64, 1))
    maps = []
    for _ in range(2):
        y = x
        for filters, size, strides in ((7, 15, 1), (14, 9, 4), (14, 5, 1)):
            y = L.LeakyReLU()(Normalized(filters, size, strides)(y))
            maps.append(y)
        maps.append(Normalized(1, 3)(y))
        x = L.AveragePooling1D(4, 2, padding="same")(x)
    return keras.Model(inputs, maps)


class Vocoder(keras.Model):
    """A generator of waves whose features in two critics are to be those of real waves."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.critic = _vocoder(), _critic()

    def compile(self) -> None:
        super().compile()
        self.of_maker, self.of_critic = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-4)

    def train_step(self, waves: Any) -> Any:
        with tf.GradientTape() as of_maker, tf.GradientTape() as of_critic:
            made = self.maker(waves, training=True)
            real, fake = self.critic(waves), self.critic(made)
            fooled = sum(K.mean(K.square(1 - fake[i])) for i in (3, 7))
            matched = sum(K.mean(K.abs(a - b)) for a, b in zip(real, fake))
            judged = sum(K.mean(K.square(1 - real[i])) + K.mean(K.square(fake[i])) for i in (3, 7))
            loss = fooled + 10 * matched
        weights = self.maker.trainable_variables
        self.of_maker.apply_gradients(zip(of_maker.gradient(loss, weights), weights))
        weights = self.critic.trainable_variables
        self.of_critic.apply_gradients(zip(of_critic.gradient(judged, weights), weights))
        return {"fooled": fooled, "matched": matched, "judged": judged}


@program("audio", source=SOURCE.format("melgan_spectrogram_inversion"))
def melgan_spectrogram_inversion() -> KerasStep:
    """Adversaries on waves: spectra inside of the network, normalized kernels."""
    model = Vocoder()
    model.compile()
    return KerasStep(model, normal(64, 1))


def _frequency_block(x: Any, channels: int) -> Any:
    """Return convolutions over time and frequency, and dense layers over frequency."""
    kept = L.Conv2D(channels, 1, use_bias=False)(x)
    x = L.Conv2D(channels, 3, padding="same", use_bias=False)(K.gelu(L.GroupNormalization(-1)(x)))
    y = K.swapaxes(K.gelu(L.GroupNormalization(-1)(x)), -1, -2)
    y = L.Dense(x.shape[2], use_bias=False)(L.Dense(x.shape[2] // 2, use_bias=False)(y))
    return K.swapaxes(y, -1, -2) + x + kept


@program("audio", source=SOURCE.format("vocal_track_separation"))
def vocal_track_separation() -> KerasStep:
    """Return a U-net between a short-time Fourier transform and its inverse, with accumulated gradients."""
    inputs = keras.Input((120,))
    real, imaginary = K.stft(inputs, 16, 8, 16)
    spectrum = K.stack([real, imaginary], axis=-1)[:, :, :8]
    first = _frequency_block(spectrum, 6)
    x = L.Conv2D(6, 2, strides=2, use_bias=False)(K.gelu(L.GroupNormalization(-1)(first)))
    x = L.Conv2DTranspose(6, 2, strides=2, use_bias=False)(K.gelu(L.GroupNormalization(-1)(_frequency_block(x, 12))))
    x = _frequency_block(L.Concatenate()([x * first, spectrum]), 6)
    x = K.pad(L.Conv2D(2, 1, use_bias=False)(x), ((0, 0), (0, 0), (0, 1), (0, 0)))
    wave = K.istft((x[..., 0], x[..., 1]), 16, 8, 16)
    model = keras.Model(inputs, K.expand_dims(wave, 1))
    model.compile(keras.optimizers.Adam(5e-4, gradient_accumulation_steps=2), "mean_absolute_error")
    return KerasStep(model, (normal(120), normal(1, 120)))

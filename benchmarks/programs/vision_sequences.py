"""Programs of video, captions and handwriting."""

from typing import Any

import numpy as np

from benchmarks.programs.registry import BATCH, KerasStep, Made, keras, program
from benchmarks.programs.vision_attention import adamw
from benchmarks.programs.vision_classification import CLASSES, images, labels
from benchmarks.programs.vision_steps import Own
from mtf_hetero import tf

L, K = keras.layers, keras.ops
FRAMES, WORDS, LENGTH, WIDTH = 3, 12, 5, 14


def video(size: int = 8, channels: int = 1) -> np.ndarray:
    """Return a batch of short videos."""
    return np.random.default_rng(3).uniform(size=(BATCH, FRAMES, size, size, channels))


@program("vision", source="keras.io examples/vision/conv_lstm.py")
def conv_lstm() -> Made:
    """Recurrent convolutions with batch norms between them, and a convolution of volumes."""
    inputs = keras.Input((FRAMES, 8, 8, 1))
    x = inputs
    for kernel in (5, 3):
        x = L.ConvLSTM2D(7, kernel, padding="same", return_sequences=True, activation="relu")(x)
        x = L.BatchNormalization()(x)
    model = keras.Model(inputs, L.Conv3D(1, 3, activation="sigmoid", padding="same")(x))
    model.compile(keras.optimizers.Adam(), "binary_crossentropy")
    return KerasStep(model, (video(), video()[:, ::-1]))


@program("vision", source="keras.io examples/vision/video_classification.py")
def video_classification() -> Made:
    """Recurrent layers on rows of frames, of which some are masked."""
    rows, mask = keras.Input((6, 12)), keras.Input((6,), dtype="bool")
    x = L.GRU(14, return_sequences=True)(rows, mask=mask)
    x = L.Dense(7, activation="relu")(L.Dropout(0.4)(L.GRU(7)(x)))
    model = keras.Model([rows, mask], L.Dense(CLASSES, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 7, BATCH)
    data = rng.standard_normal((BATCH, 6, 12)), np.arange(6)[None] < lengths[:, None]
    return KerasStep(model, (data, labels()))


class Encoder(L.Layer):
    """A transformer's block on frames."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.attention = L.MultiHeadAttention(1, width, dropout=0.3)
        self.dense = keras.Sequential([L.Dense(7, activation="gelu"), L.Dense(width)])
        self.norms = [L.LayerNormalization(), L.LayerNormalization()]
        self.positions = L.Embedding(FRAMES, width)

    def call(self, x: Any, mask: Any = None) -> Any:
        x = x + self.positions(K.arange(FRAMES, dtype="int32"))
        x = self.norms[0](x + self.attention(x, x, attention_mask=mask))
        return self.norms[1](x + self.dense(x))


@program("vision", source="keras.io examples/vision/video_transformers.py")
def video_transformers() -> Made:
    """Return a transformer's block on rows of frames, and the maximum over time."""
    inputs = keras.Input((FRAMES, WIDTH))
    x = L.Dropout(0.5)(L.GlobalMaxPooling1D()(Encoder()(inputs)))
    model = keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    rows = np.random.default_rng(0).standard_normal((BATCH, FRAMES, WIDTH))
    return KerasStep(model, (rows, labels()))


@program("vision", source="keras.io examples/vision/vivit.py")
def vivit() -> Made:
    """Patches of space and time by a convolution of volumes, then a transformer."""
    inputs = keras.Input((4, 8, 8, 1))
    x = L.Reshape((-1, WIDTH))(L.Conv3D(WIDTH, (2, 4, 4), strides=(2, 4, 4), padding="valid")(inputs))
    x = x + L.Embedding(8, WIDTH)(K.arange(8, dtype="int32"))
    for _ in range(2):
        y = L.LayerNormalization(epsilon=1e-6)(x)
        x = L.Add()([L.MultiHeadAttention(2, 7, dropout=0.1)(y, y), x])
        y = L.LayerNormalization(epsilon=1e-6)(x)
        x = L.Add()([keras.Sequential([L.Dense(28, activation="gelu"), L.Dense(WIDTH, activation="gelu")])(y), x])
    x = L.GlobalAvgPool1D()(L.LayerNormalization(epsilon=1e-6)(x))
    model = keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(x))
    model.compile(adamw(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    volumes = np.random.default_rng(0).standard_normal((BATCH, 4, 8, 8, 1))
    return KerasStep(model, (volumes, labels()))


class Captions(Own):
    """Image features into a decoder, once for each caption of an image; padded words do not count."""

    def __init__(self) -> None:
        super().__init__()
        conv = L.Conv2D(WIDTH, 3, strides=2, activation="relu")
        self.network = keras.Sequential([keras.Input((8, 8, 3)), conv, L.Reshape((-1, WIDTH))])
        self.network.trainable = False
        self.encoder = keras.Sequential([L.LayerNormalization(), L.Dense(WIDTH, activation="relu")])
        self.words = L.Embedding(WORDS, WIDTH)
        self.positions = L.Embedding(LENGTH, WIDTH)
        self.own, self.cross = L.MultiHeadAttention(2, WIDTH, dropout=0.1), L.MultiHeadAttention(2, WIDTH, dropout=0.1)
        self.norms = [L.LayerNormalization() for _ in range(2)]
        self.out = keras.Sequential([L.Dense(28, activation="relu"), L.Dropout(0.3), L.Dense(WORDS)])
        self.right = keras.metrics.Mean(name="acc")

    @property
    def metrics(self) -> Any:
        return [self.loss_tracker, self.right]

    def decode(self, ids: Any, features: Any, mask: Any) -> Any:
        count = ids.shape[1]
        x = self.words(ids) * WIDTH**0.5 + self.positions(K.arange(count, dtype="int32"))
        padding = K.cast(mask[:, None, :], "int32")
        causal = K.cast(K.arange(count)[:, None] >= K.arange(count), "int32")
        y = self.own(x, x, attention_mask=K.minimum(padding, causal[None]), training=True)
        x = self.norms[0](x + y)
        y = self.cross(x, features, attention_mask=K.cast(mask[:, :, None], "int32"), training=True)
        return self.out(self.norms[1](x + y), training=True)

    def train_step(self, data: Any) -> Any:
        pictures, captions = data
        features = self.network(pictures)
        total, right = 0.0, 0.0
        for number in range(captions.shape[1]):
            ids, true = captions[:, number, :-1], captions[:, number, 1:]
            mask = K.not_equal(true, 0)
            with tf.GradientTape() as tape:
                scores = self.decode(ids, self.encoder(features, training=True), mask)
                losses = keras.losses.sparse_categorical_crossentropy(true, scores, from_logits=True)
                weights = K.cast(mask, losses.dtype)
                loss = K.sum(losses * weights) / K.sum(weights)
            hits = K.cast(
                K.logical_and(mask, K.equal(true, K.cast(K.argmax(scores, axis=2), true.dtype))), losses.dtype
            )
            total, right = total + loss, right + K.sum(hits) / K.sum(weights)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.loss_tracker.update_state(total / captions.shape[1])
        self.right.update_state(right / captions.shape[1])
        return {metric.name: metric.result() for metric in self.metrics}


@program("vision", source="keras.io examples/vision/image_captioning.py")
def image_captioning() -> Made:
    """Return a step of several updates, one for each caption."""
    model = Captions()
    model.compile(keras.optimizers.Adam(1e-3))
    rng = np.random.default_rng(0)
    captions = rng.integers(1, WORDS, (BATCH, 2, LENGTH + 1)).astype("int32")
    captions[:, :, -2:] *= rng.integers(0, 2, (BATCH, 2, 1)).astype("int32")
    return KerasStep(model, (images(8), captions))


class CtcLayer(L.Layer):
    """Adds the loss of a connectionist temporal classification."""

    def call(self, true: Any, found: Any) -> Any:
        count = K.shape(true)[0]
        lengths = [K.ones((count,), dtype="int32") * x.shape[1] for x in (found, true)]
        self.add_loss(K.mean(K.ctc_loss(true, found, lengths[1], lengths[0], mask_index=WORDS)))
        return found


@program("vision", source="keras.io examples/vision/handwriting_recognition.py")
def handwriting_recognition() -> Made:
    """Convolutions, bidirectional LSTMs, and a CTC loss inside the model."""
    inputs, true = keras.Input((16, 8, 1)), keras.Input((3,), dtype="int32")
    x = inputs
    for width in (7, 14):
        x = L.Conv2D(width, 3, activation="relu", kernel_initializer="he_normal", padding="same")(x)
        x = L.MaxPooling2D(2)(x)
    x = L.Dropout(0.2)(L.Dense(14, activation="relu")(L.Reshape((4, 28))(x)))
    x = L.Bidirectional(L.LSTM(7, return_sequences=True, dropout=0.25))(x)
    x = L.Dense(WORDS + 2)(x)
    model = keras.Model([inputs, true], CtcLayer()(true, x))
    model.compile(keras.optimizers.Adam())
    words = np.tile(np.array([[1, 2, 3]], "int32"), (BATCH, 1)) + labels()[:, None]
    pictures = np.random.default_rng(0).standard_normal((BATCH, 16, 8, 1))
    return KerasStep(model, ((pictures, words),))

"""Programs on text, as in keras.io's folder nlp."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.pieces import Decoder, Encoder, Tokens, integers, normal, padded
from benchmarks.programs.registry import KerasStep, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops
WORDS, LENGTH, WIDTH = 30, 8, 8
SOURCE = "keras.io examples/nlp/{}.py"


def _ids() -> Any:
    return keras.Input((LENGTH,), dtype="int32")


def _binary(inputs: Any, x: Any, optimizer: Any = "adam", metrics: Any = ("accuracy",)) -> KerasStep:
    """Return a classifier of two classes on ids, with its batch."""
    model = keras.Model(inputs, L.Dense(1, "sigmoid")(x))
    model.compile(optimizer, "binary_crossentropy", metrics=list(metrics))
    return KerasStep(model, (integers(WORDS, LENGTH), integers(2, 1)))


@program("nlp", source=SOURCE.format("text_classification_from_scratch"))
def text_classification_from_scratch() -> KerasStep:
    """Convolutions of length 7 and stride 3 over embedded words."""
    inputs = keras.Input((40,), dtype="int32")
    x = L.Dropout(0.5)(L.Embedding(WORDS, WIDTH)(inputs))
    for _ in range(2):
        x = L.Conv1D(14, 7, strides=3, activation="relu")(x)
    x = L.Dropout(0.5)(L.Dense(14, "relu")(L.GlobalMaxPooling1D()(x)))
    model = keras.Model(inputs, L.Dense(1, "sigmoid")(x))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (integers(WORDS, 40), integers(2, 1)))


@program("nlp", source=SOURCE.format("bidirectional_lstm_imdb"))
def bidirectional_lstm_imdb() -> KerasStep:
    """Two bidirectional LSTMs."""
    inputs = _ids()
    x = L.Bidirectional(L.LSTM(7, return_sequences=True))(L.Embedding(WORDS, WIDTH)(inputs))
    return _binary(inputs, L.Bidirectional(L.LSTM(7))(x))


@program("nlp", source=SOURCE.format("text_classification_with_transformer"))
def text_classification_with_transformer() -> KerasStep:
    """One encoder layer, its mean, and two dense layers."""
    inputs = _ids()
    x = Encoder(WIDTH, 2, 14)(Tokens(LENGTH, WORDS, WIDTH)(inputs))
    x = L.Dropout(0.1)(L.GlobalAveragePooling1D()(x))
    x = L.Dropout(0.1)(L.Dense(14, "relu")(x))
    model = keras.Model(inputs, L.Dense(2, "softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (integers(WORDS, LENGTH), integers(2)))


class Switch(L.Layer):
    """Sends each token to the expert that a router prefers, up to the capacity of the expert."""

    def __init__(self, experts: int, width: int, tokens: int) -> None:
        super().__init__()
        self.experts, self.capacity, self.width = experts, tokens // experts, width
        self.route = L.Dense(experts)
        self.networks = [keras.Sequential([L.Dense(width, "relu"), L.Dense(width)]) for _ in range(experts)]
        self.seed = keras.random.SeedGenerator(5)

    def call(self, x: Any, training: bool = False) -> Any:
        tokens = K.reshape(x, (-1, self.width))
        logits = self.route(tokens)
        if training:
            logits += keras.random.uniform(K.shape(logits), 0.9, 1.1, seed=self.seed)
        shares = K.softmax(logits)
        gate, chosen = tf.math.top_k(shares, k=1)
        mask = K.one_hot(chosen[:, 0], self.experts, dtype=self.compute_dtype)
        self.add_loss(K.mean(K.mean(mask, 0) * K.mean(shares, 0)) * self.experts**2)
        position = K.cumsum(mask, axis=0) * mask
        mask *= K.cast(position < self.capacity, self.compute_dtype)
        place = K.one_hot(K.cast(K.sum(position * mask, 1), "int32"), self.capacity, dtype=self.compute_dtype)
        sent = (gate * mask)[:, :, None] * place[:, None]
        given = tf.unstack(tf.einsum("td,tec->ecd", tokens, sent))
        made = tf.stack([network(part) for network, part in zip(self.networks, given)])
        return K.reshape(tf.einsum("ecd,tec->td", made, sent), K.shape(x))


@program("nlp", source=SOURCE.format("text_classification_with_switch_transformer"))
def text_classification_with_switch_transformer() -> KerasStep:
    """Return a mixture of experts in place of the dense layers, with its loss of balance."""
    inputs = _ids()
    mixer = Switch(5, WIDTH, 14 * LENGTH)
    x = Encoder(WIDTH, 2, 14, mixer=mixer)(Tokens(LENGTH, WORDS, WIDTH)(inputs))
    x = L.Dropout(0.25)(L.GlobalAveragePooling1D()(x))
    x = L.Dropout(0.25)(L.Dense(14, "relu")(x))
    model = keras.Model(inputs, L.Dense(2, "softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (integers(WORDS, LENGTH), integers(2)))


@program("nlp", source=SOURCE.format("pretrained_word_embeddings"))
def pretrained_word_embeddings() -> KerasStep:
    """Frozen embeddings, convolutions and pools of length 5."""
    inputs = keras.Input((90,), dtype="int32")
    initializers: Any = keras.initializers
    vectors = initializers.Constant(np.random.default_rng(6).standard_normal((WORDS, WIDTH)))
    x = L.Embedding(WORDS, WIDTH, embeddings_initializer=vectors, trainable=False)(inputs)
    for _ in range(2):
        x = L.MaxPooling1D(5)(L.Conv1D(14, 3, activation="relu")(x))
    x = L.GlobalMaxPooling1D()(L.Conv1D(14, 2, activation="relu")(x))
    x = L.Dropout(0.5)(L.Dense(14, "relu")(x))
    model = keras.Model(inputs, L.Dense(5, "softmax")(x))
    model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["acc"])
    return KerasStep(model, (integers(WORDS, 90), integers(5)))


@program("nlp", source=SOURCE.format("lstm_seq2seq"))
def lstm_seq2seq() -> KerasStep:
    """One LSTM gives its states to another, over characters as one-hot vectors."""
    encoded, decoded = keras.Input((None, 9)), keras.Input((None, 11))
    _, h, c = L.LSTM(14, return_state=True)(encoded)
    x = L.LSTM(14, return_sequences=True)(decoded, initial_state=[h, c])
    model = keras.Model([encoded, decoded], L.Dense(11, "softmax")(x))
    model.compile("rmsprop", "categorical_crossentropy", metrics=["accuracy"])
    kind = keras.config.floatx()
    texts = np.eye(9, dtype=kind)[integers(9, 7)], np.eye(11, dtype=kind)[integers(11, 6)]
    return KerasStep(model, (texts, np.roll(texts[1], -1, axis=1)))


class Padded(Tokens):
    """Embeds ids and positions; 0 is padding, of which the mask tells later layers."""

    def compute_mask(self, ids: Any, previous: Any = None) -> Any:
        return K.not_equal(ids, 0)


@program("nlp", source=SOURCE.format("neural_machine_translation_with_transformer"))
def neural_machine_translation_with_transformer() -> KerasStep:
    """Return an encoder and a decoder with masks of padding."""
    source, target = _ids(), _ids()
    embedded = Padded(LENGTH, WORDS, WIDTH)(source)
    mask = K.not_equal(source, 0)
    encoded = Encoder(WIDTH, 2, 14)(embedded, mask=mask)
    x = Decoder(WIDTH, 2, 14)(Padded(LENGTH, WORDS, WIDTH)(target), encoded, mask=mask)
    model = keras.Model([source, target], L.Dense(WORDS, "softmax")(L.Dropout(0.5)(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    model.compile("rmsprop", loss, metrics=["accuracy"])
    texts = padded(WORDS, LENGTH), padded(WORDS, LENGTH)
    return KerasStep(model, (texts, np.roll(texts[1], -1, axis=1)))


class MaskedModel(keras.Model):
    """Its training step weighs the loss of each word."""

    def build(self, shape: Any) -> None:
        self.tracker = keras.metrics.Mean(name="loss")

    def train_step(self, data: Any) -> Any:
        ids, labels, weights = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(ids, labels, self(ids, training=True), weights)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.tracker.update_state(loss, sample_weight=K.sum(weights))
        return {"loss": self.tracker.result()}


@program("nlp", source=SOURCE.format("masked_language_modeling"))
def masked_language_modeling() -> KerasStep:
    """Words are predicted where they were masked, by an own training step."""
    inputs = _ids()
    x = Encoder(WIDTH, 2, 14)(Tokens(LENGTH, WORDS, WIDTH)(inputs))
    model = MaskedModel(inputs, L.Dense(WORDS, "softmax")(x))
    model.tracker = keras.metrics.Mean(name="loss")
    model.compile(keras.optimizers.Adam(0.001), keras.losses.SparseCategoricalCrossentropy())
    masked = (integers(7, LENGTH) == 0).astype(keras.config.floatx())
    return KerasStep(model, (integers(WORDS, LENGTH), integers(WORDS, LENGTH), masked))


class WithoutPadding(keras.losses.Loss):
    """The mean crossentropy of all words that are no padding."""

    def call(self, labels: Any, logits: Any) -> Any:
        loss: Any = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        mask = K.cast(labels > 0, loss.dtype)
        return K.sum(loss * mask) / K.sum(mask)


@program("nlp", source=SOURCE.format("ner_transformers"))
def ner_transformers() -> KerasStep:
    """Return a tag for each word, with a loss of its own that leaves padding out."""
    inputs = _ids()
    x = L.Dropout(0.1)(Encoder(WIDTH, 2, 14)(Tokens(LENGTH, WORDS, WIDTH)(inputs)))
    x = L.Dense(7)(L.Dropout(0.1)(L.Dense(14, "relu")(x)))
    model = keras.Model(inputs, x)
    model.compile("adam", WithoutPadding())
    return KerasStep(model, (padded(WORDS, LENGTH), padded(7, LENGTH)))


@program("nlp", source=SOURCE.format("multi_label_classification"))
def multi_label_classification() -> KerasStep:
    """Several labels of each bag of words."""
    model = keras.Sequential([keras.Input((WORDS,)), L.Dense(28, "relu"), L.Dense(14, "relu"), L.Dense(9, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["binary_accuracy"])
    return KerasStep(model, (normal(WORDS), integers(2, 9)))


@program("nlp", source=SOURCE.format("active_learning_review_classification"))
def active_learning_review_classification() -> KerasStep:
    """Return a bidirectional LSTM, and metrics that count wrong examples."""
    inputs = _ids()
    x = L.Bidirectional(L.LSTM(7, return_sequences=True))(L.Embedding(WORDS, WIDTH)(inputs))
    x = L.Dropout(0.5)(L.Dense(14, "relu")(L.GlobalMaxPooling1D()(x)))
    metrics = [keras.metrics.BinaryAccuracy(), keras.metrics.FalseNegatives(), keras.metrics.FalsePositives()]
    return _binary(inputs, x, "rmsprop", metrics)


@program("nlp", source=SOURCE.format("semantic_similarity_with_bert"))
def semantic_similarity_with_bert() -> KerasStep:
    """Return a frozen encoder, then a bidirectional LSTM on both pools."""
    ids, masks, types = _ids(), _ids(), _ids()
    x = Tokens(LENGTH, WORDS, WIDTH)(ids) + L.Embedding(2, WIDTH)(types)
    encoder = keras.Model([ids, masks, types], Encoder(WIDTH, 2, 14)(x, mask=K.cast(masks, "bool")))
    encoder.trainable = False
    x = L.Bidirectional(L.LSTM(7, return_sequences=True))(encoder([ids, masks, types]))
    x = L.Concatenate()([L.GlobalAveragePooling1D()(x), L.GlobalMaxPooling1D()(x)])
    model = keras.Model([ids, masks, types], L.Dense(3, "softmax")(L.Dropout(0.3)(x)))
    model.compile("adam", "categorical_crossentropy", metrics=["acc"])
    words = padded(WORDS, LENGTH)
    labels = np.eye(3, dtype=keras.config.floatx())[integers(3)]
    return KerasStep(model, ((words, (words > 0).astype("int32"), integers(2, LENGTH)), labels))


class Fourier(L.Layer):
    """Mixes words and channels by the real part of a Fourier transform."""

    def call(self, x: Any) -> Any:
        kind = tf.complex128 if x.dtype == tf.float64 else tf.complex64
        return tf.math.real(tf.signal.fft2d(tf.cast(x, kind)))


def fourier_encoder(x: Any, units: int) -> Any:
    """Return an encoder layer that has a Fourier transform in place of attention."""
    x = L.LayerNormalization()(x + Fourier()(x))
    return L.LayerNormalization()(x + L.Dense(x.shape[-1])(L.Dense(units, "relu")(x)))


@program("nlp", source=SOURCE.format("text_generation_fnet"))
def text_generation_fnet() -> KerasStep:
    """Return an encoder of Fourier transforms, and a decoder with causal attention."""
    source, target = _ids(), _ids()
    encoded = fourier_encoder(Tokens(LENGTH, WORDS, WIDTH)(source), 14)
    x = Decoder(WIDTH, 2, 14)(Tokens(LENGTH, WORDS, WIDTH)(target), encoded)
    model = keras.Model([source, target], L.Dense(WORDS, "softmax")(L.Dropout(0.5)(x)))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return KerasStep(model, ((integers(WORDS, LENGTH), integers(WORDS, LENGTH)), integers(WORDS, LENGTH)))

"""Programs on tables, as in keras.io's folder structured_data."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.pieces import Encoder, integers, normal, uniform
from benchmarks.programs.registry import KerasStep, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops
SOURCE = "keras.io examples/structured_data/{}.py"
NUMBERS = ("age", "hours", "gain")
CATEGORIES = {"work": 5, "education": 7, "country": 9}


def _inputs() -> dict[str, Any]:
    """Return one input for each column of a table."""
    numbers = {name: keras.Input((1,), name=name) for name in NUMBERS}
    return numbers | {name: keras.Input((1,), name=name, dtype="int32") for name in CATEGORIES}


def _columns() -> dict[str, np.ndarray]:
    numbers = {name: normal(1) + i for i, name in enumerate(NUMBERS)}
    return numbers | {name: integers(count, 1) for name, count in CATEGORIES.items()}


def _embedded(inputs: dict[str, Any], width: int | None = None) -> list[Any]:
    """Return numbers as they are, or as dense layers see them, and embedded categories."""
    numbers = [inputs[name] if width is None else L.Dense(width)(inputs[name]) for name in NUMBERS]
    categories = [L.Embedding(n, width or 3)(inputs[name]) for name, n in CATEGORIES.items()]
    return [*numbers, *(L.Flatten()(x) for x in categories)]


def _binary(inputs: Any, x: Any, optimizer: Any = "adam") -> KerasStep:
    model = keras.Model(inputs, L.Dense(1, "sigmoid")(x))
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (_columns(), integers(2, 1)))


@program("structured_data", source=SOURCE.format("structured_data_classification_from_scratch"))
def structured_data_classification_from_scratch() -> KerasStep:
    """Return normalized numbers and one-hot categories, encoded inside of the model."""
    inputs, columns = _inputs(), _columns()
    encoded = []
    for name in NUMBERS:
        layer = L.Normalization()
        layer.adapt(columns[name])
        encoded.append(layer(inputs[name]))
    for name, count in CATEGORIES.items():
        encoded.append(L.CategoryEncoding(num_tokens=count, output_mode="multi_hot")(inputs[name]))
    x = L.Dropout(0.5)(L.Dense(14, "relu")(L.Concatenate()(encoded)))
    return _binary(inputs, x)


@program("structured_data", source=SOURCE.format("structured_data_classification_with_feature_space"))
def structured_data_classification_with_feature_space() -> KerasStep:
    """Bins of numbers and one-hot categories, encoded inside of the model."""
    inputs = _inputs()
    bins = L.Discretization(bin_boundaries=[-1.0, 0.0, 1.0], output_mode="one_hot")(inputs["age"])
    pairs = inputs["work"] * CATEGORIES["education"] + inputs["education"]
    crossed = L.CategoryEncoding(num_tokens=35, output_mode="one_hot")(pairs)
    country = L.CategoryEncoding(num_tokens=9, output_mode="one_hot")(inputs["country"])
    numbers = L.Rescaling(0.5)(L.Concatenate()([inputs["hours"], inputs["gain"]]))
    x = L.Concatenate()([bins, crossed, country, numbers])
    return _binary(inputs, L.Dropout(0.5)(L.Dense(14, "relu")(x)))


@program("structured_data", source=SOURCE.format("imbalanced_classification"))
def imbalanced_classification() -> KerasStep:
    """Rare examples weigh more, and metrics count them."""
    layers = [L.Dense(28, "relu"), L.Dense(28, "relu"), L.Dropout(0.3), L.Dense(28, "relu"), L.Dropout(0.3)]
    model = keras.Sequential([keras.Input((12,)), *layers, L.Dense(1, "sigmoid")])
    metrics = [
        *(keras.metrics.FalseNegatives(name="fn"), keras.metrics.FalsePositives(name="fp")),
        *(keras.metrics.TrueNegatives(name="tn"), keras.metrics.TruePositives(name="tp")),
        *(keras.metrics.Precision(name="precision"), keras.metrics.Recall(name="recall")),
    ]
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=metrics)
    labels = integers(2, 1)
    return KerasStep(model, (normal(12), labels, np.where(labels[:, 0], 10.0, 0.1).astype(keras.config.floatx())))


class Recommender(keras.Model):
    """The match of a user and a film: the product of two embeddings, and two biases."""

    def __init__(self, users: int, films: int, width: int) -> None:
        super().__init__()
        options = {"embeddings_initializer": "he_normal", "embeddings_regularizer": keras.regularizers.L2(1e-6)}
        self.users, self.films = L.Embedding(users, width, **options), L.Embedding(films, width, **options)
        self.of_user, self.of_film = L.Embedding(users, 1), L.Embedding(films, 1)

    def call(self, pairs: Any) -> Any:
        user, film = pairs[:, 0], pairs[:, 1]
        match = tf.tensordot(self.users(user), self.films(film), 2)
        return tf.nn.sigmoid(match + self.of_user(user) + self.of_film(film))


@program("structured_data", source=SOURCE.format("collaborative_filtering_movielens"))
def collaborative_filtering_movielens() -> KerasStep:
    """Embeddings of users and films, with regularizers, whose product runs over the batch, too."""
    model = Recommender(9, 12, 7)
    model.compile(keras.optimizers.Adam(0.001), keras.losses.BinaryCrossentropy())
    return KerasStep(model, (np.stack([integers(9), integers(12)], 1), uniform()))


@program("structured_data", source=SOURCE.format("movielens_recommendations_transformers"))
def movielens_recommendations_transformers() -> KerasStep:
    """Return a transformer over films that a user has rated, beside features of the user."""
    length, films, width = 5, 16, 8
    watched, ratings = keras.Input((length,), dtype="int32"), keras.Input((length,))
    target, user = keras.Input((1,), dtype="int32"), keras.Input((1,), dtype="int32")
    initializers: Any = keras.initializers
    genres = initializers.Constant(np.random.default_rng(5).integers(0, 2, (films, 6)))
    embedding, process = L.Embedding(films, width), L.Dense(width, "relu")
    kinds = L.Embedding(films, 6, embeddings_initializer=genres, trainable=False)

    def film(ids: Any) -> Any:
        return process(L.Concatenate()([embedding(ids), kinds(ids)]))

    places = L.Embedding(length, width)(K.arange(length))
    x = L.Multiply()([film(watched) + places, K.expand_dims(ratings, -1)])
    x = L.Flatten()(Encoder(width, 2, 14)(L.Concatenate(axis=1)([x, film(target)])))
    x = L.Concatenate()([x, L.Flatten()(L.Embedding(9, 3)(user))])
    for units in (14, 7):
        x = L.Dropout(0.1)(L.LeakyReLU()(L.BatchNormalization()(L.Dense(units)(x))))
    model = keras.Model([watched, ratings, target, user], L.Dense(1)(x))
    model.compile(keras.optimizers.Adagrad(0.01), "mean_squared_error", metrics=["mae"])
    return KerasStep(model, ((integers(films, length), uniform(length), integers(films, 1), integers(9, 1)), normal(1)))


class Gated(L.Layer):
    """A residual network with a gate: dense layers, dropout, a gated linear unit, layer norm."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units, self.network = units, keras.Sequential([L.Dense(units, "elu"), L.Dense(units), L.Dropout(0.2)])
        self.linear, self.gate, self.project = L.Dense(units), L.Dense(units, "sigmoid"), L.Dense(units)
        self.norm = L.LayerNormalization()

    def call(self, x: Any) -> Any:
        y = self.network(x)
        kept = x if x.shape[-1] == self.units else self.project(x)
        return self.norm(kept + self.linear(y) * self.gate(y))


@program("structured_data", source=SOURCE.format("classification_with_grn_and_vsn"))
def classification_with_grn_and_vsn() -> KerasStep:
    """Gated residual networks, and a network that weighs the features."""
    inputs = _inputs()
    features = _embedded(inputs, 7)
    weights = L.Dense(len(features), "softmax")(Gated(7)(L.Concatenate()(features)))
    stacked = K.stack([Gated(7)(x) for x in features], axis=1)
    x = K.squeeze(K.matmul(K.expand_dims(weights, 1), stacked), 1)
    return _binary(inputs, L.Dropout(0.15)(x))


class Tree(keras.Model):
    """A decision tree whose routes are probabilities; it uses some of the features."""

    def __init__(self, depth: int, features: int, used: int, classes: int, *, seed: int) -> None:
        super().__init__()
        chosen = np.random.default_rng(seed).choice(features, used, replace=False)
        self.mask = np.eye(features, dtype=keras.config.floatx())[chosen].T
        self.depth, self.leaves = depth, 2**depth
        self.leaf = self.add_weight(shape=(self.leaves, classes), initializer="random_normal", name="leaf")
        self.decide = L.Dense(self.leaves, "sigmoid")

    def call(self, x: Any) -> Any:
        right = self.decide(K.matmul(x, self.mask))[:, :, None]
        both = K.concatenate([right, 1 - right], 2)
        reached = K.ones((K.shape(x)[0], 1, 1), dtype=self.compute_dtype)
        for level in range(self.depth):
            reached = K.tile(K.reshape(reached, (-1, 2**level, 1)), (1, 1, 2)) * both[:, 2**level : 2 ** (level + 1)]
        return K.matmul(K.reshape(reached, (-1, self.leaves)), K.softmax(self.leaf))


class Forest(keras.Model):
    """The mean of several trees."""

    def __init__(self, count: int, *options: int) -> None:
        super().__init__()
        self.trees = [Tree(*options, seed=seed) for seed in range(count)]

    def call(self, x: Any) -> Any:
        return sum(tree(x) for tree in self.trees) / len(self.trees)


@program("structured_data", source=SOURCE.format("deep_neural_decision_forests"))
def deep_neural_decision_forests() -> KerasStep:
    """Return a forest of differentiable decision trees."""
    inputs = _inputs()
    x = L.BatchNormalization()(L.Concatenate()(_embedded(inputs)))
    model = keras.Model(inputs, Forest(3, 3, x.shape[-1], x.shape[-1] // 2, 2)(x))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (_columns(), integers(2)))


@program("structured_data", source=SOURCE.format("wide_deep_cross_networks"))
def wide_deep_cross_networks() -> KerasStep:
    """Crosses of all features beside dense layers."""
    inputs = _inputs()
    x = start = L.Concatenate()(_embedded(inputs))
    for _ in range(2):
        x = start * L.Dense(x.shape[-1])(x) + x
    cross, deep = L.BatchNormalization()(x), start
    for units in (14, 14):
        deep = L.Dropout(0.1)(L.ReLU()(L.BatchNormalization()(L.Dense(units)(deep))))
    model = keras.Model(inputs, L.Dense(3, "softmax")(L.Concatenate()([cross, deep])))
    model.compile(keras.optimizers.Adam(0.001), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (_columns(), integers(3)))

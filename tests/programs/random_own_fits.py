"""Random trainings such as users write themselves: layers and train steps of their own, several outputs."""

from typing import Any

import keras
import numpy as np
import random_own_grids
import random_own_layers
from random_fits import CLASSES, COUNT
from random_networks import make_one

from mtf_hetero import tf

_K, _O = keras.layers, keras.ops
SHAPES = {"rows": (8,), "series": (6, 6), "images": (6, 7, 4)}


class RandomOwnFit:
    """A training of a seed; `make()` returns the compiled model, the same each time.

    Args:
      seed: of all choices.

    Attributes:
      kind: of the inputs, and what trains.
      data: the arguments of fit.
      options: its keywords.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        rng = np.random.default_rng([seed, 11])
        self._shape_of = str(rng.choice(list(SHAPES)))
        self._way = str(rng.choice(list(STEPS)))
        self.kind = f"{self._shape_of}, {self._way}"
        x, classes = rng.standard_normal((COUNT, *SHAPES[self._shape_of])), rng.integers(0, CLASSES, COUNT)
        self.options: dict[str, Any] = {"batch_size": int(rng.integers(4, 10)), "epochs": int(rng.integers(1, 4))}
        targets: Any = classes
        if self._way == "outputs":
            targets = {"classes": classes, "numbers": rng.standard_normal((COUNT, 3))}
            if rng.random() < 0.3:
                self.options["sample_weight"] = {name: rng.uniform(0.5, 2.0, COUNT) for name in targets}
        self.data: tuple[Any, ...] = (x, targets)
        if rng.random() < 0.3 and self._way != "mixed":
            self.options["validation_data"] = (x, targets)

    def make(self) -> Any:
        """Build and compile the model."""
        rng = np.random.default_rng([self._seed, 12])
        return STEPS[self._way](self._shape_of, rng)


def _body(x: Any, shape_of: str, rng: Any) -> Any:
    """Layers of Keras's and of one's own, and a vector in the end."""
    make = {
        "rows": random_own_layers.of_rows,
        "series": random_own_grids.of_series,
        "images": random_own_grids.of_images,
    }[shape_of]
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.5:
            units, activation = int(rng.integers(4, 9)), str(rng.choice(["tanh", "relu", "gelu", "linear"]))
            if shape_of == "images":
                x = _K.Conv2D(units, 3, padding="same", activation=activation)(x)
            else:
                x = _K.Dense(units, activation=activation)(x)
        x = make(rng)(x)
        if rng.random() < 0.3:
            x = make_one([_K.LayerNormalization, _K.BatchNormalization, lambda: _K.Dropout(0.2)], rng)(x)
    if shape_of == "rows":
        return x
    pools = {
        "series": [_K.GlobalAveragePooling1D, _K.GlobalMaxPooling1D, _K.Flatten],
        "images": [_K.GlobalAveragePooling2D, _K.GlobalMaxPooling2D, _K.Flatten],
    }[shape_of]
    return make_one(pools, rng)(x)


def _network(shape_of: str, rng: Any, activation: str | None = None) -> tuple[Any, Any]:
    inputs = keras.Input(SHAPES[shape_of])
    return inputs, _K.Dense(CLASSES, activation=activation)(_body(inputs, shape_of, rng))


def _optimizer(rng: Any) -> Any:
    optimizers = keras.optimizers
    makers = [
        lambda: optimizers.SGD(0.05, momentum=0.9),
        lambda: optimizers.Adam(0.01),
        lambda: optimizers.AdamW(0.01, clipnorm=0.3),
        lambda: optimizers.RMSprop(0.01, global_clipnorm=0.4),
        lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.05, 2, 0.9)),
    ]
    return make_one(makers, rng)


_CROSS = "sparse_categorical_crossentropy"


def _cross_entropy(y: Any, logits: Any) -> Any:
    return _O.mean(_O.sparse_categorical_crossentropy(y, logits, from_logits=True))


def _outputs(shape_of: str, rng: Any) -> Any:
    """Two outputs, each with a loss and metrics of its own."""
    inputs = keras.Input(SHAPES[shape_of])
    x = _body(inputs, shape_of, rng)
    classes = _K.Dense(CLASSES, activation="softmax", name="classes")(x)
    numbers = _K.Dense(3, name="numbers")(_O.concatenate([x, classes]) if rng.random() < 0.5 else x)
    model = keras.Model(inputs, {"classes": classes, "numbers": numbers})
    loss = {"classes": _CROSS, "numbers": [lambda y, z: _O.mean(_O.abs(y - z) ** 1.5, axis=-1), "mse"][rng.integers(2)]}
    weights = {"classes": 0.7, "numbers": 0.4} if rng.random() < 0.5 else None
    metrics = {"classes": ["accuracy"], "numbers": ["mae"]} if rng.random() < 0.5 else None
    model.compile(_optimizer(rng), loss, loss_weights=weights, metrics=metrics)
    return model


class Own(keras.Model):
    """A model with a step of its own: subclasses say which."""

    def prepare(self, rng: Any) -> None:
        """Make what the step needs."""

    def step(self, x: Any, y: Any) -> dict[str, Any]:
        """Apply gradients, and return logs."""
        raise NotImplementedError

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train on a batch."""
        return self.step(*keras.utils.unpack_x_y_sample_weight(data)[:2])

    def apply(self, loss: Any, tape: Any) -> None:
        """Apply the gradients of a loss."""
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))


class Penalized(Own):
    """Adds the norm of the gradient for the inputs, of which it takes the gradient."""

    def step(self, x: Any, y: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                first = _cross_entropy(y, self(x, training=True))
            slope = inner.gradient(first, x)
            penalty = _O.mean(_O.sum(_O.reshape(slope, (_O.shape(x)[0], -1)) ** 2, axis=-1))
            loss = first + penalty
        self.apply(loss, tape)
        return {"loss": loss, "penalty": penalty}


class Rivals(Own):
    """Two networks against each other, each with an optimizer."""

    def prepare(self, rng: Any) -> None:
        self.rival = keras.Sequential([keras.Input((CLASSES,)), _K.Dense(6, "relu"), _K.Dense(1)])
        self.other = keras.optimizers.Adam(0.02)
        self.other.build(self.rival.trainable_variables)
        self.times = int(rng.integers(1, 3))

    def step(self, x: Any, y: Any) -> dict[str, Any]:
        real = _O.one_hot(y, CLASSES, dtype=x.dtype)
        for _ in range(self.times):
            with tf.GradientTape() as tape:
                made = _O.softmax(self(x, training=True))
                worse = _O.mean(_O.softplus(-self.rival(real))) + _O.mean(_O.softplus(self.rival(made)))
            slopes = tape.gradient(worse, self.rival.trainable_variables)
            self.other.apply_gradients(zip(slopes, self.rival.trainable_variables))
        with tf.GradientTape() as tape:
            loss = _O.mean(_O.softplus(-self.rival(_O.softmax(self(x, training=True)))))
        own = [v for v in self.trainable_variables if all(v is not w for w in self.rival.trainable_variables)]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, own), own))
        return {"loss": loss, "rival": worse}


class Contrastive(Own):
    """Draws two views of an example together, and others apart."""

    def prepare(self, rng: Any) -> None:
        self.seeds = keras.random.SeedGenerator(int(rng.integers(100)))
        self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")

    def step(self, x: Any, y: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            views = [x + 0.1 * keras.random.normal(_O.shape(x), dtype=x.dtype, seed=self.seeds) for _ in range(2)]
            one, other = (_O.normalize(self(view, training=True), axis=-1) for view in views)
            near = _O.matmul(one, _O.transpose(other)) * _O.exp(self.temperature)
            which = _O.arange(_O.shape(x)[0])
            loss = _cross_entropy(which, near) + _cross_entropy(which, _O.transpose(near))
        self.apply(loss, tape)
        return {"loss": loss}


class Rare(Own):
    """Applies the sum of the gradients of several batches, now and then."""

    def prepare(self, rng: Any) -> None:
        self.every = int(rng.integers(2, 4))
        self.sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self.trainable_variables]
        self.count = tf.Variable(0, trainable=False)
        self.optimizer.build(self.trainable_variables)

    def step(self, x: Any, y: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = _cross_entropy(y, self(x, training=True))
        for total, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables)):
            if gradient is not None:
                total.assign_add(gradient)
        self.count.assign_add(1)

        def apply() -> Any:
            self.optimizer.apply_gradients(zip([s / self.every for s in self.sums], self.trainable_variables))
            for total in self.sums:
                total.assign(tf.zeros_like(total))
            return True

        applied = tf.cond(tf.equal(self.count % self.every, 0), apply, lambda: False)
        return {"loss": loss, "applied": applied}


class Distilled(Own):
    """Learns from a network that stays."""

    def prepare(self, rng: Any) -> None:
        shape = self.inputs[0].shape[1:]
        self.teacher = keras.Sequential([keras.Input(shape), _K.Flatten(), _K.Dense(7, "tanh"), _K.Dense(CLASSES)])
        self.teacher.trainable = False

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *others: Any, **options: Any) -> Any:
        soft = _O.softmax(self.teacher(x, training=False) / 2)
        return _cross_entropy(y, y_pred) - _O.mean(_O.sum(soft * _O.log_softmax(y_pred / 2), axis=-1))

    def train_step(self, data: Any) -> dict[str, Any]:
        return keras.Model.train_step(self, data)


class Mixed(Own):
    """Mixes each example with another of the batch."""

    def prepare(self, rng: Any) -> None:
        self.seeds = keras.random.SeedGenerator(int(rng.integers(100)))

    def step(self, x: Any, y: Any) -> dict[str, Any]:
        y = _O.one_hot(y, CLASSES, dtype=x.dtype)
        share = keras.random.uniform((_O.shape(x)[0], 1), dtype=x.dtype, seed=self.seeds)
        wide = _O.reshape(share, (-1, *[1] * (len(x.shape) - 1)))
        x, y = wide * x + (1 - wide) * _O.flip(x, axis=0), share * y + (1 - share) * _O.flip(y, axis=0)
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=logits)
        self.apply(loss, tape)
        return self.compute_metrics(x, y, logits)


def _of(kind: type[Own]) -> Any:
    def make(shape_of: str, rng: Any) -> Any:
        model = kind(*_network(shape_of, rng))
        if kind is Mixed:
            loss, metrics = keras.losses.CategoricalCrossentropy(from_logits=True), ["accuracy"]
        else:
            loss, metrics = keras.losses.SparseCategoricalCrossentropy(from_logits=True), None
        model.compile(_optimizer(rng), loss, metrics=metrics)
        model.prepare(rng)
        return model

    return make


def _compiled(shape_of: str, rng: Any) -> Any:
    """Trained by Keras's own step."""
    model = keras.Model(*_network(shape_of, rng, activation="softmax"))
    model.compile(_optimizer(rng), _CROSS, metrics=["accuracy"])
    return model


STEPS = {
    "outputs": _outputs,
    "compiled": _compiled,
    "penalized": _of(Penalized),
    "rivals": _of(Rivals),
    "contrastive": _of(Contrastive),
    "rare": _of(Rare),
    "distilled": _of(Distilled),
    "mixed": _of(Mixed),
}

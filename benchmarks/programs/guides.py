"""Programs of keras.io's guides."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.pieces import integers, normal, padded, uniform
from benchmarks.programs.registry import KerasStep, Loop, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops
SOURCE = "keras.io guides/{}.py"


def _dense(*units: int, width: int = 12) -> list[Any]:
    return [keras.Input((width,)), *(L.Dense(n, "relu") for n in units)]


class OwnStep(keras.Model):
    """Its training step is the usual one, written out, with sample weights and metrics of its own."""

    def train_step(self, data: Any) -> Any:
        x, y, weights = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=found, sample_weight=weights)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, found, sample_weight=weights)
        return {metric.name: metric.result() for metric in self.metrics}


@program("guides", source=SOURCE.format("custom_train_step_in_tensorflow"))
def custom_train_step_in_tensorflow() -> KerasStep:
    """Return a training step written out, with sample weights."""
    inputs, *layers = _dense(14)
    x = inputs
    for layer in layers:
        x = layer(x)
    model = OwnStep(inputs, L.Dense(1)(x))
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return KerasStep(model, (normal(12), normal(1), uniform(1)))


class OwnLoss(keras.Model):
    """Computes its loss and its metrics by itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.error, self.compute = keras.metrics.MeanAbsoluteError(name="mae"), keras.losses.MeanSquaredError()

    @property
    def metrics(self) -> Any:
        return [self.loss_tracker, self.error]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute(y, found)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        self.loss_tracker.update_state(loss)
        self.error.update_state(y, found)
        return {"loss": self.loss_tracker.result(), "mae": self.error.result()}


@program("guides", source=SOURCE.format("customizing_what_happens_in_fit"))
def customizing_what_happens_in_fit() -> KerasStep:
    """Return a model without a compiled loss."""
    inputs = keras.Input((12,))
    model = OwnLoss(inputs, L.Dense(1)(L.Dense(14, "relu")(inputs)))
    model.compile(optimizer="adam")
    return KerasStep(model, (normal(12), normal(1)))


class Activity(L.Layer):
    """Adds the sum of its inputs to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(1e-2 * K.sum(x))
        return x


@program("guides", source=SOURCE.format("writing_a_custom_training_loop_in_tensorflow"))
def writing_a_custom_training_loop_in_tensorflow() -> Loop:
    """Return a loop over batches with a metric, an optimizer and losses that layers add."""
    model = keras.Sequential([*_dense(14), Activity(), L.Dense(14, "relu"), L.Dense(5)])
    optimizer = keras.optimizers.SGD(0.01)
    compute: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = keras.metrics.SparseCategoricalAccuracy(dtype=keras.config.floatx())
    optimizer.build(model.trainable_variables)

    @tf.compat.v2.function
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = compute(y, logits) + sum(model.losses)
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        metric.update_state(y, logits)
        return loss, metric.result()

    return Loop(train, (normal(12), integers(5)))


class Linear(L.Layer):
    """A dense layer that makes its weights when it is first called, with a regularizer."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, shape: Any) -> None:
        options = {"initializer": "random_normal", "trainable": True}
        self.w = self.add_weight(shape=(shape[-1], self.units), regularizer=keras.regularizers.L2(1e-3), **options)
        self.b = self.add_weight(shape=(self.units,), **options)

    def call(self, x: Any) -> Any:
        return K.matmul(x, self.w) + self.b


class Summing(L.Layer):
    """Keeps the sum of all of its inputs in a variable that is not trained."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.total = self.add_weight(shape=(width,), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.total.assign_add(K.sum(x, axis=0))
        return x + 0.01 * self.total


class Subclassed(keras.Model):
    """Layers within layers, a state, and a divergence that is added to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mean, self.spread, self.last = Linear(14), Linear(7), Linear(7), Linear(12)
        self.state, self.seed = Summing(12), keras.random.SeedGenerator(13)

    def call(self, x: Any) -> Any:
        y = K.relu(self.first(self.state(x)))
        mean, spread = self.mean(y), self.spread(y)
        code = mean + K.exp(0.5 * spread) * keras.random.normal(K.shape(mean), dtype=mean.dtype, seed=self.seed)
        self.add_loss(-0.5 * K.mean(spread - K.square(mean) - K.exp(spread) + 1))
        return K.sigmoid(self.last(code))


@program("guides", source=SOURCE.format("making_new_layers_and_models_via_subclassing"))
def making_new_layers_and_models_via_subclassing() -> KerasStep:
    """Layers and a model of one's own."""
    model = Subclassed()
    model.compile(keras.optimizers.Adam(0.001), keras.losses.MeanSquaredError())
    return KerasStep(model, (uniform(12), uniform(12)))


class Halves(L.Layer):
    """Cuts a sequence in two, and its mask with it."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True

    def call(self, x: Any) -> Any:
        return K.split(x, 2, axis=1)

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return None if mask is None else K.split(mask, 2, axis=1)


class TemporalSoftmax(L.Layer):
    """A softmax over the words that the mask keeps."""

    def call(self, x: Any, mask: Any = None) -> Any:
        kept = K.expand_dims(K.cast(mask, x.dtype), -1)
        exponents = K.exp(x) * kept
        return exponents / K.sum(exponents * kept, axis=1, keepdims=True)


@program("guides", source=SOURCE.format("understanding_masking_and_padding"))
def understanding_masking_and_padding() -> KerasStep:
    """Masks that embeddings make, layers pass on, and others use."""
    inputs = keras.Input((10,), dtype="int32")
    first, second = Halves()(L.Embedding(30, 8, mask_zero=True)(inputs))
    one = L.LSTM(7)(L.Masking()(first))
    two = L.GlobalAveragePooling1D()(TemporalSoftmax()(L.Dense(7)(L.GRU(7, return_sequences=True)(first))))
    x = L.Concatenate()([one, two, L.Flatten()(second)])
    model = keras.Model(inputs, L.Dense(1, "sigmoid")(x))
    model.compile("adam", "binary_crossentropy")
    ids = padded(30, 10)
    ids[:, :2] = 1
    return KerasStep(model, (ids, integers(2, 1)))


class Cell(L.Layer):
    """A recurrent cell of two states, of which the second follows the first slowly."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units, self.state_size, self.output_size = units, [units, units], units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units))
        self.recurrent = self.add_weight(shape=(self.units, self.units), initializer="orthogonal")

    def call(self, x: Any, states: Any) -> Any:
        fast, slow = states
        fast = K.tanh(K.matmul(x, self.kernel) + K.matmul(slow, self.recurrent))
        slow = 0.7 * slow + 0.3 * fast
        return fast + slow, [fast, slow]


@program("guides", source=SOURCE.format("working_with_rnns"))
def working_with_rnns() -> KerasStep:
    """Stacked and bidirectional layers, states that are handed on, and a cell of one's own."""
    text, series = keras.Input((6,), dtype="int32"), keras.Input((5, 8))
    x, h, c = L.LSTM(7, return_sequences=True, return_state=True)(L.Embedding(30, 8)(text))
    x = L.LSTM(7, return_sequences=True)(x, initial_state=[h, c])
    cells = keras.layers.StackedRNNCells([L.SimpleRNNCell(7), L.GRUCell(7)])
    x = L.Bidirectional(L.LSTM(7))(L.RNN(cells, return_sequences=True)(x))
    x = L.Concatenate()([x, L.RNN(Cell(7))(series)])
    model = keras.Model([text, series], L.Dense(5)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, metrics=["accuracy"])
    return KerasStep(model, ((integers(30, 6), normal(5, 8)), integers(5)))


@program("guides", source=SOURCE.format("working_with_rnns"))
def stateful_lstm() -> KerasStep:
    """Return an LSTM that keeps its states from batch to batch."""
    inputs = keras.Input(batch_shape=(14, 6, 8))
    x = L.LSTM(7, return_sequences=True, stateful=True)(inputs)
    model = keras.Model(inputs, L.Dense(1)(L.LSTM(7, stateful=True, dropout=0.2)(x)))
    model.compile("rmsprop", "mse")
    return KerasStep(model, (normal(6, 8), normal(1)))


@program(
    "guides",
    source=SOURCE.format("transfer_learning"),
    dtype="float32",
    tolerance=1e-4,
    reason="Keras's layer RandomRotation fails in float64",
)
def transfer_learning() -> KerasStep:
    """Return a frozen base with batch norms, augmentation and rescaling before it, a new head."""
    applications: Any = keras.applications
    base = applications.MobileNetV2((32, 32, 3), alpha=0.35, include_top=False, weights=None)
    base.trainable = False
    inputs = keras.Input((32, 32, 3))
    x = L.RandomRotation(0.1, seed=2)(L.RandomFlip("horizontal", seed=1)(inputs))
    x = L.Dropout(0.2)(L.GlobalAveragePooling2D()(base(L.Rescaling(2.0, -1.0)(x), training=False)))
    model = keras.Model(inputs, L.Dense(1)(x))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=[keras.metrics.BinaryAccuracy()])
    return KerasStep(model, (uniform(32, 32, 3), integers(2, 1)))


@program("guides", source="keras.io guides/preprocessing_layers.py")
def preprocessing_layers() -> KerasStep:
    """Return a model of texts, words, hashed pairs and numbers, encoded inside of the model."""
    text, color = (keras.Input((1,), dtype="string", name=name) for name in ("text", "color"))
    hour, size = keras.Input((1,), dtype="int32", name="hour"), keras.Input((5,), name="size")
    vectorize: Any = L.TextVectorization(vocabulary=["the", "brain", "is", "sky"], output_sequence_length=6)
    texts = L.Bidirectional(L.LSTM(7))(L.Embedding(6, 8)(vectorize(text)))
    colors = L.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")(color)
    crossed = L.HashedCrossing(9, output_mode="one_hot")((color, hour))
    normalize: Any = L.Normalization()
    normalize.adapt(normal(5))
    x = L.Concatenate()([texts, colors, crossed, normalize(size)])
    model = keras.Model([text, color, hour, size], L.Dense(1)(x))
    model.compile("rmsprop", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    words = np.array(["the brain is wider than the sky", "The Brain", "", "deeper than the sea"])
    columns = tf.constant(words[integers(4, 1)]), tf.constant(np.array(["red", "blue"])[integers(2, 1)])
    return KerasStep(model, ((*columns, integers(24, 1), normal(5)), integers(2, 1)))


@program("guides", source=SOURCE.format("writing_your_own_callbacks"))
def writing_your_own_callbacks() -> KerasStep:
    """Return the step of the model whose callbacks read logs and change the learning rate."""
    model = keras.Sequential([keras.Input((12,)), L.Dense(1)])
    model.compile(keras.optimizers.RMSprop(0.1), "mean_squared_error", metrics=["mean_absolute_error"])
    return KerasStep(model, (normal(12), normal(1)))


@program("guides", source=SOURCE.format("training_with_built_in_methods"))
def training_with_built_in_methods() -> KerasStep:
    """Two inputs, two outputs, and a loss, a weight and metrics for each."""
    image, series = keras.Input((8, 8, 3), name="image"), keras.Input((10, 5), name="series")
    x = L.Concatenate()([L.GlobalMaxPooling2D()(L.Conv2D(3, 3)(image)), L.GlobalMaxPooling1D()(L.Conv1D(3, 3)(series))])
    model = keras.Model([image, series], [L.Dense(1, name="score")(x), L.Dense(5, name="label")(x)])
    losses = {"score": "mse", "label": keras.losses.CategoricalCrossentropy(from_logits=True)}
    metrics = {"score": ["mean_absolute_percentage_error", "mae"], "label": [keras.metrics.CategoricalAccuracy()]}
    rates: Any = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.96, staircase=True)
    options = {"loss_weights": {"score": 2.0, "label": 1.0}, "metrics": metrics}
    model.compile(keras.optimizers.RMSprop(rates, momentum=0.9, centered=True), losses, **options)
    labels = np.eye(5, dtype=keras.config.floatx())[integers(5)]
    return KerasStep(model, ((normal(8, 8, 3), normal(10, 5)), (normal(1), labels)))


@program("guides", source="keras.io guides/functional_api.py")
def functional_api() -> KerasStep:
    """Return a residual network with shared layers and nested models."""
    inputs = keras.Input((16, 16, 3))
    x = L.MaxPooling2D(3)(L.Conv2D(14, 3, activation="relu")(inputs))
    for _ in range(2):
        y = L.Conv2D(14, 3, padding="same", activation="relu")(x)
        x = L.add([L.Conv2D(14, 3, padding="same", activation="relu")(y), x])
    tower = keras.Model(inputs, L.Dense(7, "relu")(L.GlobalAveragePooling2D()(L.Conv2D(7, 3, activation="relu")(x))))
    both = [keras.Input((16, 16, 3)), keras.Input((16, 16, 3))]
    x = L.average([tower(both[0]), tower(both[1])])
    model = keras.Model(both, L.Dense(5)(L.Dropout(0.5)(x)))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.RMSprop(1e-3), loss, metrics=["acc"])
    labels = np.eye(5, dtype=keras.config.floatx())[integers(5)]
    return KerasStep(model, ((normal(16, 16, 3), normal(16, 16, 3)[::-1].copy()), labels))


@program("guides", source=SOURCE.format("int8_quantization_in_keras"))
def int8_quantization_in_keras() -> Loop:
    """Return a model whose weights are integers of 8 bits, with low-rank changes that are trained."""
    model = keras.Sequential([*_dense(28, 28), L.Dense(5)])
    for layer in model.layers:
        layer.quantize("int8")
        layer.enable_lora(4)
    optimizer, loss_of = keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    @tf.compat.v2.function
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        return loss

    return Loop(train, (normal(12), integers(5)))

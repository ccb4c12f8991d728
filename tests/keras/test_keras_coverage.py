"""Static coverage of Keras: every operation of each layer, loss, metric, optimizer and constraint is split.

Each is traced within a training step, and no session runs. An operation must have a signature, and the batch must split
its work on examples. Then the results follow from the tests of signatures, `importer/test_table` and others.
"""

import keras
import numpy as np
import tiers
from fit_oracle import make_model
from keras import losses, metrics, optimizers

from mtf_hetero import tf
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer import table
from mtf_hetero.importer.tracing import Traced

L, K = keras.layers, keras.ops
COUNT = 29  # examples: a prime that divides no other size, so that sizes show which tensors have examples
RNG = np.random.default_rng(0)
CLASSES = RNG.integers(0, 5, COUNT)
WEIGHTS = RNG.uniform(0.5, 2.0, COUNT)


def list_replicated(model, *data):
    """Return the operations of a training step without a signature, and those that replicate work on examples."""
    step = tf.compat.v2.function(model.train_step, autograph=False)
    traced = Traced(step, settled=lambda: [v.value for v in (*model.metrics_variables, *model.optimizer.variables)])
    program = traced.program((data,))
    with tf.Graph().as_default():
        work = step_lib.build(program).work
    return [f"{op.type}: {op.outputs[0].name}" for op, dims in work.items() if not is_split(op, dims)]


def is_split(op, dims):
    """Return whether an operation has a signature, and the batch splits its work on examples."""
    if op.blocks or op.type.startswith("StatelessRandom"):  # what is within is listed; each device draws all numbers
        return True
    sizes = {n for value in (*op.inputs, *op.outputs) if value.array is None for n in value.shape}
    has_examples = any(n and n % COUNT == 0 for n in sizes)
    has_rule = table.is_elementwise(op) or table.find_signature(op) is not None
    return has_rule and (not has_examples or any(dim.size % COUNT == 0 for dim in dims))


class MeanSquare(keras.Model):
    """Trains the squares of all its outputs to be small."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return sum([K.mean(K.square(output)) for output in keras.tree.flatten(y_pred)])


def list_image_layers():
    normalization = {"mean": np.arange(6.0), "variance": 0.5 + np.arange(6.0)}
    return [
        L.Conv2D(7, 3, padding="same", activation="relu"),
        L.Conv2D(7, (3, 2), strides=2),
        L.Conv2D(7, 3, dilation_rate=2, padding="same", use_bias=False),
        L.Conv2D(9, 3, groups=3, strides=2, padding="same"),
        L.DepthwiseConv2D(3, padding="same"),
        L.DepthwiseConv2D(3, depth_multiplier=2, strides=2),
        L.DepthwiseConv2D(3, dilation_rate=2, activation="silu"),
        L.SeparableConv2D(7, 3, padding="same", depth_multiplier=2),
        L.Conv2DTranspose(7, 3, strides=2, padding="same"),
        L.Conv2DTranspose(7, (4, 3), strides=2),
        L.Conv2DTranspose(7, 2, strides=3),
        L.MaxPooling2D(3, strides=2, padding="same"),
        L.AveragePooling2D((3, 2), strides=1, padding="same"),
        L.AveragePooling2D(2),
        L.GlobalAveragePooling2D(),
        L.GlobalAveragePooling2D(keepdims=True),
        L.GlobalMaxPooling2D(keepdims=True),
        L.ZeroPadding2D(((1, 2), (0, 3))),
        L.Cropping2D(((1, 2), (0, 3))),
        L.UpSampling2D((2, 3)),
        L.Flatten(),
        L.Reshape((-1, 6)),
        L.Permute((2, 3, 1)),
        L.EinsumDense("...x,xy->...y", 7, bias_axes="y", activation="relu"),
        L.BatchNormalization(momentum=0.8),
        L.LayerNormalization(axis=(2, 3), center=False),
        L.GroupNormalization(groups=3),
        L.UnitNormalization(),
        L.SpectralNormalization(L.Conv2D(7, 3)),
        L.Rescaling(1 / 127.5, offset=-1),
        L.Rescaling([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], offset=0.5),
        L.Normalization(**normalization),
        L.Normalization(**normalization, invert=True),
        L.PReLU(shared_axes=(1, 2)),
        L.Softmax(axis=1),
    ]


def list_series_layers():
    return [
        L.Conv1D(7, 3, strides=2, padding="same", activation="tanh"),
        L.Conv1D(7, 3, dilation_rate=2, padding="causal"),
        L.Conv1D(6, 3, groups=2),
        L.DepthwiseConv1D(3, strides=2, padding="same"),
        L.SeparableConv1D(7, 3),
        L.Conv1DTranspose(7, 3, strides=2),
        L.MaxPooling1D(3),
        L.AveragePooling1D(3, strides=2, padding="same"),
        L.GlobalAveragePooling1D(),
        L.ZeroPadding1D((1, 2)),
        L.UpSampling1D(3),
        L.Reshape((11, 2, 3)),
        L.Dense(7, activation="softmax"),
        L.EinsumDense("abc,cde->abde", (11, 4, 7), bias_axes="de"),
        L.TimeDistributed(L.Dense(7)),
        L.BatchNormalization(scale=False, center=False),
        L.BatchNormalization(axis=1, epsilon=0.1),
        L.LayerNormalization(epsilon=1e-5),
        L.GroupNormalization(groups=-1),
        L.RMSNormalization(),
        L.PReLU(),
    ]


def list_volume_layers():
    return [
        L.Conv3D(7, 3, strides=(1, 2, 1), padding="same"),
        L.Conv3DTranspose(5, 3, strides=2),
        L.GlobalMaxPooling3D(),
        L.Cropping3D(1),
        L.UpSampling3D(2),
    ]


ACTIVATIONS = (
    *("celu", "elu", "exponential", "gelu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh"),
    *("leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu"),
    *("soft_shrink", "softmax", "softplus", "softsign", "swish", "tanh", "tanh_shrink"),
)


def list_row_layers():
    return [
        L.RepeatVector(5),
        L.Dense(7, activation=L.LeakyReLU(0.2)),
        L.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.2),
        L.ELU(0.7),
        *map(L.Activation, ACTIVATIONS),
    ]


def list_recurrent_layers():
    return [
        L.LSTM(7),
        L.GRU(7, dropout=0.2),
        L.GRU(7, reset_after=False, go_backwards=True),
        L.Bidirectional(L.LSTM(5, return_sequences=True), merge_mode="mul"),
        L.RNN([L.LSTMCell(4), L.SimpleRNNCell(3)]),
        lambda x: L.LSTM(3)(L.Masking()(x)),
    ]


def list_attentions():
    return [
        lambda x: L.MultiHeadAttention(4, 5, value_dim=3, output_shape=9)(x, x[:, :5]),
        lambda x: L.MultiHeadAttention(3, 4, use_bias=False, dropout=0.1)(x, x, use_causal_mask=True),
        lambda x: L.GroupQueryAttention(3, 4, 2)(x, x),
        lambda x: L.Attention(use_scale=True)([x, x[:, :5]]),
        lambda x: L.AdditiveAttention()([x, x[:, :5]]),
    ]


def list_merges():
    kinds = L.Add, L.Multiply, L.Average, L.Maximum, L.Minimum, L.Subtract, L.Concatenate, L.Dot(2)
    return [
        *(lambda x, kind=kind: (kind() if isinstance(kind, type) else kind)([x, 2.0 * x]) for kind in kinds),
        lambda x: L.Multiply()([x, x[:, :1]]),
        lambda x: L.Concatenate(axis=1)([x, x[:, :2]]),
        lambda x: 1.0 - x**2 / 3.0,
        lambda x: K.mean(x, axis=(1, 2), keepdims=True) + K.max(x, axis=1, keepdims=True),
        lambda x: K.reshape(K.transpose(x, (0, 2, 1)), (-1, 2, 33)),
        lambda x: x[:, 1:4, ..., -1],
        lambda x: K.logsumexp(K.where(x > 0.0, x, K.sin(x)), axis=-1),
        lambda x: K.matmul(x, K.transpose(x, (0, 2, 1))),
        lambda x: K.sqrt(K.abs(x) + 1.0) + np.arange(6, dtype="float32"),
    ]


def list_random_layers():
    """Layers that draw numbers, and those of preprocessing that change pictures."""
    names = {"RandomBrightness": 0.2, "RandomColorDegeneration": 0.2, "RandomContrast": 0.2, "RandomGrayscale": 0.5}
    names |= {"RandomFlip": "horizontal", "RandomInvert": 0.5, "RandomPosterization": 4, "RandomSaturation": 0.2}
    names |= {"RandomSharpness": 0.2, "RandomZoom": 0.2, "Dropout": 0.3, "GaussianNoise": 0.2, "GaussianDropout": 0.2}
    names |= {"AlphaDropout": 0.2, "SpatialDropout2D": 0.3}
    return [
        *(getattr(L, name)(value) for name, value in names.items()),
        L.CenterCrop(5, 5),
        L.Resizing(5, 7),
        L.Pipeline([L.Rescaling(1 / 255), L.CenterCrop(5, 5)]),
        L.AutoContrast(),
        L.Solarization(),
        L.UpSampling2D(2, interpolation="bilinear"),
    ]


def list_layers_of_ids():
    return [
        L.Embedding(11, 5),
        lambda x: L.LSTM(5)(L.Embedding(11, 8, mask_zero=True)(x)),
        lambda x: L.Embedding(7, 3)(L.Hashing(7)(x)),
        lambda x: L.Embedding(7, 3)(L.IntegerLookup(vocabulary=[1, 2, 3, 4])(x)),
        L.IntegerLookup(vocabulary=[1, 2], output_mode="count"),
        lambda x: L.HashedCrossing(8, output_mode="one_hot")((x[:, :1], x[:, 1:2])),
        lambda x: L.Embedding(7, 3)(L.Discretization([2.0, 5.0])(x)),
        L.CategoryEncoding(11, "multi_hot"),
    ]


LAYERS = {  # shape of an example, and the layers
    "images": ((9, 7, 6), list_image_layers),
    "series": ((11, 6), list_series_layers),
    "volumes": ((5, 7, 6, 4), list_volume_layers),
    "rows": ((13,), list_row_layers),
    "recurrent": ((4, 3), list_recurrent_layers),
    "attention": ((7, 6), list_attentions),
    "merging": ((11, 6), list_merges),
    "random": ((8, 8, 3), list_random_layers),
    "ids": ((6,), list_layers_of_ids),
}


def make_layers(name):
    """Return a model of layers that all read its input."""
    shape, make = LAYERS[name]
    inputs = keras.Input(shape, dtype="int32" if name == "ids" else None)
    x = inputs if name == "ids" else L.PReLU()(inputs)  # a weight before the layers, so that all have a gradient
    model = MeanSquare(inputs, [layer(x) for layer in make()])
    model.compile("sgd")
    return model


@tiers.parametrize("name", LAYERS, first=["images", "series", "rows", "attention", "merging", "ids"])
def test_layers(name):
    shape = (COUNT, *LAYERS[name][0])
    x = RNG.integers(0, 7, shape).astype("int32") if name == "ids" else RNG.standard_normal(shape).astype("float32")
    assert list_replicated(make_model(lambda: make_layers(name)), x) == []


def of_the_whole_batch(y_true, y_pred):
    """A user's loss: a value of each example that depends on all examples."""
    errors = K.mean(K.square(y_true - y_pred), axis=-1)
    return K.divide(errors, K.add(K.max(errors), 1))


ONE_HOT, YES = np.eye(5, dtype="float32")[CLASSES], (CLASSES > 2).astype("float32")[:, None]
NUMBERS = RNG.standard_normal((COUNT, 5)).astype("float32")
of_logits = losses.SparseCategoricalCrossentropy(from_logits=True)
without_class = losses.SparseCategoricalCrossentropy(ignore_class=2, reduction="mean_with_sample_weight")
LOSSES = [  # an activation, its targets, and losses of them
    ("softmax", CLASSES, ["sparse_categorical_crossentropy", without_class]),
    (None, CLASSES[:, None], [of_logits]),
    ("softmax", ONE_HOT, [losses.CategoricalCrossentropy(label_smoothing=0.1), losses.CategoricalFocalCrossentropy()]),
    ("softmax", ONE_HOT, ["categorical_hinge", "kl_divergence", losses.Dice(), losses.Tversky(alpha=0.3)]),
    ("sigmoid", YES, ["hinge", "squared_hinge", "poisson", losses.BinaryCrossentropy(label_smoothing=0.2)]),
    ("sigmoid", YES, [losses.BinaryFocalCrossentropy(apply_class_balancing=True)]),
    (None, NUMBERS, [losses.MeanSquaredError(reduction="sum"), losses.Huber(0.5, reduction="mean_with_sample_weight")]),
    (None, NUMBERS, ["mae", "mape", "msle", "log_cosh", "cosine_similarity", of_the_whole_batch]),
]


def list_metrics():
    """Return metrics for the first loss of each row of LOSSES."""
    return [
        ["accuracy", metrics.SparseCategoricalCrossentropy()],
        [metrics.SparseTopKCategoricalAccuracy(2)],
        [metrics.F1Score(average="macro"), metrics.AUC(20, multi_label=True, num_labels=5)],
        [metrics.OneHotMeanIoU(5), metrics.Precision(class_id=1)],
        ["accuracy", metrics.AUC(30, curve="PR"), metrics.Recall([0.3, 0.6]), metrics.TruePositives()],
        [metrics.PrecisionAtRecall(0.5, num_thresholds=20)],
        [metrics.R2Score(), metrics.RootMeanSquaredError(), metrics.CosineSimilarity()],
        [metrics.PearsonCorrelation()],
    ]


def test_losses_and_metrics():
    """Each loss has an output of its own, and each example has a weight in each loss."""
    targets = {}

    def make():
        inputs = keras.Input((4,))
        outputs, of_outputs, shown = {}, {}, {}
        for (activation, y, kinds), of_first in zip(LOSSES, list_metrics(), strict=True):
            for number, loss in enumerate(kinds):
                name = f"output_{len(outputs)}"
                outputs[name] = L.Dense(1 if y is YES else 5, activation=activation)(inputs)
                targets[name], of_outputs[name], shown[name] = y, loss, [] if number else of_first
        model = keras.Model(inputs, outputs)
        model.compile("sgd", of_outputs, metrics=shown)
        return model

    model, x = make_model(make), RNG.standard_normal((COUNT, 4)).astype("float32")
    found = list_replicated(model, x, targets, dict.fromkeys(targets, WEIGHTS))
    # hinges look at all labels, and AUC counts by threshold
    assert {name.partition(":")[0] for name in found} == {"All", "StridedSlice", "UnsortedSegmentSum"}


class AllSchedules(optimizers.schedules.LearningRateSchedule):
    """The sum of learning rates of each kind."""

    def __call__(self, step):
        kinds = optimizers.schedules
        schedules = [
            kinds.ExponentialDecay(0.5, 2, 0.5, staircase=True),
            kinds.CosineDecay(0.01, 5, warmup_target=0.02, warmup_steps=2),
            kinds.CosineDecayRestarts(0.01, 2),
            kinds.PiecewiseConstantDecay([2, 4], [0.02, 0.01, 0.005]),
            kinds.PolynomialDecay(0.02, 4, cycle=True),
            kinds.InverseTimeDecay(0.02, 1, 0.5),
        ]
        return sum([schedule(step) for schedule in schedules])


OPTIMIZERS = {
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.3),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Lion": lambda: optimizers.Lion(0.001),
    "Muon": lambda: optimizers.Muon(0.01),
    "RMSprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adagrad": lambda: optimizers.Adagrad(0.05),
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Ftrl": lambda: optimizers.Ftrl(l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.01),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01)),
    "averages": lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.05),
    "global clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.1),
    "clipvalue": lambda: optimizers.SGD(0.5, clipvalue=0.02),
    "schedules": lambda: optimizers.SGD(AllSchedules()),
}
REPLICATED = {"LossScaleOptimizer": ["TensorScatterUpdate: TensorScatterUpdate"]}  # rows, each by its last example


@tiers.parametrize("name", OPTIMIZERS, first=["Adam", "RMSprop", "averages"])
def test_optimizers(name):
    """The gradient of the embedding has rows."""

    def make():
        inputs = keras.Input((6,), dtype="int32")
        x = L.Dense(4)(L.Flatten()(L.Embedding(11, 5)(inputs)))
        model = MeanSquare(inputs, x)
        model.compile(OPTIMIZERS[name]())
        model.optimizer.build(model.trainable_variables)
        return model

    ids = RNG.integers(0, 11, (COUNT, 6)).astype("int32")
    assert list_replicated(make_model(make), ids) == REPLICATED.get(name, [])


class Odd(keras.constraints.Constraint):
    """A constraint that no slice of a weight can compute alone."""

    def __call__(self, w):
        return w * K.minimum(1.0, 0.3 / K.max(K.abs(w)))


def test_constraints_and_regularizers():
    norms = keras.constraints.MaxNorm(0.4), keras.constraints.UnitNorm(axis=-1)
    constraints = [keras.constraints.NonNeg(), *norms, keras.constraints.MinMaxNorm(0.3, 0.5, 0.8, [0, 1, 2]), Odd()]
    regularizers = ["l1", "l2", keras.regularizers.L1L2(0.01, 0.02), keras.regularizers.OrthogonalRegularizer()]

    def make():
        x = inputs = keras.Input((6, 6, 3))
        for constraint in constraints:
            x = L.Conv2D(7, 3, padding="same", kernel_constraint=constraint)(x)
            x = L.DepthwiseConv2D(3, padding="same", depthwise_constraint=constraint)(x)
        x = L.Flatten()(x)
        for regularizer in regularizers:
            x = L.Dense(5, kernel_regularizer=regularizer, activity_regularizer=regularizer)(x)
        model = keras.Model(inputs, L.ActivityRegularization(l2=0.1)(x))
        model.compile("sgd", "mse")
        return model

    images = RNG.standard_normal((COUNT, 6, 6, 3)).astype("float32")
    assert list_replicated(make_model(make), images, NUMBERS) == []

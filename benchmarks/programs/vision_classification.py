"""Classifiers of images, of convolutions."""

from typing import Any

import numpy as np

from benchmarks.programs.registry import BATCH, KerasStep, Made, keras, program
from mtf_hetero import tf

L, K = keras.layers, keras.ops
CLASSES = 5
SINGLE = {"dtype": "float32"}


def images(size: int = 16, channels: int = 3) -> np.ndarray:
    """Return a batch of images."""
    return np.random.default_rng(0).standard_normal((BATCH, size, size, channels))


def labels(classes: int = CLASSES) -> np.ndarray:
    """Return the classes of a batch."""
    return np.random.default_rng(1).integers(0, classes, BATCH).astype("int32")


def one_hot() -> np.ndarray:
    """Return the classes of a batch as rows of zeros and a one."""
    return np.eye(CLASSES)[labels()]


def classifier(model: Any, optimizer: Any = "adam", size: int = 16, **options: Any) -> KerasStep:
    """Return the step of a model that gives logits for images."""
    loss = options.pop("loss", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = options.pop("data", None) or (images(size), labels())
    model.compile(optimizer, loss, metrics=options.pop("metrics", ["accuracy"]), **options)
    return KerasStep(model, data)


@program("vision", source="keras.io examples/vision/mnist_convnet.py")
def mnist_convnet() -> Made:
    """Two convolutions with pooling, and dropout before the classes."""
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            L.Conv2D(14, 3, activation="relu"),
            L.MaxPooling2D(2),
            L.Conv2D(7, 3, activation="relu"),
            L.MaxPooling2D(2),
            L.Flatten(),
            L.Dropout(0.5),
            L.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    return KerasStep(model, (images(12, 1), one_hot()))


@program("vision", source="keras.io examples/vision/image_classification_from_scratch.py")
def image_classification_from_scratch() -> Made:
    """Return a small Xception behind random flips, with separable convolutions and residual projections."""
    inputs = keras.Input((16, 16, 3))
    x = L.Rescaling(1.0 / 255)(L.RandomFlip("horizontal")(inputs))
    x = L.Activation("relu")(L.BatchNormalization()(L.Conv2D(7, 3, strides=2, padding="same")(x)))
    before = x
    for width in (12, 14):
        for _ in range(2):
            x = L.BatchNormalization()(L.SeparableConv2D(width, 3, padding="same")(L.Activation("relu")(x)))
        x = L.MaxPooling2D(3, strides=2, padding="same")(x)
        x = before = L.add([x, L.Conv2D(width, 1, strides=2, padding="same")(before)])
    x = L.Activation("relu")(L.BatchNormalization()(L.SeparableConv2D(21, 3, padding="same")(x)))
    x = L.Dropout(0.25)(L.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, L.Dense(1)(x))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    data = 255 * np.abs(images()), labels(2)
    metrics = [keras.metrics.BinaryAccuracy(name="acc")]
    return classifier(model, keras.optimizers.Adam(3e-4), loss=loss, data=data, metrics=metrics)


@program("vision", source="keras.io examples/vision/image_classification_efficientnet_fine_tuning.py")
def image_classification_efficientnet_fine_tuning() -> Made:
    """Return a frozen network under new layers that are trained."""
    inputs = keras.Input((32, 32, 3))
    x = L.RandomContrast(0.1)(L.RandomFlip()(inputs))
    base = keras.applications.EfficientNetB0(include_top=False, weights=None, input_tensor=x)
    base.trainable = False
    x = L.BatchNormalization()(L.GlobalAveragePooling2D()(base.output))
    outputs = L.Dense(CLASSES, activation="softmax", name="pred")(L.Dropout(0.2)(x))
    model = keras.Model(inputs, outputs)
    data = 255 * np.abs(images(32)), one_hot()
    return classifier(model, keras.optimizers.Adam(1e-2), loss="categorical_crossentropy", data=data)


@program("vision", source="keras.io examples/vision/attention_mil_classification.py")
def attention_mil_classification() -> Made:
    """Bags of images, weighed by a gated attention whose layers they share."""
    bags = [keras.Input((8, 8)) for _ in range(3)]
    dense = L.Dense(14, activation="relu"), L.Dense(7, activation="relu")
    rows = [dense[1](dense[0](L.Flatten()(bag))) for bag in bags]
    values, gates = L.Dense(6, "tanh", use_bias=False), L.Dense(6, "sigmoid", use_bias=False)
    weigh = L.Dense(1, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01))
    scores = [weigh(L.multiply([values(row), gates(row)])) for row in rows]
    weights = K.softmax(K.stack(scores), axis=0)
    weighed = [L.multiply([weights[i], row]) for i, row in enumerate(rows)]
    model = keras.Model(bags, L.Dense(2, activation="softmax")(L.concatenate(weighed, axis=1)))
    data = [images(8, 3)[..., i] for i in range(3)], labels(2)
    return classifier(model, loss="sparse_categorical_crossentropy", data=(tuple(data[0]), data[1]))


@program("vision", source="keras.io examples/vision/learnable_resizer.py")
def learnable_resizer() -> Made:
    """Convolutions around a bilinear resizing, trained with the classifier behind them."""
    inputs = keras.Input((20, 20, 3))
    plain = L.Resizing(12, 12)(inputs)
    x = L.LeakyReLU(negative_slope=0.2)(L.Conv2D(7, 7, padding="same")(inputs))
    x = L.LeakyReLU(negative_slope=0.2)(L.Conv2D(7, 1, padding="same")(x))
    x = bottleneck = L.Resizing(12, 12)(L.BatchNormalization()(x))
    x = L.BatchNormalization()(L.Conv2D(7, 3, padding="same", use_bias=False)(x))
    x = L.BatchNormalization()(L.Conv2D(7, 3, padding="same", use_bias=False)(L.LeakyReLU(negative_slope=0.2)(x)))
    x = L.Add()([bottleneck, x])
    x = L.Add()([L.Conv2D(3, 7, padding="same")(x), plain])
    x = L.GlobalAveragePooling2D()(L.Conv2D(14, 3, strides=2, activation="relu")(x))
    model = keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(x))
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return classifier(model, "sgd", loss=loss, data=(images(20), one_hot()))


@program("vision", source="keras.io examples/vision/bit.py")
def bit() -> Made:
    """Return a pre-activation residual network with group norms and weight standardisation, under a new head."""

    class StandardConv(L.Conv2D):
        """A convolution by a kernel that is made zero in mean and one in variance."""

        def call(self, inputs: Any) -> Any:
            mean, variance = K.moments(self.kernel, axes=[0, 1, 2], keepdims=True)
            kernel = (self.kernel - mean) / K.sqrt(variance + 1e-5)
            return K.conv(inputs, kernel, strides=self.strides, padding=self.padding)

    inputs = keras.Input((16, 16, 3))
    x = StandardConv(14, 3, padding="same", use_bias=False)(inputs)
    for strides in (1, 2):
        y = L.ReLU()(L.GroupNormalization(7)(x))
        short = StandardConv(14, 1, strides=strides, use_bias=False)(y)
        y = StandardConv(14, 3, strides=strides, padding="same", use_bias=False)(y)
        x = L.add([short, StandardConv(14, 1, use_bias=False)(L.ReLU()(L.GroupNormalization(7)(y)))])
    outputs = L.Dense(CLASSES, kernel_initializer="zeros")(L.GlobalAveragePooling2D()(L.ReLU()(x)))
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.003, 0.0003, 0.00003])
    return classifier(keras.Model(inputs, outputs), keras.optimizers.SGD(rate, momentum=0.9))


def residual(size: int = 16, width: int = 7) -> Any:
    """Return a small residual network."""
    inputs = keras.Input((size, size, 3))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(inputs)))
    for strides in (1, 2):
        y = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, strides=strides, padding="same")(x)))
        y = L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(y))
        x = L.ReLU()(y + (x if strides == 1 else L.Conv2D(width, 1, strides=strides)(x)))
    return keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(L.GlobalAveragePooling2D()(x)))


class Mixing(keras.Model):
    """Mixes each batch with its reverse before a step; weighs by a draw from a beta distribution."""

    def __init__(self, network: Any, cuts: bool) -> None:
        super().__init__()
        self.network, self.cuts, self.draws = network, cuts, keras.random.SeedGenerator(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.network(x, training=training)

    def train_step(self, data: Any) -> Any:
        x, y = data
        share = keras.random.beta((K.shape(x)[0], 1), 0.4, 0.4, dtype=x.dtype, seed=self.draws)
        if self.cuts:  # a square of the other image, of one place for all
            row = keras.random.randint((), 0, 8, seed=self.draws)
            near = K.logical_and(K.arange(16, dtype="int32") >= row, K.arange(16, dtype="int32") < row + 6)
            inside = K.cast(near[:, None] & near[None, :], x.dtype)[None, :, :, None]
            x = x * (1 - inside) + x[::-1] * inside
            share = K.ones_like(share) * (1.0 - 36 / 256)
        else:
            wide = share[:, :, None, None]
            x = x * wide + x[::-1] * (1 - wide)
        return super().train_step((x, y * share + y[::-1] * (1 - share)))


@program("vision", source="keras.io examples/vision/mixup.py")
def mixup() -> Made:
    """Images and labels are mixed in pairs."""
    model = Mixing(residual(), cuts=False)
    return classifier(model, loss="categorical_crossentropy", data=(images(), one_hot()))


@program("vision", source="keras.io examples/vision/cutmix.py")
def cutmix() -> Made:
    """Return a part of each image is another one's."""
    model = Mixing(residual(), cuts=True)
    return classifier(model, loss="categorical_crossentropy", data=(images(), one_hot()))


@program(
    "vision",
    source="keras.io examples/vision/randaugment.py",
    dtype="float32",
    tolerance=1e-5,
    reason="random rotations and zooms of Keras have no float64",
)
def randaugment() -> Made:
    """Random changes of images in the model, before convolutions."""
    inputs = keras.Input((16, 16, 3))
    x = inputs
    changes = [L.RandomFlip(), L.RandomRotation(0.1), L.RandomZoom(0.2), L.RandomTranslation(0.1, 0.1)]
    for layer in [*changes, L.RandomBrightness(0.2, value_range=(0.0, 1.0)), L.RandomContrast(0.3)]:
        x = layer(x)
    x = L.Conv2D(14, 3, strides=2, activation="relu")(L.Conv2D(7, 3, strides=2, activation="relu")(x))
    model = keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(L.GlobalAveragePooling2D()(x)))
    data = np.random.default_rng(0).uniform(size=(BATCH, 16, 16, 3)), labels()
    return classifier(model, loss="sparse_categorical_crossentropy", data=data)


@program("vision", source="keras.io examples/vision/fully_convolutional_network.py")
def fully_convolutional_network() -> Made:
    """Transposed convolutions of three resolutions, added up, into classes of pixels."""
    inputs = keras.Input((16, 16, 3))
    x, pools = inputs, []
    for width in (7, 14, 21):
        x = L.MaxPooling2D(2)(L.Conv2D(width, 3, padding="same", activation="relu")(x))
        pools.append(x)
    for _ in range(2):
        x = L.Dropout(0.5)(L.Conv2D(14, 1, activation="relu")(x))
    scores = [L.Conv2D(CLASSES, 1)(p) for p in (pools[0], pools[1], x)]
    two = L.Conv2DTranspose(CLASSES, 2, strides=2, use_bias=False)(scores[2]) + scores[1]
    four = L.UpSampling2D(2, interpolation="bilinear")(two) + scores[0]
    outputs = L.Activation("softmax")(L.Conv2DTranspose(CLASSES, 4, strides=2, padding="same")(four))
    model = keras.Model(inputs, outputs)
    masks = np.random.default_rng(2).integers(0, CLASSES, (BATCH, 16, 16)).astype("int32")
    metrics = [keras.metrics.MeanIoU(CLASSES, sparse_y_pred=False)]
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy()
    return classifier(model, optimizer, loss=loss, data=(images(), masks), metrics=metrics)


@program("vision", source="keras.io examples/vision/3D_image_classification.py")
def image_classification_3d() -> Made:
    """Convolutions, pools and batch norms of volumes."""
    inputs = keras.Input((12, 12, 12, 1))
    x = inputs
    for width in (7, 7, 14):
        x = L.BatchNormalization()(L.MaxPool3D(2, **SINGLE)(L.Conv3D(width, 3, padding="same", activation="relu")(x)))
    x = L.Dropout(0.3)(L.Dense(14, activation="relu")(L.GlobalAveragePooling3D()(x)))
    model = keras.Model(inputs, L.Dense(1, activation="sigmoid")(x))
    rate = keras.optimizers.schedules.ExponentialDecay(1e-3, decay_steps=3, decay_rate=0.96, staircase=True)
    volumes = np.random.default_rng(0).standard_normal((BATCH, 12, 12, 12, 1))
    data = volumes, labels(2).astype("float64")
    return classifier(model, keras.optimizers.Adam(rate), loss="binary_crossentropy", data=data)


@program("vision", source="keras.io examples/vision/keypoint_detection.py")
def keypoint_detection() -> Made:
    """Return a MobileNet under separable convolutions that give coordinates."""
    inputs = keras.Input((32, 32, 3))
    base = keras.applications.MobileNetV2(input_shape=(32, 32, 3), alpha=0.35, include_top=False, weights=None)
    base.trainable = False
    x = L.Dropout(0.3)(base(inputs))
    x = L.SeparableConv2D(48, kernel_size=1, activation="relu")(x)
    model = keras.Model(inputs, L.SeparableConv2D(48, kernel_size=1, activation="sigmoid")(x))
    targets = np.random.default_rng(1).uniform(size=(BATCH, 1, 1, 48))
    return classifier(model, keras.optimizers.Adam(1e-4), loss="mse", data=(images(32), targets), metrics=None)


@program("vision", source="keras.io examples/vision/grad_cam.py")
def grad_cam() -> Made:
    """Return a training step that also gives a heat map: gradients of the best class by the last convolution."""
    from benchmarks.programs.registry import Loop

    inputs = keras.Input((16, 16, 3))
    x = L.Conv2D(7, 3, padding="same", activation="relu")(inputs)
    maps = L.Conv2D(14, 3, padding="same", activation="relu", name="last")(L.MaxPooling2D(2)(x))
    outputs = L.Dense(CLASSES)(L.GlobalAveragePooling2D()(maps))
    model = keras.Model(inputs, [maps, outputs])
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.compat.v2.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as outer, tf.GradientTape() as inner:
            maps, scores = model(x, training=True)
            loss = loss_of(y, scores)
            best = tf.gather(scores, tf.argmax(scores, axis=1), axis=1, batch_dims=1)
        weights = tf.reduce_mean(inner.gradient(best, maps), axis=(1, 2), keepdims=True)
        heat = tf.nn.relu(tf.reduce_sum(maps * weights, axis=-1))
        heat = heat / (tf.reduce_max(heat, axis=(1, 2), keepdims=True) + 1e-9)
        optimizer.apply_gradients(zip(outer.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss, heat

    return Loop(step, (images(), labels()))

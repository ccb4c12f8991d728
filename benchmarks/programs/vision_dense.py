"""Programs from images to images, masks and boxes."""

from typing import Any

import numpy as np

from benchmarks.programs.registry import BATCH, KerasStep, Made, keras, program
from benchmarks.programs.vision_attention import Patches, Positions, adamw, attend, perceptron
from benchmarks.programs.vision_classification import CLASSES, classifier, images
from mtf_hetero import tf

L, K = keras.layers, keras.ops
SIZE = 16


def masks(size: int = SIZE, classes: int = CLASSES) -> np.ndarray:
    """Return a class of each pixel."""
    return np.random.default_rng(2).integers(0, classes, (BATCH, size, size)).astype("int32")


def conv(x: Any, width: int, kernel: int = 3, rate: int = 1, norm: bool = True) -> Any:
    """Return a convolution with batch norm and ReLU."""
    x = L.Conv2D(width, kernel, padding="same", dilation_rate=rate, use_bias=not norm)(x)
    return L.Activation("relu")(L.BatchNormalization()(x) if norm else x)


@program("vision", source="keras.io examples/vision/oxford_pets_image_segmentation.py")
def oxford_pets_image_segmentation() -> Made:
    """Return a U-Net of separable convolutions down, transposed ones up, with residual projections."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = before = L.Activation("relu")(L.BatchNormalization()(L.Conv2D(7, 3, strides=2, padding="same")(inputs)))
    for width in (7, 14):
        for _ in range(2):
            x = L.BatchNormalization()(L.SeparableConv2D(width, 3, padding="same")(L.Activation("relu")(x)))
        x = L.MaxPooling2D(3, strides=2, padding="same")(x)
        x = before = L.add([x, L.Conv2D(width, 1, strides=2, padding="same")(before)])
    for width in (14, 7, 7):
        for _ in range(2):
            x = L.BatchNormalization()(L.Conv2DTranspose(width, 3, padding="same")(L.Activation("relu")(x)))
        x = L.UpSampling2D(2)(x)
        x = before = L.add([x, L.Conv2D(width, 1, padding="same")(L.UpSampling2D(2)(before))])
    model = keras.Model(inputs, L.Conv2D(CLASSES, 3, activation="softmax", padding="same")(x))
    options = {"loss": "sparse_categorical_crossentropy", "data": (images(SIZE), masks()), "metrics": None}
    return classifier(model, keras.optimizers.Adam(1e-4), **options)


@program("vision", source="keras.io examples/vision/deeplabv3_plus.py")
def deeplabv3_plus() -> Made:
    """Dilated convolutions of many rates, an image pool, bilinear upsampling."""
    inputs = keras.Input((SIZE, SIZE, 3))
    low = conv(inputs, 7)
    x = conv(L.MaxPooling2D(2)(low), 14)
    pooled = conv(L.AveragePooling2D((SIZE // 2, SIZE // 2))(x), 7, 1)
    pooled = L.UpSampling2D(SIZE // 2, interpolation="bilinear")(pooled)
    x = L.Concatenate()([pooled, conv(x, 7, 1), conv(x, 7, 3, 2), conv(x, 7, 3, 3)])
    x = L.UpSampling2D(2, interpolation="bilinear")(conv(x, 14, 1))
    x = conv(conv(L.Concatenate()([x, conv(low, 7, 1)]), 14), 14)
    return classifier(keras.Model(inputs, L.Conv2D(CLASSES, 1)(x)), data=(images(SIZE), masks()))


def ssim(a: Any, b: Any, **options: Any) -> Any:
    """Return the structural similarity of images, which TensorFlow has in float32 alone."""
    found = tf.image.ssim(tf.cast(a, tf.float32), tf.cast(b, tf.float32), filter_size=7, **options)
    return tf.cast(found, b.dtype)


class BasnetLoss(keras.losses.Loss):
    """Cross entropy, structural similarity and intersection over union."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        cross = K.mean(keras.losses.binary_crossentropy(y_true, y_pred))
        similar = ssim(y_true, y_pred, max_val=1.0)
        both = K.sum(K.abs(y_true * y_pred), axis=[1, 2, 3])
        union = K.sum(y_true, axis=[1, 2, 3]) + K.sum(y_pred, axis=[1, 2, 3]) - both
        return cross + 1 - K.mean(similar) + 1 - K.mean((both + 1.0) / (union + 1.0))


@program(
    "vision",
    source="keras.io examples/vision/basnet_segmentation.py",
    tolerance=1e-5,
    reason="tf.image.ssim computes in float32",
)
def basnet_segmentation() -> Made:
    """Return a network with side outputs and a refining U-Net, all under a loss of three parts."""
    inputs = keras.Input((SIZE, SIZE, 3))
    first = conv(inputs, 7)
    second = conv(L.MaxPooling2D(2)(first), 14)
    bridge = conv(conv(second, 14, rate=2), 14, rate=2)
    decoded = [conv(L.Concatenate()([bridge, second]), 7)]
    decoded.append(conv(L.Concatenate()([L.UpSampling2D(2, interpolation="bilinear")(decoded[0]), first]), 7))
    sides = [L.Conv2D(1, 3, padding="same")(x) for x in (bridge, *decoded)]
    sides = [*(L.UpSampling2D(2, interpolation="bilinear")(x) for x in sides[:2]), sides[2]]
    coarse = sides[-1]
    x = L.UpSampling2D(2, interpolation="bilinear")(conv(L.MaxPooling2D(2)(conv(coarse, 7)), 7))
    refined = L.Add()([coarse, L.Conv2D(1, 3, padding="same")(conv(x, 7))])
    outputs = [L.Activation("sigmoid")(x) for x in (refined, *sides[::-1])]
    model = keras.Model(inputs, outputs)
    target = masks(classes=2)[..., None].astype("float64")
    model.compile(keras.optimizers.Adam(1e-4, epsilon=1e-8), [BasnetLoss() for _ in outputs])
    return KerasStep(model, (images(SIZE), [target for _ in outputs]))


@program("vision", source="keras.io examples/vision/segformer.py")
def segformer() -> Made:
    """Overlapping patches, attention whose keys are fewer than its queries, and a head of dense layers."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x, outputs = inputs, []
    for size, stride in ((7, 2), (3, 2)):
        x = L.Conv2D(14, size, strides=stride, padding="same")(x)
        height = x.shape[1]
        rows = L.LayerNormalization()(L.Reshape((height * height, 14))(x))
        few = L.LayerNormalization()(L.Reshape((height * height // 4, 14))(L.Conv2D(14, 2, strides=2)(x)))
        rows = rows + L.MultiHeadAttention(2, 7)(rows, few)
        y = L.Dense(28)(L.LayerNormalization()(rows))
        y = L.DepthwiseConv2D(3, padding="same", activation="gelu")(L.Reshape((height, height, 28))(y))
        x = L.Reshape((height, height, 14))(rows + L.Dropout(0.1)(L.Dense(14)(L.Reshape((height * height, 28))(y))))
        outputs.append(L.Resizing(8, 8, interpolation="bilinear")(L.Dense(7)(x)))
    x = conv(L.Concatenate()(outputs[::-1]), 14, 1)
    x = L.Resizing(SIZE, SIZE, interpolation="bilinear")(L.Conv2D(CLASSES, 1)(L.Dropout(0.1)(x)))
    return classifier(keras.Model(inputs, x), keras.optimizers.Adam(6e-5), data=(images(SIZE), masks()))


class DepthLoss(keras.losses.Loss):
    """Smoothness of depth where the image is smooth, structural similarity, and the absolute difference."""

    def call(self, target: Any, found: Any) -> Any:
        dy_true, dx_true = tf.image.image_gradients(target)
        dy, dx = tf.image.image_gradients(found)
        smooth = tf.reduce_mean(tf.abs(dx * tf.exp(tf.reduce_mean(tf.abs(dx_true)))))
        smooth += tf.reduce_mean(tf.abs(dy * tf.exp(tf.reduce_mean(tf.abs(dy_true)))))
        similar = tf.reduce_mean(1 - ssim(target, found, max_val=16, k1=0.01**2, k2=0.03**2))
        return 0.85 * similar + 0.1 * tf.reduce_mean(tf.abs(target - found)) + 0.9 * smooth


@program(
    "vision",
    source="keras.io examples/vision/depth_estimation.py",
    tolerance=1e-5,
    reason="tf.image.ssim computes in float32",
)
def depth_estimation() -> Made:
    """Return a U-Net of residual blocks with a loss of depth."""
    inputs = keras.Input((SIZE, SIZE, 3))

    def block(x: Any, width: int) -> Any:
        y = L.BatchNormalization()(L.LeakyReLU(negative_slope=0.2)(L.Conv2D(width, 3, padding="same")(x)))
        y = L.BatchNormalization()(L.LeakyReLU(negative_slope=0.2)(L.Conv2D(width, 3, padding="same")(y)))
        return y + L.Conv2D(width, 1)(x)

    first = block(inputs, 7)
    x = block(L.MaxPooling2D(2)(first), 14)
    x = block(L.Concatenate()([L.UpSampling2D(2)(x), first]), 7)
    model = keras.Model(inputs, L.Conv2D(1, 1, padding="same", activation="tanh")(x))
    depth = np.abs(images(SIZE, 1))
    options = {"loss": DepthLoss(), "data": (images(SIZE), depth), "metrics": None}
    return classifier(model, keras.optimizers.SGD(1e-3, nesterov=False), **options)


@program("vision", source="keras.io examples/vision/object_detection_using_vision_transformer.py")
def object_detection_using_vision_transformer() -> Made:
    """Four coordinates of a vision transformer."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = attend(attend(Positions()(Patches()(inputs))))
    x = L.Dropout(0.3)(L.Flatten()(L.LayerNormalization(epsilon=1e-6)(x)))
    model = keras.Model(inputs, L.Dense(4)(perceptron(x, (28, 14), 0.3)))
    boxes = np.random.default_rng(1).uniform(size=(BATCH, 4))
    options = {"loss": keras.losses.MeanSquaredError(), "data": (images(SIZE), boxes), "metrics": None}
    return classifier(model, adamw(), **options)


class RetinaNetLoss(keras.losses.Loss):
    """A focal loss of classes and a smooth L1 loss of boxes, of anchors that are neither left out nor empty."""

    def call(self, target: Any, found: Any) -> Any:
        found = tf.cast(found, tf.float64)
        boxes, kinds = target[:, :, :4], tf.one_hot(tf.cast(target[:, :, 4], tf.int32), CLASSES, dtype=tf.float64)
        positive = tf.cast(tf.greater(target[:, :, 4], -1.0), tf.float64)
        ignored = tf.equal(target[:, :, 4], -2.0)
        cross = tf.nn.sigmoid_cross_entropy_with_logits(labels=kinds, logits=found[:, :, 4:])
        chance = tf.nn.sigmoid(found[:, :, 4:])
        alpha = 0.75 - 0.5 * kinds
        missed = tf.where(tf.equal(kinds, 1.0), 1 - chance, chance)
        focal = tf.reduce_sum(alpha * tf.pow(missed, 2.0) * cross, axis=-1)
        away = tf.abs(boxes - found[:, :, :4])
        smooth = tf.reduce_sum(tf.where(away < 1.0, 0.5 * away**2, away - 0.5), axis=-1)
        focal = tf.where(ignored, tf.zeros_like(focal), focal)
        smooth = tf.where(positive > 0, smooth, tf.zeros_like(smooth))
        count = tf.reduce_sum(positive, axis=-1)
        focal = tf.math.divide_no_nan(tf.reduce_sum(focal, axis=-1), count)
        return focal + tf.math.divide_no_nan(tf.reduce_sum(smooth, axis=-1), count)


@program("vision", source="keras.io examples/vision/retinanet.py")
def retinanet() -> Made:
    """Return a feature pyramid, whose levels share the heads of classes and boxes."""
    inputs = keras.Input((SIZE, SIZE, 3))
    levels = []
    x = inputs
    for width in (7, 14, 14):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, strides=2, padding="same")(x)))
        levels.append(L.Conv2D(14, 1, padding="same")(x))
    levels[1] = levels[1] + L.UpSampling2D(2)(levels[2])
    levels[0] = levels[0] + L.UpSampling2D(2)(levels[1])

    def head(width: int, bias: Any) -> Any:
        hidden = [L.Conv2D(14, 3, padding="same", activation="relu") for _ in range(2)]
        return keras.Sequential(
            [keras.Input((None, None, 14)), *hidden, L.Conv2D(width, 3, 1, "same", bias_initializer=bias)]
        )

    classes, boxes = head(2 * CLASSES, keras.initializers.Constant(-4.6)), head(2 * 4, "zeros")
    flat = [
        L.Concatenate(axis=-1)([L.Reshape((-1, 4))(boxes(x)), L.Reshape((-1, CLASSES))(classes(x))]) for x in levels
    ]
    model = keras.Model(inputs, L.Concatenate(axis=1)(flat))
    count = model.output_shape[1]
    rng = np.random.default_rng(1)
    target = np.concatenate([rng.standard_normal((BATCH, count, 4)), rng.integers(-2, CLASSES, (BATCH, count, 1))], -1)
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [1e-3, 5e-3, 1e-2])
    options = {"loss": RetinaNetLoss(), "data": (images(SIZE), target), "metrics": None}
    return classifier(model, keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=10.0), **options)


def regression(model: Any, target: np.ndarray, loss: Any = "mse", optimizer: Any = "adam", **options: Any) -> KerasStep:
    """Return the step of a model that gives images."""
    model.compile(optimizer, loss, **options)
    return KerasStep(model, (images(model.input_shape[1], model.input_shape[-1]), target))


@program("vision", source="keras.io examples/vision/autoencoder.py")
def autoencoder() -> Made:
    """Convolutions down, transposed ones up."""
    inputs = keras.Input((12, 12, 1))
    x = L.MaxPooling2D(2, padding="same")(L.Conv2D(14, 3, activation="relu", padding="same")(inputs))
    x = L.MaxPooling2D(2, padding="same")(L.Conv2D(7, 3, activation="relu", padding="same")(x))
    for width in (7, 14):
        x = L.Conv2DTranspose(width, 3, strides=2, activation="relu", padding="same")(x)
    model = keras.Model(inputs, L.Conv2D(1, 3, activation="sigmoid", padding="same")(x))
    return regression(model, np.abs(images(12, 1)) % 1, "binary_crossentropy")


@program("vision", source="keras.io examples/vision/super_resolution_sub_pixel.py")
def super_resolution_sub_pixel() -> Made:
    """Convolutions whose channels become pixels, by transpositions and by depth_to_space."""
    inputs = keras.Input((8, 8, 1))
    x = inputs
    for width, kernel in ((14, 5), (7, 3), (9, 3)):
        x = L.Conv2D(width, kernel, padding="same", activation="relu", kernel_initializer="orthogonal")(x)
    x = K.transpose(K.reshape(x, (-1, 8, 8, 3, 3)), (0, 1, 3, 2, 4))
    model = keras.Model(inputs, K.reshape(x, (-1, 24, 24, 1)))
    return regression(model, images(24, 1), optimizer=keras.optimizers.Adam(1e-3))

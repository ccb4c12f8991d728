"""Vision transformers of several kinds."""

from typing import Any

import numpy as np

from benchmarks.programs.registry import KerasStep, Made, keras, program
from benchmarks.programs.vision_attention import DropPath, Patches, Positions, adamw, attend, perceptron
from benchmarks.programs.vision_classification import CLASSES, classifier, images, labels, one_hot

L, K = keras.layers, keras.ops
SIZE, WIDTH, PATCHES = 16, 14, 16


class WindowAttention(L.Layer):
    """Attention inside windows, with a bias of relative positions and a mask of windows that were shifted."""

    def __init__(self, window: int, heads: int, size: int, shift: int) -> None:
        super().__init__()
        self.window, self.heads, self.size, self.shift = window, heads, size, shift
        self.qkv, self.project, self.drop = L.Dense(3 * WIDTH), L.Dense(WIDTH), L.Dropout(0.1)

    def build(self, shape: Any) -> None:
        table = (2 * self.window - 1) ** 2, self.heads
        self.table = self.add_weight(shape=table, initializer="zeros", name="table")
        places = np.stack(np.meshgrid(np.arange(self.window), np.arange(self.window), indexing="ij")).reshape(2, -1)
        apart = places[:, :, None] - places[:, None, :] + self.window - 1
        self.index = (apart[0] * (2 * self.window - 1) + apart[1]).reshape(-1).astype("int32")
        number = np.zeros((self.size, self.size))
        cuts = slice(0, -self.window), slice(-self.window, -self.shift or None), slice(-self.shift, None)
        for i, rows in enumerate(cuts):
            for j, columns in enumerate(cuts):
                number[rows, columns] = 3 * i + j
        groups = self._windows(number[None, :, :, None], np)[..., 0]
        self.mask = np.where(groups[:, None, :] != groups[:, :, None], -100.0, 0.0)
        self.built = True

    def _windows(self, x: Any, of: Any) -> Any:
        parts, width = self.size // self.window, x.shape[-1]
        x = of.reshape(x, (-1, parts, self.window, parts, self.window, width))
        return of.reshape(of.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, self.window**2, width))

    def call(self, x: Any) -> Any:
        count, parts = self.window**2, self.size // self.window
        x = K.reshape(x, (-1, self.size, self.size, WIDTH))
        if self.shift:
            x = K.roll(x, (-self.shift, -self.shift), axis=(1, 2))
        x = self._windows(x, K)
        rows = K.transpose(K.reshape(self.qkv(x), (-1, count, 3, self.heads, WIDTH // self.heads)), (2, 0, 3, 1, 4))
        q, k, v = rows[0], rows[1], rows[2]
        scores = q * (WIDTH // self.heads) ** -0.5 @ K.transpose(k, (0, 1, 3, 2))
        bias = K.reshape(K.take(self.table, self.index, axis=0), (count, count, -1))
        scores = scores + K.transpose(bias, (2, 0, 1))[None]
        if self.shift:
            scores = K.reshape(scores, (-1, parts**2, self.heads, count, count))
            scores = scores + K.cast(self.mask[None, :, None], scores.dtype)
            scores = K.reshape(scores, (-1, self.heads, count, count))
        x = K.transpose(self.drop(K.softmax(scores, axis=-1)) @ v, (0, 2, 1, 3))
        x = self.drop(self.project(K.reshape(x, (-1, count, WIDTH))))
        x = K.reshape(x, (-1, parts, parts, self.window, self.window, WIDTH))
        x = K.reshape(K.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, self.size, self.size, WIDTH))
        if self.shift:
            x = K.roll(x, (self.shift, self.shift), axis=(1, 2))
        return K.reshape(x, (-1, self.size**2, WIDTH))


@program("vision", source="keras.io examples/vision/swin_transformers.py")
def swin_transformers() -> Made:
    """Attention in windows and in shifted windows; patches are merged by fours."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = Positions(64)(Patches(2)(inputs))
    for shift in (0, 1):
        x = x + DropPath(0.1)(WindowAttention(2, 2, 8, shift)(L.LayerNormalization(epsilon=1e-5)(x)))
        x = x + DropPath(0.1)(perceptron(L.LayerNormalization(epsilon=1e-5)(x), (28, WIDTH)))
    x = K.reshape(x, (-1, 8, 8, WIDTH))
    x = K.concatenate([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], axis=-1)
    x = L.GlobalAveragePooling1D()(L.Dense(28, use_bias=False)(K.reshape(x, (-1, 16, 4 * WIDTH))))
    model = keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(x))
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return classifier(model, adamw(), loss=loss, data=(images(SIZE), one_hot()))


@program("vision", source="keras.io examples/vision/mobilevit.py")
def mobilevit() -> Made:
    """Inverted residuals, and a transformer on patches that were unfolded from images."""
    inputs = keras.Input((SIZE, SIZE, 3))

    def conv(x: Any, width: int, kernel: int = 3, strides: int = 1) -> Any:
        return L.Conv2D(width, kernel, strides=strides, padding="same", activation="swish")(x)

    x = conv(L.Rescaling(1.0 / 255)(inputs), 7, strides=2)
    y = keras.activations.swish(L.BatchNormalization()(L.Conv2D(14, 1, padding="same", use_bias=False)(x)))
    y = L.DepthwiseConv2D(3, strides=1, padding="same", use_bias=False)(y)
    y = keras.activations.swish(L.BatchNormalization()(y))
    x = L.Add()([L.BatchNormalization()(L.Conv2D(7, 1, padding="same", use_bias=False)(y)), x])
    local = conv(conv(x, WIDTH), WIDTH, 1)
    unfolded = L.Reshape((4, 16, WIDTH))(local)
    y = L.LayerNormalization(epsilon=1e-6)(unfolded)
    y = L.Add()([L.MultiHeadAttention(2, WIDTH, dropout=0.1)(y, y), unfolded])
    y = L.Add()([perceptron(L.LayerNormalization(epsilon=1e-6)(y), (28, WIDTH)), y])
    folded = conv(L.Reshape((8, 8, WIDTH))(y), 7, 1)
    x = conv(conv(L.Concatenate()([x, folded]), WIDTH), 28, 1)
    model = keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(L.GlobalAvgPool2D()(x)))
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return classifier(model, keras.optimizers.Adam(0.002), loss=loss, data=(images(SIZE), one_hot()))


class Token(L.Layer):
    """Puts rows of weights before the patches of each example."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.count = count

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(shape=(1, self.count, shape[-1]), initializer="zeros", name="rows")

    def call(self, x: Any) -> Any:
        rows = K.broadcast_to(K.cast(self.rows, x.dtype), (K.shape(x)[0], self.count, x.shape[-1]))
        return K.concatenate([rows, x], axis=1)


class Deit(keras.Model):
    """A student with a token of its own for the teacher's classes."""

    def __init__(self) -> None:
        super().__init__()
        inputs = keras.Input((SIZE, SIZE, 3))
        x = L.Dropout(0.1)(Positions(PATCHES + 2)(Token(2)(Patches()(inputs))))
        x = L.LayerNormalization(epsilon=1e-6)(attend(attend(x)))
        self.student = keras.Model(inputs, [L.Dense(CLASSES)(x[:, 0]), L.Dense(CLASSES)(x[:, 1])])
        x = L.GlobalAveragePooling2D()(L.BatchNormalization()(L.Conv2D(14, 3, strides=2, activation="relu")(inputs)))
        self.teacher = keras.Model(inputs, L.Dense(CLASSES)(x))
        self.teacher.trainable = False

    def call(self, x: Any, training: bool = False) -> Any:
        own, distilled = self.student(x, training=training)
        return (own + distilled) / 2 if not training else K.stack([own, distilled])

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
        own, distilled = y_pred[0], y_pred[1]
        cross = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
        best = K.one_hot(K.argmax(self.teacher(x, training=False), axis=-1), CLASSES)
        return 0.5 * cross(y, own) + 0.5 * cross(best, distilled)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().compute_metrics(x, y, (y_pred[0] + y_pred[1]) / 2, sample_weight)


@program("vision", source="keras.io examples/vision/deit.py")
def deit() -> Made:
    """Distillation through a token."""
    model = Deit()
    model.compile(adamw(), metrics=["accuracy"])
    return KerasStep(model, (images(SIZE), one_hot()))


class TalkingHeads(L.Layer):
    """Attention whose heads are mixed before and after the softmax."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = L.Dense(3 * WIDTH), L.Dense(WIDTH)
        self.before, self.after, self.drop = L.Dense(heads), L.Dense(heads), L.Dropout(0.1)

    def call(self, x: Any) -> Any:
        count, width = x.shape[1], WIDTH // self.heads
        rows = K.transpose(K.reshape(self.qkv(x), (-1, count, 3, self.heads, width)), (2, 0, 3, 1, 4))
        q, k, v = rows[0], rows[1], rows[2]
        scores = K.matmul(q * width**-0.5, K.transpose(k, (0, 1, 3, 2)))
        scores = K.transpose(self.before(K.transpose(scores, (0, 2, 3, 1))), (0, 3, 1, 2))
        weights = K.transpose(self.after(K.transpose(K.softmax(scores), (0, 2, 3, 1))), (0, 3, 1, 2))
        mixed = K.transpose(K.matmul(self.drop(weights), v), (0, 2, 1, 3))
        return self.out(K.reshape(mixed, (-1, count, WIDTH)))


class Scale(L.Layer):
    """Multiplies channels by small weights."""

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight(shape=(shape[-1],), initializer=keras.initializers.Constant(0.1), name="gamma")

    def call(self, x: Any) -> Any:
        return x * self.gamma


@program("vision", source="keras.io examples/vision/cait.py")
def cait() -> Made:
    """Talking heads between patches, then attention of a class token to the patches."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = L.Dropout(0.1)(Positions()(Patches()(inputs)))
    for _ in range(2):
        x = x + DropPath(0.1)(Scale()(TalkingHeads()(L.LayerNormalization(epsilon=1e-6)(x))))
        x = x + DropPath(0.1)(Scale()(perceptron(L.LayerNormalization(epsilon=1e-6)(x), (28, WIDTH))))
    every = L.LayerNormalization(epsilon=1e-6)(Token()(x))
    token = every[:, :1]
    token = token + Scale()(L.MultiHeadAttention(2, 7)(token, every))
    token = token + Scale()(perceptron(L.LayerNormalization(epsilon=1e-6)(token), (28, WIDTH)))
    return classifier(keras.Model(inputs, L.Dense(CLASSES)(token[:, 0])), adamw())


@program("vision", source="keras.io examples/vision/patch_convnet.py")
def patch_convnet() -> Made:
    """Convolutions with squeeze-and-excite in a trunk, and one attention as the pool."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = L.Rescaling(1.0 / 255)(inputs)
    for width in (7, WIDTH):
        x = keras.activations.gelu(L.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x))
    for _ in range(2):
        y = L.Conv2D(WIDTH, 1, activation="gelu")(L.LayerNormalization(epsilon=1e-6)(x))
        y = L.DepthwiseConv2D(3, padding="same", activation="gelu")(y)
        squeezed = L.Dense(7, activation="relu")(L.GlobalAveragePooling2D(keepdims=True)(y))
        y = L.Conv2D(WIDTH, 1)(y * L.Dense(WIDTH, activation="sigmoid")(squeezed))
        x = x + DropPath(0.1)(Scale()(y))
    every = Token()(L.Reshape((-1, WIDTH))(x))
    query = every[:, :1]
    keys, values = L.Dense(WIDTH)(every), L.Dense(WIDTH)(every)
    weights = K.softmax(L.Dense(WIDTH)(query) @ K.transpose(keys, (0, 2, 1)) / WIDTH**0.5, axis=-1)
    token = L.LayerNormalization(epsilon=1e-6)(query + L.Dense(WIDTH)(weights @ values))
    model = keras.Model(inputs, L.Dense(CLASSES)(perceptron(token[:, 0], (WIDTH,))))
    return classifier(model, adamw(), data=(images(SIZE), labels()))


@program("vision", source="keras.io examples/vision/focal_modulation_network.py")
def focal_modulation_network() -> Made:
    """Depthwise convolutions of growing size, gated and added up, modulate a query."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = L.LayerNormalization(epsilon=1e-5)(L.Conv2D(WIDTH, 2, strides=2)(inputs))
    for _ in range(2):
        y = L.LayerNormalization(epsilon=1e-5)(x)
        projected = L.Dense(2 * WIDTH + 3)(y)
        query, context, gates = K.split(projected, [WIDTH, 2 * WIDTH], axis=-1)
        total = K.zeros_like(context)
        for level in range(2):
            kernel = 3 + 2 * level
            context = L.DepthwiseConv2D(kernel, padding="same", activation="gelu", use_bias=False)(context)
            total = total + context * gates[..., level : level + 1]
        mean = keras.activations.gelu(K.mean(context, axis=(1, 2), keepdims=True))
        total = total + mean * gates[..., 2:]
        x = x + L.Dropout(0.1)(L.Dense(WIDTH)(query * L.Conv2D(WIDTH, 1)(total)))
        x = x + perceptron(L.LayerNormalization(epsilon=1e-5)(x), (28, WIDTH))
    model = keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(L.GlobalAveragePooling2D()(x)))
    return classifier(model, adamw(), loss="sparse_categorical_crossentropy")

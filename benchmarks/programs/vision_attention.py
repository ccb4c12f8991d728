"""Classifiers of images that mix patches: attention, multi-layer perceptrons, shifts."""

from typing import Any

from benchmarks.programs.registry import KerasStep, Made, keras, program
from benchmarks.programs.vision_classification import CLASSES, classifier, images, one_hot

L, K = keras.layers, keras.ops
SIZE, PATCH, WIDTH = 16, 4, 14
PATCHES = (SIZE // PATCH) ** 2


class Patches(L.Layer):
    """Cuts images into patches, each a row of its numbers."""

    def __init__(self, size: int = PATCH) -> None:
        super().__init__()
        self.size = size

    def call(self, x: Any) -> Any:
        found = K.image.extract_patches(x, size=self.size)
        return K.reshape(found, (K.shape(x)[0], found.shape[1] * found.shape[2], found.shape[3]))


class Positions(L.Layer):
    """Projects patches, and adds an embedding of their positions."""

    def __init__(self, count: int = PATCHES, width: int = WIDTH) -> None:
        super().__init__()
        self.count = count
        self.project, self.positions = L.Dense(width), L.Embedding(count, width)

    def call(self, x: Any) -> Any:
        return self.project(x) + self.positions(K.expand_dims(K.arange(self.count), 0))


class DropPath(L.Layer):
    """Leaves out a branch of some examples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.draws = rate, keras.random.SeedGenerator(7)

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        shape = (K.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        keep = 1 - self.rate
        return x / keep * K.floor(keep + keras.random.uniform(shape, seed=self.draws, dtype=x.dtype))


def adamw() -> Any:
    """Adam with weight decay."""
    return keras.optimizers.AdamW(1e-3, weight_decay=1e-4)


def perceptron(x: Any, widths: tuple[int, ...], rate: float = 0.1) -> Any:
    """Dense layers with GELU and dropout."""
    for width in widths:
        x = L.Dropout(rate)(L.Dense(width, activation=keras.activations.gelu)(x))
    return x


def attend(x: Any, heads: int = 2, rate: float = 0.1) -> Any:
    """Return a transformer's block."""
    y = L.LayerNormalization(epsilon=1e-6)(x)
    x = x + L.MultiHeadAttention(heads, WIDTH // heads, dropout=rate)(y, y)
    return x + perceptron(L.LayerNormalization(epsilon=1e-6)(x), (2 * WIDTH, WIDTH), rate)


def image_input() -> Any:
    return keras.Input((SIZE, SIZE, 3))


def from_patches(mix: Any, blocks: int = 2) -> Any:
    """Return a model that mixes patches with some blocks."""
    inputs = image_input()
    x = Positions()(Patches()(inputs))
    for _ in range(blocks):
        x = mix(x)
    x = L.Dropout(0.5)(L.GlobalAveragePooling1D()(L.LayerNormalization()(x)))
    return keras.Model(inputs, L.Dense(CLASSES)(x))


@program("vision", source="keras.io examples/vision/image_classification_with_vision_transformer.py")
def image_classification_with_vision_transformer() -> Made:
    """Return a vision transformer."""
    inputs = image_input()
    x = attend(attend(Positions()(Patches()(inputs))))
    x = L.Dropout(0.5)(L.Flatten()(L.LayerNormalization(epsilon=1e-6)(x)))
    return classifier(keras.Model(inputs, L.Dense(CLASSES)(perceptron(x, (28, 14), 0.5))), adamw())


@program("vision", source="keras.io examples/vision/mlp_image_classification.py: MLP-Mixer")
def mlp_mixer() -> Made:
    """Dense layers across patches and across channels by turns."""

    def mix(x: Any) -> Any:
        y = L.Permute((2, 1))(L.LayerNormalization()(x))
        x = x + L.Permute((2, 1))(L.Dense(PATCHES)(L.Dense(7, activation="gelu")(y)))
        return x + L.Dropout(0.2)(L.Dense(WIDTH)(L.Dense(7, activation="gelu")(L.LayerNormalization()(x))))

    return classifier(from_patches(mix), keras.optimizers.AdamW(0.005))


@program("vision", source="keras.io examples/vision/mlp_image_classification.py: FNet")
def fnet() -> Made:
    """Return the real part of a Fourier transform over patches and channels."""

    def mix(x: Any) -> Any:
        x = L.LayerNormalization()(x + K.fft2((x, K.zeros_like(x)))[0])
        return L.LayerNormalization()(x + L.Dropout(0.2)(L.Dense(WIDTH)(L.Dense(7, activation="gelu")(x))))

    return classifier(from_patches(mix))


@program("vision", source="keras.io examples/vision/mlp_image_classification.py: gMLP")
def gmlp() -> Made:
    """Return a gate whose values come from a dense layer across patches."""

    def mix(x: Any) -> Any:
        y = L.Dropout(0.2)(L.Dense(2 * WIDTH, activation="gelu")(L.LayerNormalization()(x)))
        u, v = K.split(y, 2, axis=2)
        v = L.Permute((2, 1))(L.LayerNormalization()(v))
        v = L.Permute((2, 1))(L.Dense(PATCHES, bias_initializer="ones")(v))
        return x + L.Dense(WIDTH)(u * v)

    return classifier(from_patches(mix))


@program("vision", source="keras.io examples/vision/convmixer.py")
def convmixer() -> Made:
    """Depthwise convolutions with residuals, and pointwise ones."""
    inputs = image_input()

    def activated(x: Any) -> Any:
        return L.BatchNormalization()(L.Activation("gelu")(x))

    x = activated(L.Conv2D(WIDTH, 2, strides=2)(L.Rescaling(1 / 255)(inputs)))
    for _ in range(2):
        x = L.Add()([activated(L.DepthwiseConv2D(5, padding="same")(x)), x])
        x = activated(L.Conv2D(WIDTH, 1)(x))
    model = keras.Model(inputs, L.Dense(CLASSES)(L.GlobalAvgPool2D()(x)))
    return classifier(model, adamw())


class _SequencePool(L.Layer):
    """Weighs patches by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = L.Dense(1)

    def call(self, x: Any) -> Any:
        weights = K.transpose(K.softmax(self.attention(x), axis=1), (0, 2, 1))
        return K.squeeze(K.matmul(weights, x), -2)


@program("vision", source="keras.io examples/vision/cct.py")
def cct() -> Made:
    """Return a convolutional tokenizer, stochastic depth, and pooling over the sequence."""
    inputs = image_input()
    x = inputs
    for width in (7, WIDTH):
        x = L.Conv2D(width, 3, padding="valid", use_bias=False, activation="relu")(L.ZeroPadding2D(1)(x))
        x = L.MaxPooling2D(3, 2, "same")(L.ZeroPadding2D(1)(x))
    x = L.Reshape((-1, WIDTH))(x)
    count = x.shape[1]
    x = Positions(count)(x)
    for number in range(2):
        y = L.LayerNormalization(epsilon=1e-5)(x)
        x = x + DropPath(0.1 * number)(L.MultiHeadAttention(2, 7, dropout=0.1)(y, y))
        x = x + DropPath(0.1 * number)(perceptron(L.LayerNormalization(epsilon=1e-5)(x), (WIDTH, WIDTH)))
    x = _SequencePool()(L.LayerNormalization(epsilon=1e-5)(x))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1.2e-4)
    return classifier(keras.Model(inputs, L.Dense(CLASSES)(x)), optimizer, loss=loss, data=(images(), one_hot()))


@program("vision", source="keras.io examples/vision/eanet.py")
def eanet() -> Made:
    """External attention: two memories in place of keys and values, with a double normalisation."""

    def mix(x: Any) -> Any:
        heads, memory = 2, 7
        y = L.Dense(heads * WIDTH)(L.LayerNormalization()(x))
        y = K.transpose(K.reshape(y, (-1, PATCHES, heads, WIDTH)), (0, 2, 1, 3))
        a = L.Activation("softmax")(L.Dense(memory)(y))
        a = L.Dropout(0.1)(a / (1e-9 + K.sum(a, axis=1, keepdims=True)))
        y = K.reshape(K.transpose(L.Dense(WIDTH)(a), (0, 2, 1, 3)), (-1, PATCHES, heads * WIDTH))
        x = x + L.Dropout(0.1)(L.Dense(WIDTH)(y))
        return x + perceptron(L.LayerNormalization()(x), (WIDTH, WIDTH), 0.2)

    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    return classifier(from_patches(mix), adamw(), loss=loss, data=(images(), one_hot()))


class _Involution(L.Layer):
    """A kernel of each place, made from that place, over all channels."""

    def __init__(self, channels: int, kernel: int = 3, ratio: int = 2) -> None:
        super().__init__()
        self.kernel = kernel
        reduced = L.Conv2D(channels // ratio, 1)
        self.generate = keras.Sequential([reduced, L.BatchNormalization(), L.ReLU(), L.Conv2D(kernel**2, 1)])

    def call(self, x: Any) -> Any:
        _, height, width, channels = x.shape
        kernel = K.reshape(self.generate(x), (-1, height, width, self.kernel**2, 1, 1))
        patches = K.image.extract_patches(x, size=self.kernel, strides=1, padding="same")
        patches = K.reshape(patches, (-1, height, width, self.kernel**2, channels, 1))
        return K.sum(kernel * patches, axis=3)[..., 0]


@program("vision", source="keras.io examples/vision/involution.py")
def involution() -> Made:
    """Involutions with pooling before dense layers."""
    inputs = keras.Input((12, 12, 3))
    x = L.ReLU()(_Involution(3)(inputs))
    x = L.ReLU()(_Involution(3)(L.MaxPooling2D(2)(x)))
    x = L.ReLU()(_Involution(3)(L.MaxPooling2D(2)(x)))
    model = keras.Model(inputs, L.Dense(CLASSES)(L.Dense(14, activation="relu")(L.Flatten()(x))))
    return classifier(model, size=12)


class Perceiver(keras.Model):
    """Latent rows that look at patches, again and again with the same weights."""

    def __init__(self, rows: int = 6, repeats: int = 2) -> None:
        super().__init__()
        self.rows, self.repeats = rows, repeats
        self.patches, self.encode = Patches(), Positions()
        self.cross = self._cross(PATCHES, rows)
        self.latent_transformer = self._latents(rows)
        self.pool, self.head = L.GlobalAveragePooling1D(), L.Dense(CLASSES)

    def _cross(self, patches: int, rows: int) -> Any:
        latent, data = keras.Input((rows, WIDTH)), keras.Input((patches, WIDTH))
        q = L.Dense(WIDTH)(L.LayerNormalization(epsilon=1e-6)(latent))
        y = L.LayerNormalization(epsilon=1e-6)(data)
        x = L.Attention(use_scale=True, dropout=0.1)([q, L.Dense(WIDTH)(y), L.Dense(WIDTH)(y)])
        x = L.LayerNormalization(epsilon=1e-6)(L.Add()([x, latent]))
        return keras.Model([latent, data], L.Add()([perceptron(x, (28, WIDTH), 0.2), x]))

    def _latents(self, rows: int) -> Any:
        inputs = keras.Input((rows, WIDTH))
        return keras.Model(inputs, attend(inputs))

    def build(self, shape: Any) -> None:
        self.latents = self.add_weight(shape=(self.rows, WIDTH), initializer="random_normal", name="latents")
        super().build(shape)

    def call(self, x: Any) -> Any:
        data = self.encode(self.patches(x))
        latent = K.broadcast_to(self.latents[None], (K.shape(x)[0], self.rows, WIDTH))
        for _ in range(self.repeats):
            latent = self.latent_transformer(self.cross([latent, data]))
        return self.head(self.pool(latent))


@program("vision", source="keras.io examples/vision/perceiver_image_classification.py")
def perceiver_image_classification() -> Made:
    """Return a perceiver with the LAMB optimizer."""
    return classifier(Perceiver(), keras.optimizers.Lamb(1e-3, weight_decay=1e-4))


def _shift_block(x: Any) -> Any:
    """ShiftViT: a part of the channels moves by a pixel in each direction."""
    part = WIDTH // 7
    pieces = [x[..., i * part : (i + 1) * part] for i in range(4)]
    size = x.shape[1]
    moved = [
        K.pad(pieces[0], [[0, 0], [0, 0], [0, 1], [0, 0]])[:, :, 1:],
        K.pad(pieces[1], [[0, 0], [0, 0], [1, 0], [0, 0]])[:, :, :size],
        K.pad(pieces[2], [[0, 0], [0, 1], [0, 0], [0, 0]])[:, 1:],
        K.pad(pieces[3], [[0, 0], [1, 0], [0, 0], [0, 0]])[:, :size],
    ]
    y = K.concatenate([*moved, x[..., 4 * part :]], axis=-1)
    y = L.LayerNormalization(epsilon=1e-5)(y)
    y = L.Dropout(0.1)(L.Conv2D(WIDTH, 1)(L.Conv2D(2 * WIDTH, 1, activation="gelu")(y)))
    return x + DropPath(0.2)(y)


@program("vision", source="keras.io examples/vision/shiftvit.py")
def shiftvit() -> Made:
    """Shifts of channels in place of attention, in two stages, with a warm-up of the learning rate."""

    class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
        """Rises in a line, then falls as a cosine."""

        def __call__(self, step: Any) -> Any:
            step = K.cast(step, "float32")
            falling = 0.5 * 1e-3 * (1 + K.cos(3.14 * (step - 2.0) / 8.0))
            return K.where(step < 2.0, 1e-4 + step * 4e-4, falling)

    inputs = image_input()
    x = L.Conv2D(WIDTH, 2, strides=2)(inputs)
    x = _shift_block(_shift_block(x))
    x = L.Conv2D(WIDTH, 2, strides=2, use_bias=False)(L.LayerNormalization(epsilon=1e-5)(x))
    model = keras.Model(inputs, L.Dense(CLASSES)(L.GlobalAveragePooling2D()(_shift_block(x))))
    return classifier(model, keras.optimizers.AdamW(WarmUp(), weight_decay=1e-4))


__all__ = ["DropPath", "KerasStep", "Patches", "Positions", "adamw", "attend", "from_patches", "perceptron"]

"""Networks of plain Keras layers, such as people write."""

import keras
from keras import layers


class Positions(keras.Layer):
    """Adds a trainable vector to each place of a sequence: a layer of the user's own."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=shape[1:], initializer="random_normal", name="vectors")

    def call(self, inputs):
        return inputs + self.vectors


def vision_transformer(*, size=12, patch=4, width=12, heads=3, blocks=2, classes=5):
    """A Vision Transformer (Dosovitskiy et al. 2021), with the mean of all places before its head."""
    images = keras.Input((size, size, 3))
    x = layers.Conv2D(width, patch, strides=patch, name="patches")(images)
    x = layers.Reshape((-1, width))(x)
    x = Positions(name="positions")(x)
    for _ in range(blocks):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.MultiHeadAttention(heads, width // heads)(y, y)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dense(2 * width, activation="gelu")(y)
        x = x + layers.Dense(width)(y)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(images, layers.Dense(classes)(x), name="vit")


def u_net(*, size=12, filters=5, classes=3):
    """A U-Net (Ronneberger, Fischer and Brox 2015) of two halvings."""

    def block(x, count):
        for _ in range(2):
            x = layers.Conv2D(count, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("relu")(layers.BatchNormalization()(x))
        return x

    images = keras.Input((size, size, 2))
    one = block(images, filters)
    two = block(layers.MaxPooling2D()(one), 2 * filters)
    x = block(layers.MaxPooling2D()(two), 4 * filters)
    x = layers.Concatenate()([two, layers.Conv2DTranspose(2 * filters, 2, strides=2)(x)])
    x = layers.Concatenate()([one, layers.UpSampling2D()(block(x, 2 * filters))])
    return keras.Model(images, layers.Conv2D(classes, 1, activation="softmax")(block(x, filters)), name="u_net")


def two_in_two_out():
    """An image and a row of numbers to a class and a number."""
    image, row = keras.Input((9, 7, 3), name="image"), keras.Input((6,), name="row")
    x = layers.Conv2D(7, 3, activation="relu")(image)
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    y = layers.Concatenate()([x, layers.Dense(8, activation="relu")(row)])
    return keras.Model([image, row], [layers.Dense(5, activation="softmax")(y), layers.Dense(1)(row)])


def nested():
    """A Siamese pair: a model in a model, called twice, with a sequential one in it and a layer that is shared."""
    inner_input = keras.Input((9, 9, 3))
    x = layers.Conv2D(6, 3, padding="same", name="conv")(inner_input)
    shared = layers.Conv2D(6, 3, padding="same", activation="relu", name="shared")
    x = shared(shared(layers.BatchNormalization(name="norm")(x)))
    head = keras.Sequential(
        [layers.GlobalAveragePooling2D(), layers.Dense(7, activation="tanh", name="hidden")], name="head"
    )
    inner = keras.Model(inner_input, head(x), name="tower")
    one, other = keras.Input((9, 9, 3)), keras.Input((9, 9, 3))
    difference = layers.Subtract()([inner(one), inner(other)])
    return keras.Model([one, other], layers.Dense(1, activation="sigmoid")(difference**2))


def residual():
    """A small residual network with what keras.applications have: squeezes, depthwise convolutions, scales."""
    images = keras.Input((14, 14, 3))
    x = layers.Rescaling(0.25)(images)
    x = layers.ZeroPadding2D(((0, 1), (0, 1)))(x)
    x = layers.Conv2D(8, 3, strides=2, use_bias=False)(x)
    x = layers.Activation("swish")(layers.BatchNormalization()(x))
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    squeezed = layers.GlobalAveragePooling2D(keepdims=True)(y)
    squeezed = layers.Conv2D(4, 1, activation="relu")(squeezed)
    y = layers.Multiply()([y, layers.Conv2D(8, 1, activation="hard_sigmoid")(squeezed)])
    x = layers.Add()([x, layers.Dropout(0.0)(y)])
    x = layers.AveragePooling2D(2)(x)
    return keras.Model(images, layers.Dense(5)(layers.Flatten()(x)))


NETWORKS = {
    "vision transformer": vision_transformer,
    "u-net": u_net,
    "two in, two out": two_in_two_out,
    "nested": nested,
    "residual": residual,
}

"""Small Keras models with blocks between which few tensors pass: what a step is cut into."""

import keras

L = keras.layers


def residual():
    """Four blocks x + dense(relu(dense(x))), and a head."""
    x = inputs = keras.Input((12,))
    for _ in range(4):
        x = L.Add()([x, L.Dense(12)(L.Dense(28, "relu")(x))])
    return keras.Model(inputs, L.Dense(5)(x))


def resnet():
    """Blocks with batch norm, and with strides and a projection in one of them."""
    x = inputs = keras.Input((8, 8, 3))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(7, 3, padding="same", use_bias=False)(x)))
    for filters, strides in ((7, 1), (14, 2), (14, 1)):
        y = L.ReLU()(L.BatchNormalization()(L.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)))
        y = L.BatchNormalization()(L.Conv2D(filters, 3, padding="same", use_bias=False)(y))
        x = x if strides == 1 else L.BatchNormalization()(L.Conv2D(filters, 1, strides, use_bias=False)(x))
        x = L.ReLU()(L.Add()([x, y]))
    return keras.Model(inputs, L.Dense(5)(L.GlobalAveragePooling2D()(x)))


class Tied(keras.layers.Layer):
    """Scores of all words, by the vectors of the first layer."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))[..., :5]


def transformer():
    """Two layers of attention, with a mask, dropout, and weights that the first and the last layer share."""
    inputs = keras.Input((6,), dtype="int32")
    embedding = L.Embedding(11, 8, mask_zero=True, name="words")
    x = embedding(inputs)
    for number in range(2):
        y = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(7, 4, dropout=0.1, seed=number)(y, y, use_causal_mask=True)
        y = L.Dense(14, "gelu")(L.LayerNormalization()(x))
        x = x + L.Dropout(0.2, seed=number)(L.Dense(8)(y))
    return keras.Model(inputs, L.GlobalAveragePooling1D()(Tied(embedding)(L.LayerNormalization()(x))))


def recurrent():
    """Three layers, each a loop."""
    x = inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(11, 8)(x)
    for _ in range(2):
        x = L.LSTM(7, return_sequences=True)(x)
    return keras.Model(inputs, L.Dense(5)(L.GRU(7)(x)))


def unet():
    """Two levels, each with a skip that is concatenated."""
    x = inputs = keras.Input((8, 8, 3))
    skips = []
    for filters in (4, 7):
        x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(filters, 3, padding="same", use_bias=False)(x)))
        skips.append(x)
        x = L.MaxPooling2D()(x)
    x = L.Conv2D(14, 3, padding="same", activation="relu")(x)
    for filters in (7, 4):
        x = L.Concatenate()([skips.pop(), L.Conv2DTranspose(filters, 2, 2)(x)])
        x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, L.GlobalAveragePooling2D()(L.Conv2D(5, 1)(x)))

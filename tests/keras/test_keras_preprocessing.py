"""Preprocessing layers within a model: texts, tables and images of `mtf_hetero.keras.fit` are as in Keras."""

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, FILTERS, SEED, check, make_model
from tiers import parametrize

import mtf_hetero.keras
from mtf_hetero import mtf, tf

L = keras.layers
RNG = np.random.default_rng(0)
COUNT = 17  # the last batch of eight has one
CLASSES = RNG.integers(0, 5, COUNT)
IDS = RNG.integers(0, 9, (COUNT, 4))
WORDS = np.array(["red", "green", "blue", "what is it"])[RNG.integers(0, 4, (COUNT, 4))]
ROWS = RNG.standard_normal((COUNT, 6))
PICTURES = RNG.uniform(0, 255, (COUNT, 8, 8, 3))


def embedded(layer, size=12):
    return lambda x: L.Embedding(size, 3)(layer()(x))


def directly(layer):
    return lambda x: layer()(x)


def normalization():
    layer = L.Normalization()
    layer.adapt(ROWS)
    return layer


def masked(words):
    """A recurrent layer, which leaves out what is beyond the text's end."""
    ids = L.TextVectorization(vocabulary=["red", "what"], output_sequence_length=3)(words)
    return L.LSTM(4)(L.Embedding(12, 3, mask_zero=True)(ids))


LAYERS = {  # arguments, their type, and what is made of them
    "IntegerLookup": (IDS, "int64", embedded(lambda: L.IntegerLookup(vocabulary=[1, 2, 3, 4]))),
    "IntegerLookup, many": (IDS, "int64", directly(lambda: L.IntegerLookup(vocabulary=[1, 2], output_mode="count"))),
    "StringLookup": (WORDS, "string", embedded(lambda: L.StringLookup(vocabulary=["red", "green"]))),
    "TextVectorization": (
        WORDS[:, :1],
        "string",
        embedded(lambda: L.TextVectorization(vocabulary=["red", "what"], output_sequence_length=3)),
    ),
    "TextVectorization, masked": (WORDS[:, :1], "string", masked),
    "Hashing": (IDS, "int64", embedded(lambda: L.Hashing(7))),
    "Hashing of words": (WORDS, "string", embedded(lambda: L.Hashing(7, salt=3))),
    "HashedCrossing": (IDS[:, :1], "int64", lambda x: L.HashedCrossing(8, output_mode="one_hot")((x, x))),
    "Discretization": (ROWS, "float64", embedded(lambda: L.Discretization([-1.0, 0.0, 1.0]))),
    "CategoryEncoding": (IDS, "int64", directly(lambda: L.CategoryEncoding(9, "multi_hot"))),
    "Normalization": (ROWS, "float64", directly(normalization)),
    "Rescaling": (ROWS, "float64", directly(lambda: L.Rescaling(2.0, 1.0))),
    "CenterCrop": (PICTURES, "float64", directly(lambda: L.CenterCrop(5, 5))),
    "Resizing": (PICTURES, "float64", directly(lambda: L.Resizing(5, 7))),
    "Pipeline": (PICTURES, "float64", directly(lambda: L.Pipeline([L.Rescaling(1 / 255), L.CenterCrop(5, 5)]))),
    "AutoContrast": (PICTURES, "float64", directly(lambda: L.AutoContrast())),
    "Equalization": (PICTURES, "float64", directly(lambda: L.Equalization())),
    "Solarization": (PICTURES, "float64", directly(lambda: L.Solarization(seed=1))),
}
RANDOM = {
    "RandomBrightness": 0.2,
    "RandomColorDegeneration": 0.2,
    "RandomContrast": 0.2,
    "RandomFlip": "horizontal",
    "RandomGrayscale": 0.5,
    "RandomInvert": 0.5,
    "RandomPosterization": 4,
    "RandomSaturation": 0.2,
    "RandomSharpness": 0.2,
    "RandomZoom": 0.2,
}
LAYERS |= {
    name: (PICTURES, "float64", directly(lambda name=name, value=value: getattr(L, name)(value, seed=1)))
    for name, value in RANDOM.items()
}


def classifier(arguments, dtype, make_features):
    def make():
        inputs = keras.Input(arguments.shape[1:], dtype=dtype)
        outputs = L.Dense(5, activation="softmax")(L.Flatten()(make_features(inputs)))
        model = keras.Model(inputs, outputs)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return make


@parametrize("name", LAYERS, first=["StringLookup", "TextVectorization"])
def test_each_layer(name):
    arguments, dtype, _ = LAYERS[name]
    data = tf.constant(arguments) if dtype == "string" else arguments
    check(classifier(*LAYERS[name]), data, CLASSES, places=[BATCH])


def table_of_features():
    """Columns of words, of whole numbers and of numbers, as a user's table has them."""
    inputs = {
        "color": keras.Input((1,), dtype="string", name="color"),
        "kind": keras.Input((1,), dtype="int64", name="kind"),
        "size": keras.Input((6,), dtype="float64", name="size"),
    }
    features = [
        L.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")(inputs["color"]),
        L.IntegerLookup(vocabulary=[1, 2, 3], output_mode="one_hot")(inputs["kind"]),
        inputs["size"],
    ]
    x = L.Dense(7, activation="relu")(L.Concatenate()(features))
    model = keras.Model(inputs, L.Dense(5, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


COLUMNS = {"color": tf.constant(WORDS[:, :1]), "kind": IDS[:, :1], "size": ROWS}


def test_a_table_of_words_and_numbers():
    check(table_of_features, COLUMNS, CLASSES, places=[BATCH, FILTERS])


@pytest.mark.full
def test_it_is_evaluated_and_predicted_with():
    model = make_model(table_of_features)
    expected = model.evaluate(COLUMNS, CLASSES, verbose=0, return_dict=True)
    found = mtf_hetero.keras.evaluate(model, COLUMNS, CLASSES, verbose=0, return_dict=True, **BATCH)
    assert found == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(
        mtf_hetero.keras.predict(model, COLUMNS, verbose=0, **BATCH), model.predict(COLUMNS, verbose=0), atol=1e-6
    )


def test_build_refuses_what_this_process_would_have_to_do():
    keras.utils.set_random_seed(SEED)
    build = mtf_hetero.keras.build(classifier(*LAYERS["Hashing"])())
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        ids = mtf.import_tf_tensor(mesh, IDS, mtf.Shape([mtf.Dimension("batch", COUNT), mtf.Dimension("ids", 4)]))
        with pytest.raises(NotImplementedError, match="AsString.*works on strings"):
            build(ids)

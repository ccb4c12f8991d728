"""Preprocessing layers within a model: texts, tables and images of `mtf_hetero.keras.fit` are as in Keras."""

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, check, make_model

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


def embedded(layer, x):
    return L.Flatten()(L.Embedding(12, 3)(layer(x)))


def of_words(x):
    return L.Concatenate()([embedded(L.StringLookup(vocabulary=["red", "what"]), x), embedded(L.Hashing(7, salt=3), x)])


def of_texts(x):
    """A recurrent layer, which leaves out what is beyond the text's end."""
    ids = L.TextVectorization(vocabulary=["red", "what"], output_sequence_length=3)(x)
    return L.LSTM(4)(L.Embedding(12, 3, mask_zero=True)(ids))


def of_pictures(x):
    smaller = [L.CenterCrop(5, 5), L.Resizing(5, 5), L.Pipeline([L.Rescaling(1 / 255), L.CenterCrop(5, 5)])]
    return L.Concatenate()([L.Equalization()(x)[:, :5, :5], *(layer(x) for layer in smaller)])


FEATURES = {  # arguments, their type, and what is made of them; `test_keras_coverage` traces more layers
    "words": (WORDS, "string", of_words),
    "texts": (WORDS[:, :1], "string", of_texts),
    "pictures": (PICTURES, "float64", of_pictures),
}


@pytest.mark.full
@pytest.mark.parametrize("name", FEATURES)
def test_layers(name):
    arguments, dtype, make_features = FEATURES[name]

    def make():
        inputs = keras.Input(arguments.shape[1:], dtype=dtype)
        outputs = L.Dense(5, activation="softmax")(L.Flatten()(make_features(inputs)))
        model = keras.Model(inputs, outputs)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    check(make, tf.constant(arguments) if dtype == "string" else arguments, CLASSES, places=[BATCH])


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


COLUMNS = {"color": tf.constant(WORDS[:16, :1]), "kind": IDS[:16, :1], "size": ROWS[:16]}


def test_a_table_of_words_and_numbers():
    check(table_of_features, COLUMNS, CLASSES[:16], places=[BATCH])


@pytest.mark.full
def test_it_is_evaluated_and_predicted_with():
    model = make_model(table_of_features)
    expected = model.evaluate(COLUMNS, CLASSES[:16], verbose=0, return_dict=True)
    found = mtf_hetero.keras.evaluate(model, COLUMNS, CLASSES[:16], verbose=0, return_dict=True, **BATCH)
    assert found == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(
        mtf_hetero.keras.predict(model, COLUMNS, verbose=0, **BATCH), model.predict(COLUMNS, verbose=0), atol=1e-6
    )


def test_build_refuses_what_this_process_would_have_to_do():
    inputs = keras.Input((4,), dtype="int64")
    build = mtf_hetero.keras.build(keras.Model(inputs, L.Hashing(7)(inputs)))
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        ids = mtf.import_tf_tensor(mesh, IDS, mtf.Shape([mtf.Dimension("batch", COUNT), mtf.Dimension("ids", 4)]))
        with pytest.raises(NotImplementedError, match="AsString.*works on strings"):
            build(ids)

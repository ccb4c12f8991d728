"""Embeddings: what `fit` and `build` give is what Keras gives, whatever is split; wrong ids are errors, in one line."""

import keras
import numpy as np
import pytest
import tiers
from fit_oracle import ONE, check, make_model
from keras import layers

import mtf_hetero.keras
from mtf_hetero import Layout, tf

VOCABULARY, LENGTH = 11, 3
DEVICES = {"devices": "cpu:0,cpu:1,cpu:2", "list_speed": [4, 2, 1]}
FOUR = "cpu:0,cpu:1,cpu:2,cpu:3"
OPTIMIZERS = {
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.02),
}


def sequences(count=18, dtype="int32", seed=0):
    """Ids and targets, with tokens that are twice in a batch; the last batch of seven has four."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, VOCABULARY, (count, LENGTH)).astype(dtype), rng.standard_normal((count, 2))


def words(optimizer="adam", dtype="int32"):
    """Makes a model of words."""

    def make():
        x = keras.Input((LENGTH,), dtype=dtype)
        y = layers.Dense(4, activation="tanh", name="hidden")(layers.Embedding(VOCABULARY, 5, name="words")(x))
        model = keras.Model(x, layers.Dense(2, name="head")(layers.Flatten()(y)))
        model.compile(OPTIMIZERS[optimizer](), "mse")
        return model

    return make


LAYOUTS = {
    "one": ONE,
    "vocabulary": {**DEVICES, "layout": "words/embeddings/0:all"},
    "none of the vocabulary": {
        "devices": DEVICES["devices"],
        "layout": Layout("all:3", "words/embeddings/0:all", sizes={"words/embeddings/0": [0, 2, 9]}),
    },
    "batch and vocabulary": {
        "devices": FOUR,
        "layout": Layout("a:2;b:2", "batch:a;words/embeddings/0:b", {"a": [3, 1], "b": [1, 4]}),
    },
    "batch and outputs": {
        "devices": FOUR,
        "layout": Layout("a:2;b:2", "batch:a;words/embeddings/1:b", {"a": [3, 1], "b": [1, 4]}),
    },
}


@pytest.mark.full
@pytest.mark.parametrize("place", [name for name in LAYOUTS if name != "one"])
def test_it_is_what_keras_does(place):
    """A negative id counts from the end. Keras squares rows of one token before it adds them up, and so does `fit`."""
    x, y = sequences(21)
    check(words(), np.where(x > 6, x - VOCABULARY, x), y, places=[LAYOUTS[place]], batch_size=7)


@pytest.mark.full
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adam"])
def test_a_token_twice_in_a_batch(optimizer):
    check(words(optimizer), *sequences(21), places=[LAYOUTS["vocabulary"]], batch_size=7)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_types_of_ids(dtype):
    """Keras takes int32 and int64 as they are, and makes int32 of all others."""
    x, y = sequences(dtype=dtype)
    x = x + np.asarray(0.7 if dtype.startswith("float") else 0, dtype)
    check(words(dtype=dtype), x, y, places=[LAYOUTS["vocabulary"]], batch_size=7, validation_data=(x[:8], y[:8]))


@pytest.mark.full
def test_an_int64_id_is_not_cut():
    """2^32 + 1 is not 1."""
    x, y = sequences(7, dtype="int64")
    x[3, 1] = 2**32 + 1
    assert_wrong(
        words(dtype="int64"), x, y, LAYOUTS["vocabulary"], r"id 4294967297 is not in \[0, 11\) of layer 'words'"
    )


WRONG = {  # ids, and what is said
    11: r"id 11 is not in \[0, 11\) of layer 'words'; give ids below its input_dim, or increase input_dim",
    2**31 - 1: r"id 2147483647 is not in \[0, 11\) of layer 'words'",
    -12: r"id -12 is not in \[-11, 11\) of layer 'words'",
}


@tiers.parametrize(
    ("wrong", "place"),
    [*((wrong, "vocabulary") for wrong in WRONG), (11, "one"), (11, "batch and outputs")],
    first=[(11, "vocabulary")],
)
def test_a_wrong_id_is_said_in_one_line(wrong, place):
    """TensorFlow raises an error too."""
    x, y = sequences(7)
    x[-1, 1] = wrong
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 11\)"):
        make_model(words()).fit(x, y, batch_size=7, verbose=0)
    assert_wrong(words(), x, y, LAYOUTS[place], WRONG[wrong])


def assert_wrong(make, x, y, place, line, **options):
    """Asserts that fit raises one line, and leaves the model's weights as they are."""
    model = make_model(make)
    before = model.get_weights()
    with pytest.raises(ValueError, match=line) as error:
        mtf_hetero.keras.fit(model, x, y, batch_size=7, verbose=0, **options, **place)
    assert "\n" not in str(error.value) and error.value.__suppress_context__
    for found, expected in zip(model.get_weights(), before):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.full
def test_wrong_ids_of_other_batches_and_layers():
    """A later, smaller batch, the validation data, and the second of two tables of one size, in an inner model."""
    (x, y), (wrong, of_wrong) = sequences(7), sequences(3)
    wrong[1, 2] = 30
    message = r"id 30 is not in \[0, 11\) of layer 'words'"
    both = np.concatenate([x, wrong]), np.concatenate([y, of_wrong])
    options = {"verbose": 0, **LAYOUTS["vocabulary"]}
    with pytest.raises(ValueError, match=message):
        mtf_hetero.keras.fit(make_model(words()), *both, batch_size=7, shuffle=False, **options)
    with pytest.raises(ValueError, match=message):
        mtf_hetero.keras.fit(make_model(words()), x, y, validation_data=(wrong, of_wrong), **options)

    def two():
        users, items = keras.Input((1,), dtype="int32", name="users"), keras.Input((1,), dtype="int32", name="items")
        inner = keras.Sequential([keras.Input((1,), dtype="int32"), layers.Embedding(5, 3, name="item")], name="tower")
        z = layers.Multiply()([layers.Embedding(5, 3, name="user")(users), inner(items)])
        model = keras.Model([users, items], layers.Dense(1)(layers.Flatten()(z)))
        model.compile("sgd", "mse")
        return model

    ids = np.arange(5)[:, None]
    data = {"users": ids, "items": np.where(ids == 3, 7, ids)}
    with pytest.raises(ValueError, match=r"id 7 is not in \[0, 5\) of layer 'tower/item'"):
        mtf_hetero.keras.fit(make_model(two), data, ids * 1.0, verbose=0, **ONE)


def test_a_wrong_label_is_not_taken_for_an_id():
    x = keras.Input((LENGTH,), dtype="int32")
    y = layers.Dense(4)(layers.Flatten()(layers.Embedding(VOCABULARY, 5)(x)))
    model = keras.Model(x, y)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="a label is 9, but the model has the classes 0 to 3"):
        mtf_hetero.keras.fit(model, sequences(4)[0], np.array([0, 1, 9, 2]), verbose=0, **ONE)

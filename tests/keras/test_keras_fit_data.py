"""Batches of `mtf_hetero.keras.fit`: weights of examples, dicts of inputs, many shapes, and data that are wrong."""

import random
import threading
import weakref

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, ONE, check, images, make_model, same, state

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.keras.epochs import LEFT
from mtf_hetero.keras.loop import Loop

X, Y = images()
WEIGHTS = np.random.default_rng(1).uniform(0.1, 2, len(X))
NUMBERS = np.random.default_rng(2)


def compiled():
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, activation="relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model


WEIGHED = {
    "training alone": {"sample_weight": WEIGHTS, "validation_data": (X[:9], Y[:9])},
    "tests alone": {"validation_data": (X[:9], Y[:9], WEIGHTS[:9])},
    "a data set of tests": {
        "validation_data": tf.data.Dataset.from_tensor_slices((X[:9], Y[:9], WEIGHTS[:9])).batch(4),
        "sample_weight": WEIGHTS,
    },
}


@pytest.mark.full
@pytest.mark.parametrize("name", WEIGHED)
def test_each_batch_decides_what_is_weighed(name):
    check(compiled, X, Y, places=[BATCH], **WEIGHED[name])


A, B = NUMBERS.random((17, 3)), NUMBERS.random((17, 3))


def subtracts(structure):
    """Return what makes a model of two inputs, which are not alike, in a structure."""

    def make():
        first, second = keras.Input((3,), name="b"), keras.Input((3,), name="a")
        outputs = keras.layers.Dense(2)(keras.layers.Subtract()([first, keras.layers.Dense(3)(second)]))
        model = keras.Model(structure(first, second), outputs)
        model.compile("sgd", "mse")
        return model

    return make


@pytest.mark.full
@pytest.mark.parametrize(
    ("structure", "data"),
    [
        (lambda first, second: {"left": first, "right": second}, {"left": A, "right": B}),
        (lambda first, second: [first, second], {"a": A, "b": B, "more": A}),
        (lambda first, second: {"x": first, "y": [second]}, {"x": A, "y": [B]}),
    ],
)
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_inputs_in_dicts(structure, data):
    check(subtracts(structure), data, NUMBERS.random((17, 2)), places=[BATCH])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_a_dict_goes_by_its_keys_and_not_by_the_names_of_inputs():
    make = subtracts(lambda first, second: {"a": first, "b": second})
    check(make, {"a": A, "b": B}, NUMBERS.random((17, 2)), places=[ONE])
    with pytest.raises(ValueError, match='Missing data for input "b"'):
        mtf_hetero.keras.fit(make(), {"a": A, "c": B}, B[:, :2], verbose=0, **ONE)


class Shuffled(keras.utils.PyDataset):
    """Batches that Python's random numbers choose."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        chosen = random.sample(range(17), 8)
        return X[chosen], Y[chosen]


@pytest.mark.full
def test_random_batches_are_those_that_keras_has():
    check(compiled, Shuffled(), batch_size=None, places=[ONE])


@pytest.mark.parametrize("data", ["arrays", "batches of Python", "a data set"])
def test_iterators_of_passes_are_freed_in_a_thread(data, monkeypatch):
    """TensorFlow may wait as long as a pass took, when it frees an iterator."""
    freed, seen, note = [], set(), Loop._note_position

    def watch(loop, position):
        if id(position.batches) not in seen:
            seen.add(id(position.batches))
            weakref.finalize(position.batches, lambda: freed.append(threading.current_thread().name))
        return note(loop, position)

    monkeypatch.setattr(Loop, "_note_position", watch)
    options = {"epochs": 3, "shuffle": False, "validation_data": (X[:9], Y[:9]), "verbose": 0, **ONE}
    given = {"arrays": (X, Y), "batches of Python": (Shuffled(),)}
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    mtf_hetero.keras.fit(compiled(), *given.get(data, (dataset,)), **options)
    for thread in threading.enumerate():
        if thread.name == LEFT:
            thread.join()
    assert len(freed) >= 4 and set(freed) == {LEFT}


def test_dropout_differs_from_fit_to_fit_and_not_with_the_same_seed():
    def make():
        inputs = keras.Input((6, 6, 3))
        x = keras.layers.Dropout(0.5)(keras.layers.Flatten()(inputs))
        model = keras.Model(inputs, keras.layers.Dense(5)(x))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    def losses(model):
        options = {"batch_size": 17, "verbose": 0, **ONE}
        model.optimizer.learning_rate = 0.0
        return [mtf_hetero.keras.fit(model, X, Y, **options).history["loss"][0] for _ in range(2)]

    first, again = losses(make_model(make)), losses(make_model(make))
    assert first == again
    assert first[0] != first[1]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_wrong_data_are_refused_in_one_line():
    fit, predict, model = mtf_hetero.keras.fit, mtf_hetero.keras.predict, make_model(compiled)
    classes, empty = (
        "a label is 7, but the model has the classes 0 to 4; correct the labels",
        "the data of model '.*' are",
    )
    tested = {"validation_data": (X, np.full(17, 7))}
    divided = {"devices": "cpu:0,cpu:1", "layout": "batch"}
    for run, match, data, options in (
        (fit, classes, (X, np.full(17, 7)), ONE),
        (fit, classes, (X, Y), {**tested, **ONE}),
        (fit, "a label is -1, but", (X, Y * 0 - 1), divided),
        (fit, f"{empty} empty; give at least one batch", (X[:0], Y[:0]), ONE),
        (fit, "x is None; give the data, as for model.fit", (), ONE),
        (predict, f"{empty} empty; give at least one batch", (X[:0],), ONE),
    ):
        with pytest.raises(ValueError, match=match) as caught:
            run(model, *data, verbose=0, **options)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.full
def test_names_of_arguments_and_a_tuple_of_arrays():
    one, other = make_model(compiled), make_model(compiled)
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **ONE}
    mtf_hetero.keras.fit(one, x=X, y=Y, **options)
    mtf_hetero.keras.fit(model=other, x=(X, Y), **options)
    same(state(one), state(other), 0)


class Pooled(keras.Model):
    """The mean of the embeddings of so many words as each example has."""

    def __init__(self):
        super().__init__()
        self.words, self.head = keras.layers.Embedding(11, 6), keras.layers.Dense(1)
        self.words.build((None,))
        self.head.build((None, 6))

    def call(self, ids):
        return self.head(tf.reduce_mean(tf.ragged.map_flat_values(self.words, ids), 1))


def sparse_data():
    rows, columns = np.nonzero(np.random.default_rng(3).random((17, 9)) < 0.3)
    places = np.stack([rows, columns], 1)
    return tf.sparse.SparseTensor(places, np.arange(len(places), dtype="float32"), (17, 9))


def sparse_model():
    inputs = keras.Input((9,), sparse=True)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, activation="tanh")(inputs)))


def ragged_data():
    counts = np.random.default_rng(3).integers(1, 5, 17)
    return tf.RaggedTensor.from_row_lengths(np.arange(counts.sum(), dtype="int32") % 11, counts)


@pytest.mark.full
@pytest.mark.parametrize(("make", "inputs"), [(sparse_model, sparse_data), (Pooled, ragged_data)])
def test_inputs_with_another_number_of_elements_in_each_batch(make, inputs):
    data = tf.data.Dataset.from_tensor_slices((inputs(), np.arange(17, dtype="float32")[:, None])).batch(5)

    def compiled():
        model = make()
        model.compile("adam", "mse")
        return model

    check(compiled, data, places=[BATCH])

"""A trace lives as long as Keras's: until `compile`, a step computes what it computed when it was traced."""

import functools

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, ONE, images, make_model, network, same, state
from keras_oracle import floatx
from tiers import parametrize

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.keras import imported, loop

DATA = images()
OPTIONS = {"batch_size": 8, "shuffle": False, "verbose": 0}


class Weighted(keras.Model):
    """A model whose loss reads an attribute."""

    weight = 0.25

    def compute_loss(self, *arguments, **options):
        return self.weight * super().compute_loss(*arguments, **options)


def plain():
    model = network()
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def weighted():
    inner = network()
    model = Weighted(inner.inputs, inner.outputs)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def dropping():
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.Dropout(0.0, seed=1)(keras.layers.Flatten()(inputs))
    model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def freeze(model):
    model.trainable = False


def freeze_a_layer(model):
    model.layers[1].trainable = False


def weigh(model):
    model.weight = 1.0


def drop(model):
    model.layers[2].rate = 0.9


def compile_again(model):
    model.layers[1].trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy")


def make_the_function_again(model):
    model.layers[1].trainable = False
    model.make_train_function(force=True)


def two_fits(make, change, fit, evaluate, *, between=True):
    model = make_model(make)
    histories = [fit(model, *DATA, **OPTIONS).history]
    change(model)
    if between:  # its trace is newer than the change
        histories.append({"loss": evaluate(model, *DATA, batch_size=8, verbose=0, return_dict=True)["loss"]})
    histories.append(fit(model, *DATA, **OPTIONS).history)
    return histories, state(model)


@parametrize(
    ("make", "change"),
    [
        (plain, freeze),
        (plain, freeze_a_layer),
        (plain, compile_again),
        (plain, make_the_function_again),
        (weighted, weigh),
        (dropping, drop),
    ],
    first=[(dropping, drop)],
)
def test_changes_between_two_fits_have_the_effect_that_they_have_in_keras(make, change):
    with floatx(tf.float64):
        expected, after = two_fits(make, change, keras.Model.fit, keras.Model.evaluate)
        fit, evaluate = mtf_hetero.keras.fit, mtf_hetero.keras.evaluate
        found, ours = two_fits(
            make, change, lambda *x, **o: fit(*x, **o, **BATCH), lambda *x, **o: evaluate(*x, **o, **BATCH)
        )
        for one, other in zip(found, expected, strict=True):
            same(one, other, 1e-9)
        same(ours, after, 1e-9)


@pytest.mark.full
@pytest.mark.parametrize("place", [ONE, BATCH])
@pytest.mark.parametrize(("make", "change"), [(plain, freeze_a_layer), (weighted, weigh)])
def test_a_trace_that_is_newer_than_keras_s_is_found(monkeypatch, make, change, place):
    """The check of the first step compares with Keras's own function, which is as old as Keras has it."""
    with floatx(tf.float64):
        model = make_model(make)
        fit = functools.partial(mtf_hetero.keras.fit, model, *DATA, **OPTIONS, **place, verify=True)
        fit()
        change(model)
        fit()  # as in Keras
        before = state(model)
        monkeypatch.setattr(loop, "find_traced", lambda model, kinds: imported._new_traced(model))
        with pytest.raises(
            mtf_hetero.StepDiffersError, match="the trace of this step and that of model .* in Keras are"
        ):
            fit()
        same(state(model), before, 0)


def test_traces_are_kept_until_compile_and_hold_no_session():
    with floatx(tf.float64):
        model = make_model(dropping)
        calls = []
        model.train_step = lambda data, step=model.train_step: (calls.append(1), step(data))[1]
        for _ in range(2):
            mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **ONE)
        traces = len(calls)
        assert traces
        functions, traced = vars(model)[imported._TRACED]
        assert functions[0] is model.train_function
        mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **BATCH)
        assert len(calls) == traces
        model.compile("sgd", "sparse_categorical_crossentropy")
        mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **ONE)
        assert len(calls) > traces
        assert vars(model)[imported._TRACED][1] is not traced


@pytest.mark.full
def test_a_refused_step_may_be_changed_and_tried_again():
    class Refusing(keras.Model):
        refuses = True

        def train_step(self, data):
            if self.refuses:
                tf.py_function(lambda: None, [], [])
                tf.numpy_function(lambda x: x, [data[0]], tf.float32)
            return super().train_step(data)

    def make():
        inner = network()
        model = Refusing(inner.inputs, inner.outputs)
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    model = make_model(make)
    data = DATA[0].astype(np.float32), DATA[1]
    with pytest.raises(NotImplementedError):
        mtf_hetero.keras.fit(model, *data, **OPTIONS, **ONE)
    model.refuses = False
    mtf_hetero.keras.fit(model, *data, **OPTIONS, **ONE)

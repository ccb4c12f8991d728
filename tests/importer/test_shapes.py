"""Kinds of batches that share a trace, whose shapes are inferred for each kind."""

import keras
import numpy as np
import pytest
from import_oracle import BATCH

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.importer import reader
from mtf_hetero.importer.tracing import Traced

L = keras.layers


def data(count, length):
    rng = np.random.default_rng(10 * count + length)
    return rng.standard_normal((count, length, 6)), rng.integers(0, 3, count)


def network():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, 6), dtype="float64")
    x = L.Conv1D(8, 3, padding="same", activation="relu", dtype="float64")(inputs)
    x = L.LayerNormalization(dtype="float64")(x)
    x = L.GlobalAveragePooling1D(dtype="float64")(x)
    model = keras.Model(inputs, L.Dense(3, activation="softmax", dtype="float64")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(dtype="float64")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


KINDS = [(7, 5), (7, 8), (3, 4), (7, 5)]


@pytest.mark.full
def test_kinds_share_a_trace(monkeypatch):
    options = {"steps_per_epoch": len(KINDS), "verbose": 0, "shuffle": False}
    expected, model, traces = network(), network(), []
    expected.fit((data(*kind) for kind in KINDS), **options)
    train_step = model.train_step
    monkeypatch.setattr(model, "train_step", lambda batch: traces.append(batch[0].shape.as_list()) or train_step(batch))
    mtf_hetero.keras.fit(model, (data(*kind) for kind in KINDS), **options, **BATCH)
    assert traces == [[None, None, 6]]  # as Keras has them, of a generator
    for mine, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


def test_a_kind_that_cannot_share_a_trace_has_its_own():
    """The program needs a known size, so TensorFlow cannot trace it for an open one."""
    traces = []

    def step(x):
        traces.append(x.shape.as_list())
        return tf.reduce_sum(x) / int(x.shape[0])

    traced = Traced(step, relaxes=True)
    for n in (4, 2, 3):
        program = traced.program((np.ones((n, 2)),))
        assert [value.shape for value in program.feeds] == [(n, 2)]
    assert traces == [[4, 2], [None, 2], [2, 2], [3, 2]]


def test_shapes_within_functions_and_lookups():
    """Sizes are inferred through variables, functions and shapes that the step computes."""
    table = tf.compat.v2.Variable(np.random.default_rng(0).standard_normal((9, 4)))
    inner = tf.compat.v2.function(lambda x: tf.reshape(x, [tf.shape(x)[0], -1, 2]) * 2.0)

    traces = []

    def step(ids):
        traces.append(ids.shape.as_list())
        return tf.reduce_sum(inner(tf.gather(table, ids)), axis=[1, 2])

    traced = Traced(step, relaxes=True)
    for n in (4, 2, 3):
        ids = np.arange(n)
        program = traced.program((ids,))
        assert [value.shape for value in program.results] == [(n,)]
    assert traces == [[4], [None]]


def test_open_shapes_are_those_of_a_trace_for_known_sizes():
    kernel = tf.Variable(np.ones((3, 2, 4)))

    def step(x):
        y = tf.nn.relu(tf.nn.conv1d(x, kernel, 2, "SAME"))
        flat = tf.reshape(y, [tf.shape(y)[0], tf.shape(y)[1] * y.shape[2]])
        kernel.assign_add(tf.ones_like(kernel))
        return flat, tf.range(tf.shape(x)[1])

    relaxed = Traced(step, relaxes=True)
    for sizes in ((4, 6, 2), (5, 7, 2), (3, 8, 2)):
        found, known = (traced.program((np.ones(sizes),)) for traced in (relaxed, Traced(step)))
        assert [value.shape for value in found.results] == [value.shape for value in known.results]
        assert found.variables[0].after.shape == kernel.shape


def test_a_kind_traces_no_rule_that_an_earlier_kind_had():
    def step(x):
        average.assign(average * 0.5 + tf.reduce_mean(x))
        average.assign_add(tf.reduce_sum(x))

    average, traced = tf.Variable(np.float64(0)), Traced(step, relaxes=True)
    traced.program((np.ones((4, 2)),))
    count = reader._traced.cache_info().misses
    for n in (2, 3):
        traced.program((np.ones((n, 2)),))
    assert reader._traced.cache_info().misses == count

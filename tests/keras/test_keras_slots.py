"""`mtf_hetero.keras.fit` with slots: each device computes its part of a batch in parts, and the results are Keras's."""

import os
import signal
import threading

import keras
import numpy as np
import pytest
import staged_models
from batch_oracle import Blind, Undisturbed
from fit_oracle import BATCH, FILTERS, ONE, check, images, make_model, network, same, state
from slow_links import assert_pipeline, plan_for_slow_links
from steps import adam, crossentropy
from tiers import losing_workers, parametrize

import mtf_hetero.keras
from mtf_hetero.cluster import LocalCluster

PLACES = {
    "one device": {**ONE, "layout": "batch", "slots": 3},
    "three devices": {**BATCH, "slots": [3, 2, 1]},
    "filters": {**FILTERS, "slots": 2},
    "pipeline": {**BATCH, "layout": "stages", "slots": 2},
}


def compiled():
    model = network(dropout=0.3)
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0, use_ema=True)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@parametrize("name", PLACES, first=["three devices", "pipeline"])
def test_results(name):
    """Batch norm, dropout, a clipped optimizer with averages, tests, and a last batch of one example."""
    x, y = images()
    check(compiled, x, y, places=[PLACES[name]], validation_data=(x[:9], y[:9]))


def test_sizes_are_those_of_devices():
    x, y = images(16)
    history = mtf_hetero.keras.fit(make_model(compiled), x, y, batch_size=8, verbose=0, **PLACES["three devices"])
    assert history.layout["batch"] == {"cpu:0": 5, "cpu:1": 2, "cpu:2": 1}


def test_a_batch_that_does_not_fit_is_computed_in_parts(capfd):
    """One device with a limit accumulates gradients; losses are Keras's."""
    x, y = np.random.default_rng(1).normal(size=[96, 4]).astype("float32"), np.arange(96) % 3

    def wide():
        layers = [keras.layers.Dense(2048, "tanh"), keras.layers.Dense(3, "softmax")]
        model = keras.Sequential([keras.Input([4]), *layers])
        model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
        return model

    reference, model = make_model(wide), make_model(wide)
    options = {"epochs": 2, "batch_size": 48, "verbose": 0, "shuffle": False}
    expected = reference.fit(x, y, **options).history["loss"]
    history = mtf_hetero.keras.fit(model, x, y, devices="cpu:0", memory_limit=[0.0007], **options | {"verbose": 2})
    np.testing.assert_allclose(history.history["loss"], expected, rtol=1e-5)
    assert "Layout: cpu:0 alone, in 4 parts; the whole batch does not fit; chosen in " in capfd.readouterr().out


@pytest.mark.full
def test_a_lost_worker_takes_its_slots_along():
    """The other one goes on, with slots of its own."""
    x, y = images(64)

    def lose(epoch, logs):
        if epoch == 1:
            os.kill(local.pids[1], signal.SIGKILL)

    local = LocalCluster([1.0, 1.0], report=lambda line: None)
    reference, model = make_model(compiled), make_model(compiled)
    options = {"epochs": 4, "batch_size": 8, "verbose": 0, "shuffle": False}
    expected = reference.fit(x, y, **options).history["loss"]
    with local as cluster:
        lost = keras.callbacks.LambdaCallback(on_epoch_end=lose)
        place = {"workers": cluster, "layout": "batch", "slots": "3,2", "list_speed": [3, 1], "wait_for_workers": 0.1}
        history = mtf_hetero.keras.fit(model, x, y, callbacks=[lost], **options, **place)
    assert history.history["loss"] == pytest.approx(expected, rel=1e-5)
    assert history.layout["batch"] == {"worker:0/cpu:0": 8} and len(history.changes) == 1
    same(state(model), state(reference), 1e-4)


def blocks():
    model = staged_models.residual()
    model.compile(adam()(), crossentropy(), metrics=["accuracy"])
    return model


RNG = np.random.default_rng(0)
IN_BLOCKS = Undisturbed(
    blocks, RNG.standard_normal((99, 12)), RNG.integers(0, 5, 99), epochs=2, batch_size=16, shuffle=False, verbose=0
)


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_a_worker_of_a_pipeline_is_lost(seconds, workers, monkeypatch):
    """The other ones go on with a pipeline of two, from the numbers of all steps until then."""
    plan_for_slow_links(monkeypatch, [2, 1, 1])

    def lose():
        threading.Timer(seconds, os.kill, [workers.pids[1], signal.SIGKILL]).start()

    try:
        history = IN_BLOCKS.check(Blind, {5: lose}, workers=workers.addresses, layout="auto", wait_for_workers=1)
    finally:
        workers.restart(1)
    (change,) = history.changes
    assert change["why"] == f"worker 1 ({workers.addresses[1]}) was lost"
    assert_pipeline(history.layout, "worker:0/cpu:0", "worker:2/cpu:0")

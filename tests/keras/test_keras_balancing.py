"""`mtf_hetero.keras.fit` gives devices other shares: each batch has the logs of an undisturbed training."""

import concurrent.futures
import itertools
import math
import re
import time

import keras
import pytest
from batch_oracle import Blind, Undisturbed
from estimator_oracle import log_lines
from fit_oracle import BATCH, images, make_model, same
from keras_oracle import floatx
from tiers import on_workers

import mtf_hetero.keras
from mtf_hetero import Layout, tf
from mtf_hetero.cluster import LocalCluster
from mtf_hetero.cost import trace
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.placement import placing
from mtf_hetero.planner import resizing
from mtf_hetero.planner.choice import Choice
from mtf_hetero.planner.plan import Plan
from mtf_hetero.training import Policy, pace, rebalancing

OPTIONS = {"epochs": 5, "batch_size": 8, "shuffle": False, "verbose": 0}
CUT = 8  # measurements, after which the first device is slower


def compiled():
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(7, 3, use_bias=False)(inputs))
    x = keras.layers.Dropout(0.4, seed=5)(keras.layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def begin_at_once(work, name):
    done = concurrent.futures.Future()
    done.set_result(work())
    return done


@pytest.fixture
def simulated(monkeypatch):
    """Each step is traced. The devices are busy as 4 : 2 : 1, and from a step on the first one for longer."""
    count = itertools.count()

    def usage(events, devices):
        busy = (1600.0 if next(count) > CUT else 400.0), 200.0, 100.0
        return {device: trace.Usage(each, 0.0, 0.0) for device, each in zip(devices, busy, strict=True)}

    monkeypatch.setattr(trace, "usage", usage)
    monkeypatch.setattr(pace, "_MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(pace, "_MOST_COST", math.inf)
    monkeypatch.setattr(rebalancing.threads, "begin", begin_at_once)
    monkeypatch.setattr(resizing, "_CPU", (1e7, 1e7))  # a step of this size is no overhead


UNDISTURBED = Undisturbed(compiled, *images(40), **OPTIONS)


@pytest.mark.usefixtures("simulated")
def test_a_device_that_becomes_slower_gets_a_smaller_share(monkeypatch):
    lines = log_lines(monkeypatch)
    (change,) = UNDISTURBED.check(**BATCH).changes
    assert change["step"] == pace.WARM_UP_STEPS + CUT + 1 + 4  # seen in three of the five before the last
    assert change["why"].startswith("cpu:0 is 4.00x as slow as at the beginning, and a step is predicted to take ")
    assert change["sizes_before"] == {"batch": [5, 2, 1]}
    assert change["sizes"]["batch"][0] < 4
    assert (change["source"], change["repeated_steps"], change["devices"]) == ("memory", 0, "cpu:0, cpu:1, cpu:2")
    (line,) = (line for line in lines if "training continues" in line)
    assert line.startswith(f"{change['why']}: training continues from step {change['step']} (memory) after ")
    assert line.endswith(f" s, with batch {', '.join(map(str, change['sizes']['batch']))}")


def make_plan(seconds, *devices):
    layout = Layout([("all", len(devices))], [("batch", "all")] if devices[1:] else ())
    return Plan(devices, layout, seconds, ("cpu:0", 1.0), 0.0, (), (0,) * len(devices), {})


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("is_tried", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_split_that_was_not_tried_is_left_if_it_is_slower_than_one_device(monkeypatch, is_tried):
    """Steps take 400 simulated seconds, and one device alone takes 1."""
    plans = {"alone": make_plan(1.0, "cpu:0"), "plan": make_plan(0.5, "cpu:0", "cpu:1", "cpu:2")}
    trials = {"plan": (0.5, 0.5)} if is_tried else {}
    chosen = Choice("plan", plans, Machines((Machine("cpu:0", 1.0, 1.0),)), trials, lines=("Layout: a plan",))
    monkeypatch.setattr(placing.auto, "choose", lambda *args, **options: chosen)
    found = UNDISTURBED.check(devices=plans["plan"].devices, layout="auto")
    if is_tried:
        assert all("slow as" in change["why"] for change in found.changes)
        return
    (change,) = found.changes
    assert change["why"].startswith(
        "a step takes 400 s, on cpu:0 alone 1.00 s, and a step is predicted to take 100% less"
    )
    assert (change["devices_before"], change["devices"]) == ("cpu:0, cpu:1, cpu:2", "cpu:0")
    assert (change["sizes"], found.layout) == ({}, {})


@pytest.mark.full
@pytest.mark.usefixtures("simulated")
def test_shares_stay_if_that_is_asked():
    assert UNDISTURBED.check(**BATCH, rebalance="off").changes == []


def larger():
    inputs = keras.Input((24, 24, 3))
    x = keras.layers.Conv2D(48, 3, activation="relu")(keras.layers.Conv2D(16, 3, activation="relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, 0.9), loss)
    return model


class Cutting(Blind):
    """Cuts a worker's quota once the devices are known, and ends the training after some steps at other shares."""

    def __init__(self, workers, lines):
        super().__init__()
        self.workers, self.lines, self.begin, self.is_cut = workers, lines, time.monotonic(), False

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if not self.is_cut and time.monotonic() - self.begin > 20:
            self.workers.limit(1, 0.04)
            self.is_cut = True

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = any("training continues" in line for line in self.lines)


@on_workers
@pytest.mark.full
def test_shares_follow_a_quota(monkeypatch):
    data, options = images(64, size=24), {"batch_size": 16, "shuffle": False, "verbose": 0}
    workers = LocalCluster([0.3, 0.3], report=lambda line: None)
    with workers, floatx(tf.float64):
        model, callback = make_model(larger), Cutting(workers, log_lines(monkeypatch))
        place = {"workers": workers.addresses, "layout": "batch"}
        history = mtf_hetero.keras.fit(model, *data, epochs=300, callbacks=[callback], **options, **place)
    change = history.changes[0]
    assert change["why"].startswith("worker:1/cpu:0 is ")
    assert change["sizes"]["batch"][0] > change["sizes"]["batch"][1]
    assert change["sizes_before"] == {"batch": [8, 8]}
    with floatx(tf.float64):
        model, reference = make_model(larger), Blind()
        model.fit(*data, epochs=len(callback.logs) // 4, callbacks=[reference], **options)
        for found, expected in zip(callback.logs, reference.logs, strict=True):
            same(found, expected, 1e-12)


@pytest.mark.parametrize("rebalance", ["soon", 0, -1, True, None])
def test_a_wrong_rebalance_is_refused(rebalance):
    with pytest.raises(ValueError, match=f"^rebalance is {re.escape(repr(rebalance))}; "):
        Policy.parse(60.0, 1, rebalance)

"""`mtf_hetero.function` gives what TensorFlow gives: training steps of many kinds, on one device and uneven layouts."""

import pytest
import tiers
from import_oracle import BATCH, ONE, check, split
from loops import LOOPS, alignment
from steps import STEPS

FILTERS = {**BATCH, "layout": "filters"}
SINGLE = {"grouped": 1e-5, "muon": 1e-5}  # in float32
# Its batch norms of 14 values magnify roundings: images off by 2e-16 move TensorFlow's own variables by 7e-10
SENSITIVE = {"mobile": 1e-8}
SLOW = {"mobile"}
SPLITS = {
    "perceptron": ["sequential/dense/kernel/1", "sequential/dense_1/kernel/1"],
    "convolutional, momentum": [
        *("sequential/first/kernel/3", "sequential/second/kernel/3", "sequential/dense/kernel/1", "x/1")
    ],
    "transformer": ["attention/query/kernel/1", "attention/query/kernel/2", "wide/kernel/1", "words/embeddings/1"],
    "transformer, momentum": ["words/embeddings/0", "attention/query/kernel/1"],
    "masked": ["attention/query/kernel/1"],
    "LSTM": ["sequential/cell/lstm_cell/kernel/1", "sequential/cell/lstm_cell/recurrent_kernel/0"],
    "GRU": ["sequential/cell/gru_cell/recurrent_kernel/0"],
    "own": ["own/kernel/1", "x/1"],
    "odd": ["x/1"],
    "depthwise": ["conv2d/kernel/3"],
    "tape": ["w/1"],
}
FIRST = [("perceptron", "sequential/dense/kernel/1"), ("transformer, momentum", "attention/query/kernel/1")]


def tolerance(name):
    return {**SINGLE, **SENSITIVE}.get(name, 1e-9)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "tape" else pytest.mark.slow if name in SLOW else pytest.mark.full)
        for name in STEPS
    ],
)
def test_one_device_and_batch(name):
    check(STEPS[name], ONE, BATCH, tolerance=tolerance(name))


@pytest.mark.full
@pytest.mark.parametrize("name", LOOPS)
def test_loops_without_keras(name):
    places = [split("batch"), split("source/1")] if name == "heat" else [BATCH]
    check(LOOPS[name], ONE, *places, steps=5)


@pytest.mark.full
def test_functions_that_tensorflow_makes_in_an_older_way():
    check(alignment, ONE, BATCH, tolerance=1e-5)


@tiers.parametrize("name", ["convolutional, momentum", "perceptron, momentum"], first=["convolutional, momentum"])
def test_batch(name):
    check(STEPS[name], BATCH)


@tiers.parametrize(
    ("name", "dimension"), [(name, dimension) for name, found in SPLITS.items() for dimension in found], first=FIRST
)
def test_a_dimension_of_weights(name, dimension):
    (divided,) = check(STEPS[name], split(dimension))
    assert divided.layout.split(dimension, 7) == (4, 2, 1)


@pytest.mark.full
@pytest.mark.parametrize("name", ["perceptron", "convolutional, momentum", "transformer", "LSTM", "GRU"])
def test_filters(name):
    check(STEPS[name], FILTERS)


@pytest.mark.full
@pytest.mark.parametrize("name", ["perceptron", "transformer", "tape"])
def test_five_steps(name):
    check(STEPS[name], BATCH, steps=5)

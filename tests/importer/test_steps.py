"""`mtf_hetero.function` gives what TensorFlow gives: training steps of many kinds, on one device and uneven layouts."""

import pytest
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
BY_FILTERS = ("perceptron", "convolutional, momentum", "transformer", "LSTM", "GRU")
LONG = ("perceptron", "transformer", "tape")  # five steps


def tolerance(name):
    return {**SINGLE, **SENSITIVE}.get(name, 1e-9)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "tape" else pytest.mark.slow if name in SLOW else pytest.mark.full)
        for name in STEPS
    ],
)
def test_every_place(name):
    """One device, the batch, and dimensions of weights: they share what TensorFlow gives."""
    dims = SPLITS.get(name, [])
    places = [ONE, BATCH, *map(split, dims), *([FILTERS] if name in BY_FILTERS else [])]
    found = check(STEPS[name], *places, tolerance=tolerance(name), steps=5 if name in LONG else 3)
    for dim, divided in zip(dims, found[2:]):
        assert divided.layout.split(dim, 7) == (4, 2, 1)


def test_batch():
    check(STEPS["convolutional, momentum"], BATCH)


@pytest.mark.parametrize(
    ("name", "dimension"),
    [("perceptron", "sequential/dense/kernel/1"), ("transformer, momentum", "attention/query/kernel/1")],
)
def test_a_dimension_of_weights(name, dimension):
    (divided,) = check(STEPS[name], split(dimension))
    assert divided.layout.split(dimension, 7) == (4, 2, 1)


@pytest.mark.full
@pytest.mark.parametrize("name", LOOPS)
def test_loops_without_keras(name):
    places = [split("batch"), split("source/1")] if name == "heat" else [BATCH]
    check(LOOPS[name], ONE, *places, steps=5)


@pytest.mark.full
def test_functions_that_tensorflow_makes_in_an_older_way():
    check(alignment, ONE, BATCH, tolerance=1e-5)

"""`mtf_hetero.function` gives what TensorFlow gives: training steps of many kinds, on one device and uneven layouts."""

import tiers
from image_steps import NETWORKS
from import_oracle import BATCH, ONE, check, split
from steps import STEPS

FILTERS = {**BATCH, "layout": "filters"}
TWO = {**BATCH, "devices": "cpu:0,cpu:1", "list_speed": [2, 1]}
RECIPES = [
    *(("network", recipe) for recipe in ("spatial", "filters", "even", "hybrid")),
    *(("unet", recipe) for recipe in ("spatial", "filters")),
    ("pools", "spatial"),
]
SPLITS = {
    "perceptron": ["sequential/dense/kernel/1", "sequential/dense_1/kernel/1"],
    "convolutional": ["sequential/second/kernel/3", "sequential/dense/kernel/1", "x/1"],
    "transformer": ["attention/query/kernel/2", "attention/query/kernel/1", "words/embeddings/0"],
    "LSTM": ["sequential/cell/lstm_cell/kernel/1", "sequential/cell/lstm_cell/recurrent_kernel/0"],
    "GRU": ["sequential/cell/gru_cell/recurrent_kernel/0"],
    "tape": ["w/1"],
}
BY_FILTERS = ("perceptron", "convolutional", "transformer", "LSTM", "GRU")


@tiers.parametrize("name", STEPS, first=["tape"])
def test_every_place(name):
    """One device, the batch, and dimensions of weights: they share what TensorFlow gives."""
    dims = SPLITS.get(name, [])
    places = [ONE, BATCH, *map(split, dims), *([FILTERS] if name in BY_FILTERS else [])]
    found = check(STEPS[name], *places)
    for dim, divided in zip(dims, found[2:]):
        assert divided.layout.split(dim, 7) == (4, 2, 1)


@tiers.parametrize(("name", "recipe"), RECIPES, first=[("network", "spatial")])
def test_images_and_volumes_by_recipes(name, recipe):
    make, tolerance = NETWORKS[name]
    place = {"devices": TWO["devices"], "layout": "even"} if recipe == "even" else {**TWO, "layout": recipe}
    (divided,) = check(make, place, tolerance=tolerance)
    assert divided.layout.rules

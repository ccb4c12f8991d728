"""Steps with images and volumes give what Keras gives, however their height, channels or filters are split."""

import pytest
import tiers
from image_steps import CONVOLUTIONS, NETWORKS
from import_oracle import BATCH, check, split

TWO = {**BATCH, "devices": "cpu:0,cpu:1", "list_speed": [2, 1]}
RECIPES = [
    *(("network", recipe) for recipe in ("spatial", "filters", "even", "hybrid")),
    *(("unet", recipe) for recipe in ("spatial", "filters")),
    ("pools", "spatial"),
]


@tiers.parametrize(("name", "recipe"), RECIPES, first=[("network", "spatial")])
def test_recipes(name, recipe):
    make, tolerance = NETWORKS[name]
    place = {"devices": TWO["devices"], "layout": "even"} if recipe == "even" else {**TWO, "layout": recipe}
    (divided,) = check(make, place, tolerance=tolerance)
    assert divided.layout.rules


@pytest.mark.full
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(kind):
    make, dims = CONVOLUTIONS[kind]
    check(make, BATCH, *map(split, dims))

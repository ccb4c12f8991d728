"""Steps with images and volumes give what Keras gives, however their height, channels or filters are split."""

import tiers
from image_steps import CONVOLUTIONS, NETWORKS
from import_oracle import BATCH, check, split

TWO = {**BATCH, "devices": "cpu:0,cpu:1", "list_speed": [2, 1]}


def recipe(name, place=TWO):
    """A place with a named layout."""
    return {**place, "layout": name} if name != "even" else {"devices": place["devices"], "layout": "even"}


@tiers.parametrize(
    ("name", "way"),
    [
        *((name, way) for name in NETWORKS for way in ("batch", "spatial", "filters", "even")),
        ("network", "hybrid"),  # which needs a dense layer
    ],
    first=[("network", "spatial"), ("network", "hybrid")],
)
def test_recipes(name, way):
    make, tolerance = NETWORKS[name]
    (divided,) = check(make, recipe(way), tolerance=tolerance)
    assert divided.layout.rules


@tiers.parametrize("kind", CONVOLUTIONS, first=["multiplied"])
def test_convolutions(kind):
    make, dims = CONVOLUTIONS[kind]
    check(make, BATCH, *map(split, dims))

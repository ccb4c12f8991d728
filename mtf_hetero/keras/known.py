"""The modules that register the layers of Keras itself."""

from mtf_hetero.keras import (
    activations,
    arithmetic,
    attention,
    convolutions,
    dense,
    merging,
    normalization,
    pooling,
    shapes,
)


def load() -> tuple[object, ...]:
    """Has them registered."""
    return activations, arithmetic, attention, convolutions, dense, merging, normalization, pooling, shapes

"""Placement of a step: a user's words are parsed once into a Request, and resolved once into a Placement.

    request = placement.load(placement.Request(layout="filters", list_speed="3,1", devices="gpu:0,cpu:0"))
    cluster = placement.cluster_of(request)
    placed = placement.place(request, cluster, build)
    mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(placed.layout, placed.devices)

The command line, `mtf_hetero.keras.fit` and `mtf_hetero.function` all do so. A Request needs no TensorFlow.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.placement.placing import (
        Placement,
        Search,
        cluster_of,
        devices_of,
        fitted,
        load,
        mesh_of,
        place,
        split_dims,
    )
    from mtf_hetero.placement.request import AUTO, Request

__all__ = [
    "AUTO",
    "Placement",
    "Request",
    "Search",
    "cluster_of",
    "devices_of",
    "fitted",
    "load",
    "mesh_of",
    "place",
    "split_dims",
]

__getattr__, __dir__ = lazy.attach(
    __name__, {**dict.fromkeys(__all__, "placing"), "AUTO": "request", "Request": "request"}
)

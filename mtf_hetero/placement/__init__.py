"""Placement of a step: a user's words are parsed once into a Request, and resolved once into a Placement.

Example:
  >>> request = placement.load(placement.Request(layout="filters", list_speed="3,1", devices="gpu:0,cpu:0"))
  >>> cluster = placement.requested_cluster(request)
  >>> placed = placement.place(request, cluster, build)  # build returns a new mtf.Graph
  >>> mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(placed.layout, placed.devices)

The command line, `mtf_hetero.keras.fit` and `mtf_hetero.function` all do so. A Request needs no TensorFlow.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.placement.placing import Placement, Search, load, place, requested_cluster
    from mtf_hetero.placement.request import Request

__all__ = ["Placement", "Request", "Search", "load", "place", "requested_cluster"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {**dict.fromkeys(__all__, "placing"), "Request": "request"},
    renamed={"cluster_of": "requested_cluster"},
)

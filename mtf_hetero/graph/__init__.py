"""One reading of an mtf graph: its operations, its layers, and the names of its dimensions.

`walk` yields operations, `layers` and `roles` have the layers that they make up, `names` the dimensions, `units` what
is priced together, `merging` what TensorFlow does with one operation, `identity` a key of what an operation computes.
The facts on classes of operations are in `mtf_hetero.ops.traits`.

Example:
  >>> operations = live_operations(graph)  # of a training step: lookups, products, gradients, updates
  >>> set(assign_layers(operations, graph.trainable_variables).values())
  {'conv1', 'dense1'}
  >>> [(layer.inputs, layer.outputs) for layer in list_layers(graph)]
  [(('conv1/channels',), ('conv1/filters',)), (('dense1/inputs',), ('dense1/units',))]
"""

from mtf_hetero._support import lazy
from mtf_hetero.graph.identity import group_key
from mtf_hetero.graph.layers import Layer, assign_layers, list_layers
from mtf_hetero.graph.walk import live_operations, within

__all__ = ["Layer", "assign_layers", "group_key", "list_layers", "live_operations", "within"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {},
    renamed={
        "key_of": "group_key",
        "layer_of": "assign_layers",
        "layers_of": "list_layers",
        "live": "live_operations",
    },
)

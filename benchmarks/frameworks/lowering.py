"""How long it takes to build and lower an mtf graph, and how large the TensorFlow graph becomes."""

import dataclasses
import resource
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.frameworks.mesh_nets import build_training, lower_stock
from benchmarks.networks import NETWORKS
from mtf_hetero import Layout, tf
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.models.train import program

_SMALLEST_MESH = "all:2"


def choose_layout(graph: Any, recipe: str, processors: int, shares: Sequence[float] | None) -> tuple[Layout, list[str]]:
    """A recipe's rules, but for those of dimensions that have fewer units than there are processors, and their names.

    `shares` has one per processor; None: even.
    """
    sizes: dict[str, int] = {}
    for dim in (dim for op in graph.operations for tensor in op.outputs for dim in tensor.shape.dims):
        sizes[dim.name] = min(dim.size, sizes.get(dim.name, dim.size))
    rules = LAYOUTS[recipe](graph, mesh_shape=_SMALLEST_MESH).rules
    kept = [rule for rule in rules if sizes[rule[0]] >= processors]
    layout = Layout(f"all:{processors}", kept, {} if shares is None else {"all": shares})
    return layout, [dim for dim, _ in rules if sizes[dim] < processors]


@dataclasses.dataclass
class Probe:
    """A training graph that is built and lowered once: by a recipe on so many processors, or by stock mtf alone."""

    network: str
    batch_size: int
    recipe: str
    processors: int
    shares: Sequence[float] | None = None
    stock: bool = False

    def measure(self) -> dict[str, Any]:
        """Seconds, numbers of operations and bytes; raises ValueError where the layout cannot be lowered."""
        net, lower = NETWORKS[self.network], lower_stock if self.stock else program.lower
        with tf.Graph().as_default() as tf_graph:
            image = tf.placeholder(tf.float32, [self.batch_size, *net.image_shape])
            label = tf.placeholder(tf.int32, [self.batch_size])
            begin = time.perf_counter()
            built = build_training(net, image, label)
            build_seconds = time.perf_counter() - begin
            layout, left_out = choose_layout(built.graph, self.recipe, self.processors, self.shares)
            before = len(tf_graph.get_operations())
            begin = time.perf_counter()
            lowering = lower(built, layout, [f"cpu:{pnum}" for pnum in range(layout.size)])
            lowering.export_to_tf_tensor(built.loss)  # this and the updates are what a training loop runs
            tf.group([lowering.lowered_operation(op) for op in built.updates])
            lower_seconds = time.perf_counter() - begin
            return {
                "build_seconds": build_seconds,
                "lower_seconds": lower_seconds,
                "mtf_operations": len(built.graph.operations),
                "tf_operations": len(tf_graph.get_operations()) - before,
                "graph_bytes": tf_graph.as_graph_def().ByteSize(),
                "max_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "layout": [list(rule) for rule in layout.rules],
                "rules_left_out": left_out,
            }

"""The time to build and lower an mtf graph, and the size of the TensorFlow graph."""

import dataclasses
import resource
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks.mesh_nets import build_training, lower_stock
from benchmarks.frameworks.steps import start_session
from benchmarks.networks import NETWORKS
from mtf_hetero import Layout, tf
from mtf_hetero.cli.train import program
from mtf_hetero.estimator import RunConfig
from mtf_hetero.estimator.training import session_config
from mtf_hetero.graph.names import dimension_sizes
from mtf_hetero.layouts import LAYOUTS

_SMALLEST_MESH = "all:2"


def choose_layout(graph: Any, recipe: str, processors: int, shares: Sequence[float] | None) -> tuple[Layout, list[str]]:
    """Return a recipe's rules for dimensions with at least one unit per processor, and the names of the others.

    `shares` has one per processor; None: even.
    """
    sizes = {name: min(of_name) for name, of_name in dimension_sizes(graph.operations).items()}
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
    steps: int = 0

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
            assert built.loss is not None
            begin = time.perf_counter()
            lowering = lower(built, layout, [f"cpu:{pnum}" for pnum in range(layout.size)])
            loss = lowering.export_to_tf_tensor(built.loss)  # this and the updates are what a training loop runs
            update = tf.group([lowering.lowered_operation(op) for op in built.updates])
            lower_seconds = time.perf_counter() - begin
            taken = self._take_steps(lowering, [loss, update], {image: 0.5, label: 0}) if self.steps else {}
            return {
                **taken,
                "build_seconds": build_seconds,
                "lower_seconds": lower_seconds,
                "mtf_operations": len(built.graph.operations),
                "tf_operations": len(tf_graph.get_operations()) - before,
                "graph_bytes": tf_graph.as_graph_def().ByteSize(),
                "max_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "layout": [list(rule) for rule in layout.rules],
                "rules_left_out": left_out,
            }

    def _take_steps(self, lowering: Any, fetches: Any, feed: dict[Any, float]) -> dict[str, float]:
        """Seconds to initialise, of the first step, and the median of those after it."""
        config = tf.ConfigProto(device_count={"CPU": self.processors})
        values = {x: np.full(x.shape.as_list(), value, x.dtype.as_numpy_dtype) for x, value in feed.items()}
        with tf.Session(config=session_config(RunConfig(session_config=config))) as session:
            begin = time.perf_counter()
            start_session(session, lowering, {})
            times = [time.perf_counter() - begin]
            for _ in range(self.steps):
                begin = time.perf_counter()
                session.run(fetches, values)
                times.append(time.perf_counter() - begin)
        return {
            "initial_seconds": times[0],
            "first_step_seconds": times[1],
            "step_seconds": statistics.median(times[2:]),
        }

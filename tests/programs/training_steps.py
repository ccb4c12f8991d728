"""Training steps of programs of the oracle, as mtf graphs."""

import dataclasses
from typing import Any

import oracle

from mtf_hetero import layers, mtf, tf

OPTIMIZERS = {
    "sgd": lambda: mtf.optimize.SgdOptimizer(0.1),
    "momentum": lambda: mtf.optimize.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: mtf.optimize.AdamWeightDecayOptimizer(0.001),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A training step: its mtf graph, its updates, and what it is to export."""

    graph: mtf.Graph
    mesh: mtf.Mesh
    updates: list
    fetched: list


def training(
    program: Any, *, optimizer: str = "momentum", dtype: Any = tf.float32, kind: str = oracle.FED, fetches: str = "loss"
) -> Step:
    """Builds a training step of a program of the oracle; it exports the loss, nothing, or all outputs."""
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    feed = oracle.Feed(mesh, dtype, kind)
    outputs = program(feed)
    loss = outputs.get("loss")
    if loss is None:
        floating = [(name, y) for name, y in outputs.items() if y.dtype.is_floating]
        loss = mtf.add_n([mtf.reduce_sum(y * feed(f"weights of {name}", y.shape)) for name, y in floating])
    variables = [v for v in graph.trainable_variables if v.outputs[0].dtype.is_floating]
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    pairs = [pair for pair in zip(gradients, variables) if pair[0] is not None]
    updates = OPTIMIZERS[optimizer]().apply_grads(*map(list, zip(*pairs))) if pairs else []
    updates += layers.batch_norm_updates(graph)
    exported = {"loss": [loss], "": [], "all": [loss, *outputs.values()]}[fetches]
    if not updates:  # a program without variables
        xs = [x for x in feed.inputs.values() if x.dtype.is_floating]
        exported = [loss, *(g for g in mtf.gradients([loss], xs) if g is not None)]
    return Step(graph, mesh, updates, list(dict.fromkeys(exported)))

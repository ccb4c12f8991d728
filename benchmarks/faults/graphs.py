"""Graphs for `mtf-hetero profile`."""

from typing import Any

from mtf_hetero import mtf, tf


def dense() -> Any:
    """Return a step of gradient descent of one dense layer."""
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    batch, inputs, hidden = mtf.Dimension("batch", 8), mtf.Dimension("inputs", 64), mtf.Dimension("hidden", 32)
    x = mtf.import_tf_tensor(mesh, tf.zeros([8, 64]), mtf.Shape([batch, inputs]))
    loss = mtf.reduce_mean(mtf.square(mtf.layers.dense(x, hidden, name="dense")))
    variables = graph.trainable_variables
    mtf.optimize.SgdOptimizer(0.1).apply_grads(mtf.gradients([loss], [v.outputs[0] for v in variables]), variables)
    return graph


def nothing() -> None:
    """No graph."""

"""Training steps of dense layers, and two devices for them."""

import numpy as np

from mtf_hetero import mtf, tf
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.layouts import LAYOUTS

FAST, SLOW = Machine("fast", 6e10, 1e10), Machine("slow", 2e10, 3e9)
LINKS = {"slow link": Link(1e-3, 1e7), "fast link": Link(1e-6, 1e11), "usual link": Link(1e-4, 1e9)}
MACHINES = Machines((Machine("a", 6e10, 1e10), Machine("b", 5e10, 1e10)), step_seconds=1e-4)


def dense(x, units, name):
    """A dense layer with dimensions of its own."""
    batch, inputs = (mtf.Dimension(f"{name}/{kind}", dim.size) for kind, dim in zip(("batch", "inputs"), x.shape))
    outputs = mtf.Dimension(f"{name}/outputs", units)
    kernel = mtf.get_variable(x.mesh, f"{name}/kernel", [inputs, outputs], initializer=tf.random_normal_initializer())
    return mtf.einsum([mtf.reshape(x, [batch, inputs]), kernel], [batch, outputs])


def step(batch=64, inputs=48, units=(96, 10)):
    """The graph of a training step of dense layers, its loss and its updates, in the default graph."""
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    shape = mtf.Shape([mtf.Dimension("batch", batch), mtf.Dimension("inputs", inputs)])
    values = np.random.default_rng(1).normal(size=shape.to_integer_list).astype(np.float32)
    x = mtf.import_tf_tensor(mesh, tf.constant(values), shape)
    for number, count in enumerate(units, 1):
        x = dense(mtf.relu(x), count, f"dense{number}")
    loss = mtf.reduce_mean(mtf.square(x))
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [variable.outputs[0] for variable in variables])
    return graph, mesh, loss, mtf.optimize.SgdOptimizer(0.01).apply_grads(gradients, variables)


def build():
    """A step of two dense layers."""
    return step(batch=32, inputs=64, units=(256, 128))[0]


def batch(graph, speeds):
    return LAYOUTS["batch"](graph, mesh_shape=f"all:{len(speeds)}", shares={"all": speeds})


def tensorflow_step():
    """A step for `mtf-hetero plan --step=`."""
    weight = tf.compat.v2.Variable(np.ones([64, 64], np.float32))

    def own(x):
        with tf.compat.v2.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(x, weight) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return own, (np.zeros([512, 64], np.float32),)


def dense_graph():
    """A step for `mtf-hetero plan --graph=`."""
    return step()[0]

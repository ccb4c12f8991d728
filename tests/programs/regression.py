"""A small regression with an optimizer whose slots are variables too, on even and uneven layouts."""

import numpy as np
from oracle import cpu_mesh_impl

import mtf_hetero
from mtf_hetero import Layout, mtf, tf

SHAPE = [mtf.Dimension("c", 7), mtf.Dimension("f", 11)]
LAYOUTS = {
    "one": Layout("x:1", ""),
    "three": Layout("x:3", "f:x", {"x": [70, 25, 5]}),
    "three_even": Layout("x:3", "c:x"),
    "two": Layout("x:2", "c:x", {"x": [1, 6]}),
    "six": Layout("x:3;y:2", "f:x;c:y", {"x": [5, 2, 1], "y": [3, 1]}),
    "replicated": Layout("x:3", "batch:x"),
    "slots": Layout("x:4;y:2", "batch:x;c:y", sizes={"batch": [0, 0, 3, 2], "c": [5, 2]}, slots={"x": [2, 2]}),
    "empty": Layout("x:3;y:2", "f:x;c:y", sizes={"f": [0, 9, 2], "c": [7, 0]}),
}


class Program:
    """A small regression with an optimizer whose slots are variables too."""

    def __init__(self, layout, optimizer, *, seed=3, autostack=True):
        tf.set_random_seed(seed)
        self.graph = mtf.Graph()
        mesh = mtf.Mesh(self.graph, "mesh")
        x = mtf.import_tf_tensor(mesh, np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7), [("batch", 5), SHAPE[0]])
        with tf.variable_scope("model"):
            w = mtf.get_variable(mesh, "w", mtf.Shape(SHAPE), initializer=tf.random_normal_initializer())
            u = mtf.get_variable(mesh, "u", mtf.Shape(SHAPE), initializer=tf.random_normal_initializer())
            s = mtf.get_variable(mesh, "s", mtf.Shape([]), initializer=tf.ones_initializer())
        y = mtf.einsum([x, w + u], [x.shape.dims[0], SHAPE[1]]) * s
        loss = mtf.reduce_mean(mtf.square(y - 1.0))
        grads = mtf.gradients([loss], [v.outputs[0] for v in self.graph.trainable_variables])
        updates = optimizer.apply_grads(grads, self.graph.trainable_variables)
        self.lowering = mtf_hetero.Lowering(self.graph, {mesh: cpu_mesh_impl(layout)}, autostack=autostack)
        self.loss = self.lowering.export_to_tf_tensor(loss)
        self.train = tf.group([self.lowering.lowered_operation(op) for op in updates])
        self.restored = self.lowering.copy_masters_to_slices()
        self.values = {v.name: self.lowering.export_to_tf_tensor(v.outputs[0]) for v in self.graph.all_variables}
        self.slices = {v.name: self.lowering.variables[v].value.tensor_list for v in self.graph.all_variables}

    def initialize(self, session):
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())


def make_session(layout):
    return tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size}))


def ancestors(*fetches):
    """All operations that are run when these are."""
    found, left = set(), [getattr(fetch, "op", fetch) for fetch in fetches]
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [*(x.op for x in op.inputs), *op.control_inputs]
    return found


def saver_names(saver):
    return saver.saver_def.save_tensor_name, saver.saver_def.restore_op_name

"""Functions of TensorFlow inside an mtf graph: values and gradients are TensorFlow's, on uneven layouts."""

import numpy as np
import oracle
import tiers

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.importer import insertion

X, Y = np.random.default_rng(0).standard_normal((2, 7, 5))


class Step:
    """A loop, a condition, a sort, a gather and a draw, with a variable that is trained and one that is not."""

    def __init__(self):
        self.weights = tf.Variable(np.random.default_rng(1).standard_normal((5, 6)))
        self.factor = tf.Variable(2.0, dtype=tf.float64)

    def __call__(self, x, y):
        z = tf.matmul(x, self.weights)
        for number in tf.range(3):
            z = tf.tanh(z) * tf.cast(number + 1, tf.float64)
        z = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.sort(z, axis=0), lambda: z * self.factor)
        noise = tf.random.stateless_uniform([7, 1], [1, 2], dtype=tf.float64)
        return z * noise, tf.gather(y, [3, 1, 1], axis=1), tf.argmax(z, 1)


def traced(step):
    function = tf.compat.v2.function(step)
    forward = function.get_concrete_function(*[tf.TensorSpec(X.shape, tf.float64)] * 2)
    return insertion.read(forward, {"weights": step.weights, "factor": step.factor})


def differentiated(step, forward):
    names = {"weights": step.weights, "factor": step.factor}
    return insertion.differentiate(forward, names, lambda v: v is step.weights)


def inserted(step, layout, *, is_early):
    """Values and gradients of the first output in the graph."""
    read = traced(step)
    full = differentiated(step, read.forward) if is_early else read
    values = {"weights": step.weights.numpy(), "factor": step.factor.numpy()}
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        batch = mtf.Dimension("batch", 7)
        xs = [
            mtf.import_tf_tensor(mesh, tf.constant(array), mtf.Shape([batch, mtf.Dimension(name, 5)]))
            for name, array in (("x", X), ("y", Y))
        ]
        made = {}

        def make(variable, axes):
            name = variable.before.name
            shape = mtf.Shape([dim for axis in axes for dim in axis])
            made[name] = mtf.import_tf_tensor(mesh, tf.constant(values[name]), shape)
            return made[name]

        inputs = [(x, [[dim] for dim in x.shape.dims]) for x in xs]
        found, _ = insertion.insert(full, lambda: differentiated(step, read.forward), inputs, make, {}, "step")
        outputs = [y for y, _ in found]
        gradients = mtf.gradients([mtf.reduce_sum(mtf.square(outputs[0]))], [xs[0], made["weights"], made["factor"]])
        assert gradients[2] is None  # it is not trained
        lowering = mtf_hetero.Lowering(graph, {mesh: oracle.cpu_mesh_impl(layout)})
        exported = [lowering.export_to_tf_tensor(t) for t in [*outputs, *gradients[:2]]]
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
            return session.run(exported)


@tiers.parametrize(
    ("rules", "is_early"), [("batch:all", True), ("weights/1:all", False)], first=[("weights/1:all", False)]
)
def test_values_and_gradients_are_those_of_tensorflow(rules, is_early):
    step = Step()
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        outputs = tf.compat.v2.function(step)(x, tf.constant(Y))
        loss = tf.reduce_sum(tf.square(outputs[0]))
    expected = [*outputs, *tape.gradient(loss, [x, step.weights])]
    found = inserted(step, Layout("all:3", rules, {"all": [4, 2, 1]}), is_early=is_early)
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other.numpy(), rtol=1e-12, atol=1e-12)

"""Random numbers in loops: a turn always draws the same ones, on every layout, in whatever order the turns run."""

import itertools

import numpy as np
import pytest
from control_flow import control_flow
from oracle import cpu_mesh_impl
from tiers import parametrize

import mtf_hetero
from mtf_hetero import Layout, mtf, tf

B, C, TURNS = mtf.Dimension("batch", 12), mtf.Dimension("channels", 7), mtf.Dimension("turn", 4)
SHAPE = mtf.Shape([B, C])
ONE_DEVICE = Layout("x:1", "")
LAYOUTS = [
    Layout("x:3", "batch:x", {"x": [5, 1, 2]}),
    Layout("x:2", "channels:x", {"x": [1, 3]}),
    Layout("x:2;y:2", "batch:x;channels:y", {"y": [2, 5]}),
]


class Program:
    """A program in a graph of its own, seeded, on a layout.

    Args:
      build: from an mtf.Mesh to {name: mtf.Tensor}.
      layout: the Layout.
    """

    def __init__(self, build, layout):
        self._tf_graph = tf.Graph()
        with self._tf_graph.as_default():
            tf.set_random_seed(3)
            mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
            outputs = build(mesh)
            self.lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
            self.exported = {name: self.lowering.export_to_tf_tensor(y) for name, y in outputs.items()}
            self.initialize = [tf.global_variables_initializer(), tf.local_variables_initializer()]
        self._config = tf.ConfigProto(device_count={"CPU": layout.size}, inter_op_parallelism_threads=4)

    def steps(self, number=1, also=()):
        """Return the results of some steps of a new session, and their results for other tensors."""
        with tf.Session(graph=self._tf_graph, config=self._config) as session:
            for operation in self.initialize:
                session.run(operation)
            return [session.run({**self.exported, "also": list(also)}) for _ in range(number)]


def count_to(turns, body, start, cond=None):
    """mtf.while_loop over a number that counts, and a tensor: body(i, x) gives the next x."""
    i = mtf.constant(start.mesh, 0, dtype=tf.int32)
    cond = cond or (lambda i, x: mtf.less(i, turns))
    return mtf.while_loop(cond, lambda i, x: [i + 1, body(i, x)], [i, start])[1]


def at_turn(x, i):
    """A tensor at the place of turn i in a tensor of all turns, the rest of it zero."""
    return x * mtf.one_hot(i, TURNS, dtype=x.dtype)


def drawn_in_turns(mesh, draw):
    """Return the draws of four turns: [turn, batch, channels]."""
    start = mtf.zeros(mesh, mtf.Shape([TURNS, B, C]))
    return count_to(4, lambda i, x: x + at_turn(draw(mesh), i), start)


def uniform(mesh):
    return mtf.random_uniform(mesh, SHAPE)


def serialized(mesh, layer):
    """A layer of `mtf.serialize_training_step` in four parts of the batch, and the gradient of its weight."""
    w = mtf.get_variable(mesh, "w", mtf.Shape([C]), initializer=tf.ones_initializer())

    def model(features):
        y = layer(features["x"], w)
        return {"loss": mtf.reduce_sum(y), "y": y}

    gradients, outputs = mtf.serialize_training_step({"x": mtf.ones(mesh, SHAPE)}, model, B, 4)
    return {"y": outputs["y"], "gradient": gradients[0]}


def microbatches(mesh):
    """Dropout, and the gradient of what it multiplies."""
    return serialized(mesh, lambda x, w: mtf.dropout(x * w, is_training=True, keep_prob=0.5))


def recomputed(mesh):
    """The same with `mtf.recompute_grad`; the gradient tells which mask it saw."""

    def layer(x, w):
        return mtf.recompute_grad(lambda x: mtf.dropout(mtf.square(x * w), is_training=True, keep_prob=0.5), [x])

    return serialized(mesh, layer)


def nested(mesh):
    """A loop in a loop: both draw, before the inner loop, in it, and after it."""

    def inner(x):
        return count_to(3, lambda j, y: 3.0 * y + uniform(mesh), x)

    return {"y": count_to(4, lambda i, x: 2.0 * (inner(x + uniform(mesh)) - uniform(mesh)), mtf.zeros(mesh, SHAPE))}


def until_large(mesh):
    """The draws decide the number of turns, and the condition draws too."""

    def cond(i, x):
        return mtf.less(mtf.reduce_mean(x) + mtf.random_uniform(mesh, mtf.Shape([])), 5.0)

    return {"y": count_to(None, lambda i, x: 1.2 * x + uniform(mesh), mtf.zeros(mesh, SHAPE), cond)}


def drawn_before(mesh):
    """Numbers that precede the loop are the same ones in all turns."""
    before = uniform(mesh)
    return {"y": drawn_in_turns(mesh, lambda _: before), "before": before}


def of_other_kinds(mesh):
    """Normal and whole numbers."""

    def draw(mesh):
        whole = mtf.RandomOperation(mesh, SHAPE, tf.random.uniform, dtype=tf.int32, maxval=9).outputs[0]
        return mtf.random_normal(mesh, SHAPE) + mtf.cast(whole, tf.float32)

    return {"y": drawn_in_turns(mesh, draw)}


def of_tensorflow_alone(mesh):
    """Numbers that only TensorFlow can draw: whole, in one place, one turn after another."""

    def draw(mesh):
        return mtf.RandomOperation(mesh, SHAPE, tf.random.gamma, alpha=2.0).outputs[0]

    return {"y": drawn_in_turns(mesh, draw)}


PROGRAMS = [microbatches, recomputed, nested, until_large, drawn_before, of_other_kinds, of_tensorflow_alone]


def assert_same(actual, expected, rounding=1e-6):
    for step, expected_step in zip(actual, expected, strict=True):
        for name, value in expected_step.items():
            if name != "also":
                np.testing.assert_allclose(step[name], value, rtol=rounding, atol=rounding, err_msg=name)


@pytest.mark.parametrize(("layouts", "sessions"), [(LAYOUTS[-1:], 1), pytest.param(LAYOUTS, 3, marks=pytest.mark.full)])
@parametrize(
    ("version", "build"),
    itertools.product([2, 1], PROGRAMS),
    first=[(2, microbatches), (2, of_tensorflow_alone), (1, recomputed)],
)
def test_one_seed_gives_one_result(version, build, layouts, sessions):
    """In every session of every graph, on one device and on every layout; each step draws anew."""
    with control_flow(version):
        program = Program(build, ONE_DEVICE)
        first = program.steps(3)
        for _ in range(sessions):
            assert_same(program.steps(3), first, 0.0)
        for layout in layouts:
            program = Program(build, layout)
            for _ in range(sessions):
                assert_same(program.steps(3), first)
    y = [step["y"] for step in first]
    assert all((a != b).any() for a, b in [(y[0], y[1]), (y[0], y[2]), (y[1], y[2])])


def splitmix(x):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


@pytest.mark.parametrize("layout", [ONE_DEVICE, LAYOUTS[-1]], ids=str)
def test_turns_draw_by_the_definition(layout):
    """Turn i draws with key number i of the operation's own."""
    program = Program(lambda mesh: {"y": drawn_in_turns(mesh, uniform)}, layout)
    (keys,) = program.lowering.keys.values()
    gamma, number = np.uint64(0x9E3779B97F4A7C15), np.arange(SHAPE.size, dtype=np.uint64)
    for step in program.steps(2, also=keys.tensor_list):
        (key,) = set(step["also"])
        for turn in range(4):
            turn_key = splitmix(np.array([key]) + np.array([turn], np.uint64) * gamma)
            bits = splitmix(turn_key + number * gamma)
            expected = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
            np.testing.assert_array_equal(step["y"][turn].ravel(), expected)


def test_turns_and_operations_differ():
    def build(mesh):
        return {"y": drawn_in_turns(mesh, uniform), "other": drawn_in_turns(mesh, uniform)}

    (step,) = Program(build, LAYOUTS[0]).steps()
    drawn = np.concatenate([step["y"], step["other"]]).reshape(8, -1)
    assert len(np.unique(drawn)) == drawn.size
    (step,) = Program(microbatches, LAYOUTS[0]).steps()
    masks = step["y"].reshape(3, 4, 7)  # [within a microbatch, microbatch, channels]
    assert len({masks[:, i].tobytes() for i in range(4)}) == 4


def test_turns_of_an_inner_loop_differ():
    """3 turns of 4: twelve different tensors, and those of the outer loop besides."""

    def build(mesh):
        kept = mtf.Dimension("kept", 12)
        start = mtf.zeros(mesh, mtf.Shape([kept, B, C]))

        def outer(i, x):
            return count_to(3, lambda j, y: y + uniform(mesh) * mtf.one_hot(3 * i + j, kept), x)

        return {"y": count_to(4, outer, start)}

    (step,) = Program(build, ONE_DEVICE).steps()
    assert len(np.unique(step["y"])) == step["y"].size
    assert_same(Program(build, LAYOUTS[1]).steps(), [step])


def test_a_recomputation_sees_the_same_mask():
    """The gradient of a sum of the squares of what is kept, times two: twice the sum of what is kept."""
    for layout in (ONE_DEVICE, LAYOUTS[-1]):
        (step,) = Program(recomputed, layout).steps()
        np.testing.assert_allclose(step["gradient"], 2 * step["y"].sum(0), rtol=1e-6)


def test_numbers_from_before_a_loop_are_those_of_all_turns():
    (step,) = Program(drawn_before, LAYOUTS[0]).steps()
    for turn in range(4):
        np.testing.assert_array_equal(step["y"][turn], step["before"])


def drawing(x):
    """A function of slices that draws."""
    return x + tf.random.uniform(x.shape)


def drawing_if(x):
    """One that draws under a condition of TensorFlow's."""
    return tf.cond(tf.reduce_sum(x) > -1.0, lambda: x + tf.random.uniform(x.shape), lambda: x)


@parametrize(
    ("function", "layout", "version"),
    itertools.product([drawing, drawing_if], [ONE_DEVICE, LAYOUTS[0]], [2, 1]),
    first=[(drawing, LAYOUTS[0], 2), (drawing_if, ONE_DEVICE, 2)],
)
def test_functions_of_slices_draw_in_the_order_of_the_turns(function, layout, version):
    """They draw other numbers on another layout, but the same ones in every session."""

    def draw(mesh):
        return mtf.slicewise(function, [uniform(mesh)], splittable_dims=SHAPE.dims)

    with control_flow(version):
        program = Program(lambda mesh: {"y": drawn_in_turns(mesh, draw)}, layout)
        first = program.steps(2)
        for _ in range(6):
            assert_same(program.steps(2), first, 0.0)

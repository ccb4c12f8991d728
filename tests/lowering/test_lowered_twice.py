"""One mtf graph that is lowered twice in one TensorFlow graph: both can be used, on one layout and on two."""

import numpy as np
import pytest
from oracle import cpu_mesh_impl

import mtf_hetero
from mtf_hetero import Layout, mtf, tf

B, C = mtf.Dimension("b", 7), mtf.Dimension("c", 5)
FILTERS = Layout("x:3", "c:x", {"x": [1, 3, 1]})
BATCH = Layout("x:2", "b:x", {"x": [5, 2]})
EMPTY, FIRST = (Layout("x:3", "c:x", sizes={"c": sizes}) for sizes in ([0, 2, 3], [5, 0, 0]))


def lowered_twice(first, second):
    """Two lowerings of w, doubled by each step, and what each gives for it."""
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    w = mtf.get_variable(mesh, "w", mtf.Shape([B, C]), initializer=tf.random_normal_initializer(seed=1))
    update = mtf.assign(w, w * 2.0)
    lowerings = [mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)}) for layout in (first, second)]
    return lowerings, [(each.export_to_tf_tensor(w), each.lowered_operation(update)) for each in lowerings]


def begin(session, lowerings):
    session.run(tf.global_variables_initializer())
    session.run(tf.local_variables_initializer())
    session.run([lowering.copy_masters_to_slices() for lowering in lowerings])


@pytest.mark.parametrize("layout", [FILTERS, Layout("x:2", "")])
def test_on_one_layout_they_have_one_value(layout):
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        lowerings, ((one, double_one), (two, double_two)) = lowered_twice(layout, layout)
        assert sum(v.shape.num_elements() for v in tf.global_variables()) == B.size * C.size
        begin(session, lowerings)
        start = session.run(one)
        session.run(double_one)
        session.run(double_two)
        for value in (one, two):
            np.testing.assert_array_equal(session.run(value), 4 * start)


@pytest.mark.parametrize(
    ("first", "second"),
    [(FILTERS, BATCH), (BATCH, FILTERS), (BATCH, Layout("x:1", "")), (EMPTY, FIRST), (FIRST, EMPTY)],
)
def test_on_two_layouts_the_first_is_saved(first, second, tmp_path):
    """Copies go from the saved values to a lowering's slices and back, like mtf's masters."""
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        lowerings, ((one, double_one), (two, double_two)) = lowered_twice(first, second)
        saver = tf.train.Saver()
        begin(session, lowerings)
        start = session.run(one)
        np.testing.assert_array_equal(session.run(two), start)
        session.run(double_one)
        np.testing.assert_array_equal(session.run(two), start)  # until it is copied
        session.run(lowerings[1].copy_masters_to_slices())
        np.testing.assert_array_equal(session.run(two), 2 * start)
        session.run(double_two)
        session.run(lowerings[1].copy_slices_to_masters())
        np.testing.assert_array_equal(session.run(one), 4 * start)
        path = saver.save(session, str(tmp_path / "model"))
        np.testing.assert_array_equal(tf.train.load_variable(path, "w"), 4 * start)


def test_a_read_that_a_session_has_run_is_left_as_it_is():
    """TensorFlow warns of what is changed after it was run, and tf.control_dependencies changes what it names."""
    with tf.Graph().as_default() as graph:
        lowered_twice(FILTERS, FILTERS)
        reads = [op for op in graph.get_operations() if op.type == "ReadVariableOp"]
        assert len(reads) >= 3
        for read in reads:
            with pytest.raises(ValueError, match="has no attr named"):
                read.get_attr("_has_manual_control_dependencies")

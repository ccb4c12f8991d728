"""The planner sees the tensors of a loop's turns: it splits no two dimensions of one of them over an axis."""

import pytest

from mtf_hetero import mtf, tf
from mtf_hetero.cost import Machine, Machines
from mtf_hetero.graph import live_operations, names
from mtf_hetero.planner import find


def test_conflicts_within_a_loop():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        rows, columns = mtf.Dimension("rows", 4), mtf.Dimension("columns", 6)
        x = mtf.import_tf_tensor(mesh, tf.zeros([4]), mtf.Shape([rows]))
        y = mtf.import_tf_tensor(mesh, tf.zeros([6]), mtf.Shape([columns]))
        count = mtf.zeros(mesh, mtf.Shape([]), tf.int32)

        def turn(i, x, y):
            both = mtf.add(x, y, output_shape=mtf.Shape([rows, columns]))
            return i + 1, mtf.reduce_sum(both, output_shape=mtf.Shape([rows])), y

        mtf.while_loop(lambda i, x, y: mtf.less(i, 3), turn, [count, x, y])
        operations = live_operations(graph)
        assert not any({"rows", "columns"} <= set(t.shape.dimension_names) for op in operations for t in op.outputs)
        assert "columns" in names.conflicts(operations)["rows"]
        assert {"rows", "columns"} <= names.extents(operations).keys()


def test_a_loop_of_mtf_is_refused():
    """The traffic of a loop is not known, which is no reason to call every layout slow."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        x = mtf.import_tf_tensor(mesh, tf.zeros([4]), mtf.Shape([mtf.Dimension("rows", 4)]))
        count = mtf.zeros(mesh, mtf.Shape([]), tf.int32)
        mtf.while_loop(lambda i, x: mtf.less(i, 3), lambda i, x: (i + 1, 2.0 * x), [count, x])
        machines = Machines((Machine("a", 1e10, 1e9), Machine("b", 1e10, 1e9)))
        with pytest.raises(NotImplementedError, match="WhileLoopOperation .*cannot count the traffic of a loop"):
            find(graph, machines)

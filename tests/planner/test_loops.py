"""The planner sees the tensors of a loop's turns: it splits no two dimensions of one of them over an axis."""

from mtf_hetero import mtf, tf
from mtf_hetero.planner import steps
from mtf_hetero.profile.work import live


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
        operations = live(graph)
        assert not any({"rows", "columns"} <= set(t.shape.dimension_names) for op in operations for t in op.outputs)
        assert "columns" in steps.conflicts(operations)["rows"]
        assert {"rows", "columns"} <= steps.extents(operations).keys()

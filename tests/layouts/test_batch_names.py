"""A rule for the batch holds under the names that the batch is given later."""

from mtf_hetero import Layout, mtf, tf
from mtf_hetero.layouts.batch import under_all_names


def built():
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    batch, units = mtf.Dimension("batch", 4), mtf.Dimension("units", 6)
    x = mtf.import_tf_tensor(mesh, tf.zeros([4, 6]), mtf.Shape([batch, units]))
    renamed = mtf.rename_dimension(x, "batch", "dense/batch")
    mtf.get_variable(mesh, "w", mtf.Shape([units]))
    return graph, renamed


def test_rules_of_the_batch():
    with tf.Graph().as_default():
        graph, _ = built()
    rules = {
        "batch:all": {("batch", "all"), ("dense/batch", "all")},
        "units:all": {("units", "all")},
        "dense/batch:all": {("dense/batch", "all")},
        "batch:all;units:all": {("batch", "all"), ("units", "all")},  # no tensor is split twice
    }
    for text, found in rules.items():
        assert set(under_all_names(Layout("all:2", text), graph).rules) == found

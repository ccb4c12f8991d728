"""Layers and roles of a graph: every convolution counts, in groups too, and each tensor of one has its role."""

import pytest

from mtf_hetero import layers, mtf, tf
from mtf_hetero.graph import assign_layers, list_layers, live_operations, roles
from mtf_hetero.ops.traits import find_images, is_contraction, multiplied_dims

pytestmark = pytest.mark.usefixtures("own_graph")
SHAPE = mtf.Shape([mtf.Dimension(n, s) for n, s in (("batch", 4), ("h", 6), ("w", 5), ("c", 3))])


@pytest.fixture
def graph():
    """A training step of a convolution, and of a depthwise one after it."""
    graph = mtf.Graph()
    x = mtf.import_tf_tensor(mtf.Mesh(graph, "mesh"), tf.zeros(SHAPE.to_integer_list), SHAPE)
    x = mtf.layers.conv2d(x, mtf.Dimension("f", 8), filter_size=(3, 3), padding="SAME", name="first")
    x = layers.depthwise_conv2d(x, name="second")
    gradients = mtf.gradients([mtf.reduce_mean(mtf.square(x))], [v.outputs[0] for v in graph.trainable_variables])
    mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, graph.trainable_variables)
    return graph


def test_a_depthwise_convolution_is_a_layer_of_a_plan(graph):
    operations = live_operations(graph)
    owners = assign_layers(operations, graph.trainable_variables)
    convolutions = [op for op in operations if is_contraction(op) and find_images(op)]
    assert [owners[op] for op in convolutions[:2]] == ["first", "second"]
    assert {owners[op] for op in convolutions} == {"first", "second"}
    kinds = roles.products(operations, owners)["second"][1]
    assert [kinds[name] for name in ("batch", "h", "w", "f")] == ["batch", "space", "space", "outputs"]


def test_recipes_split_no_depthwise_convolution(graph):
    """Its groups are split as the channels of operations on elements are."""
    assert [layer.outputs for layer in list_layers(graph)] == [("f",)]


def test_each_gradient_multiplies_as_much_as_its_convolution(graph):
    convolutions = [op for op in live_operations(graph) if is_contraction(op) and find_images(op)]
    assert len(convolutions) == 5  # the images have no gradient
    for op in convolutions:
        images = find_images(op)
        assert [dim.name for dim in images.space(images.large)] == ["h", "w"]
        assert [dim.size for dim in images.space(images.small)] == [6, 5]
        (kernel,) = {*op.inputs, *op.outputs} - {images.large, images.small}
        assert kernel.shape.to_integer_list[:2] == images.sizes == [3, 3]
    sizes = [mtf.Shape(multiplied_dims(op)).size for op in convolutions]
    assert sorted(sizes) == [4 * 6 * 5 * 9 * 8] * 3 + [4 * 6 * 5 * 9 * 3 * 8] * 2

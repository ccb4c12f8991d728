"""The models: parameter counts, shapes, names. That a layout changes no result is test_models_oracle's business."""

import numpy as np
import pytest
from tiers import parametrize

from mtf_hetero import mtf, tf
from mtf_hetero.cli.train.tasks import Regression, Segmentation
from mtf_hetero.models import MODELS, layers


def make_images(mesh, batch, image_shape, dtype=tf.float32):
    names = ("batch", *("depth", "height", "width", "channels")[-len(image_shape) :])
    shape = mtf.Shape([mtf.Dimension(n, s) for n, s in zip(names, (batch, *image_shape))])
    return mtf.import_tf_tensor(mesh, tf.zeros(shape.to_integer_list, dtype), shape)


def make_graph(name, *, image_shape=None, dtype=tf.float32, **config):
    graph = mtf.Graph()
    images = make_images(mtf.Mesh(graph, "mesh"), 3, image_shape or MODELS[name].image_shape, dtype)
    return graph, MODELS[name].build(images, **config)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_logits_names_and_dtypes(name):
    """Each layer owns its input and output dimension; all has the dtype of the images."""
    with tf.Graph().as_default():
        graph, logits = make_graph(name, dtype=tf.float64)
    spatial = MODELS[name].image_shape[:-1] if MODELS[name].task is Segmentation else ()
    assert logits.shape.to_integer_list == [3, *spatial, MODELS[name].classes]
    last = "outputs" if MODELS[name].task is Regression else "classes"
    assert logits.shape.dimension_names == ["batch", *("depth", "height", "width")[: len(spatial)], last]
    assert sum(v.size for v in graph.trainable_variables) == MODELS[name].parameters
    kernels = [v for v in graph.trainable_variables if v.name.endswith("kernel")]
    for kernel in kernels:
        layer = kernel.name.rsplit("/", 1)[0]
        assert all(dim.rsplit("/", 1)[0] in (layer, "classes") for dim in kernel.shape.dimension_names[-2:])
    assert len(kernels) == len({kernel.name for kernel in kernels})
    assert logits.dtype == tf.float64
    assert {v.master_dtype for v in graph.trainable_variables} == {tf.float64}


def test_parameters_of_the_paper():
    assert MODELS["paper_mnist"].parameters == 6_464_678
    assert MODELS["paper_cifar"].parameters == 4_610_766


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet18", 11_689_512), ("resnet34", 21_797_672), ("resnet50", 25_557_032)]
)
def test_parameters_of_resnet_for_imagenet(name, parameters):
    """The counts equal torchvision's."""
    with tf.Graph().as_default():
        graph, logits = make_graph(name, image_shape=(224, 224, 3), stem="imagenet", classes=1000)
        last = [op.outputs[0].shape for op in graph.operations if isinstance(op, mtf.Conv2dOperation)][-1]
    assert logits.shape.to_integer_list == [3, 1000]
    assert last.to_integer_list[1:3] == [7, 7]
    assert sum(v.size for v in graph.trainable_variables) == parameters


@pytest.mark.parametrize(("name", "millions"), [("vgg11", 9.22), ("vgg16", 14.71), ("vgg19", 20.02)])
def test_convolution_weights_of_vgg(name, millions):
    with tf.Graph().as_default():
        graph, _ = make_graph(name)
    kernels = [v for v in graph.trainable_variables if v.name.startswith("conv")]
    assert round(sum(v.size for v in kernels) / 1e6, 2) == millions
    head = [
        v.shape.to_integer_list[-2:] for v in graph.trainable_variables if v.name in ("dense1/kernel", "dense2/kernel")
    ]
    assert head == [[512, 4096], [4096, 4096]]


def test_the_head_of_vgg_and_its_batch_norm():
    with tf.Graph().as_default():
        graph, _ = make_graph("vgg11", head=(7,), batch_norm=True, classes=3)
    shapes = {v.name: v.shape.to_integer_list for v in graph.all_variables}
    assert shapes["dense1/kernel"][-1] == 7
    assert shapes["dense2/kernel"] == [7, 3]
    assert shapes["conv1_1/batch_norm/scale"] == shapes["conv1_1/batch_norm/moving_mean"] == [64]
    assert "conv1_1/bias" not in shapes


@parametrize("name", ["lenet", "paper_cifar", "resnet18", "vgg11", "vgg19"], first=["lenet"])
def test_initial_logits_are_of_order_one(name):
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        shape = make_images(mesh, 2, MODELS[name].image_shape).shape
        images = np.random.default_rng(0).standard_normal(shape.to_integer_list)
        logits = MODELS[name].build(mtf.import_tf_tensor(mesh, images.astype(np.float32), shape), training=True)
        lowering = mtf.Lowering(graph, {mesh: mtf.placement_mesh_impl.PlacementMeshImpl([], [], [""])})
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(lowering.copy_masters_to_slices())
            values = session.run(lowering.export_to_tf_tensor(logits))
    assert 0.02 < values.std() < 5


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("lenet", {"image_shape": (8, 8, 1)}, "4 x 4 pixels with a 5 x 5 kernel"),
        ("resnet18", {"stem": "mnist"}, "stem is 'mnist'; it must be 'imagenet' or 'cifar'"),
        ("resnet18", {"filters": (1, 2)}, "filters for the stem and for each stage"),
        ("lenet", {"dtype": tf.int32}, "int32.*floating-point"),
    ],
)
def test_images_and_configurations_that_a_model_cannot_take(name, wrong, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        make_graph(name, **wrong)


@pytest.mark.parametrize("name", ["lenet", "paper_cifar", "resnet50"])
def test_images_of_a_size_that_strides_do_not_divide(name):
    """28 -> 14 -> 7 -> 4 -> 2 -> 1."""
    with tf.Graph().as_default():
        graph, logits = make_graph(name, image_shape=(28, 28, 1))
        assert logits.shape.to_integer_list[-1] == MODELS[name].classes
        sizes = {
            d.size for op in graph.operations for t in op.outputs for d in t.shape.dims if d.name.endswith("height")
        }
        assert name == "lenet" or {28, 14, 7, 4} <= sizes


@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
def test_pools_leave_a_batch_of_two_dimensions_alone(name):
    sizes = {"outer_batch": 2, "batch": 4, "height": 32, "width": 32, "channels": 3}
    with tf.Graph().as_default():
        shape = mtf.Shape([mtf.Dimension(*dim) for dim in sizes.items()])
        images = mtf.import_tf_tensor(mtf.Mesh(mtf.Graph(), "mesh"), tf.zeros(shape.to_integer_list), shape)
        stem = {"stem": "imagenet"} if name == "resnet18" else {}
        logits = MODELS[name].build(images, **stem)
        pools = [op.outputs[0].shape for op in logits.mesh.graph.operations if "pool" in op.name]
    assert logits.shape.to_integer_list == [2, 4, 10]
    assert pools and all(pool.to_integer_list[:2] == [2, 4] for pool in pools)


def test_images_of_another_rank():
    with tf.Graph().as_default():
        _, logits = make_graph("lenet")
        with pytest.raises(ValueError, match="batch, height, width, channels"):
            layers.check_images(logits)

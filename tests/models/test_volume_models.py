"""CosmoFlow and 3D U-Net: layers and parameters as in the paper, and the same results on every spatial layout."""

import functools

import numpy as np
import pytest
from oracle import MODEL_TOLERANCE_FLOAT32, ONCE, check, cpu_mesh_impl, run
from tiers import parametrize
from zeros import lay_out

import mtf_hetero
import mtf_hetero.layers
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.models import MODELS

NAMES = ("batch", "depth", "height", "width", "channels")
COSMOFLOW, UNET3D = (MODELS[name].build for name in ("cosmoflow", "unet3d"))
EIGHT = [2, 3, 1, 2, 2, 3, 1, 2]
TOY_COSMOFLOW = {"filters": (2, 3, 2, 3), "strided": 3, "head": (5, 4), "dropout": 0.0}
TOY_UNET = {"down": ((2, 3),), "bottom": (3, 4), "up": ((2, 3),)}
DEEP_UNET = {"down": ((2, 3), (3, 2)), "up": ((2, 3), (3, 2))}


def make_volumes(sizes, names=NAMES):
    graph = mtf.Graph()
    shape = mtf.Shape([mtf.Dimension(name, size) for name, size in zip(names, sizes)])
    volumes = mtf.import_tf_tensor(mtf.Mesh(graph, "mesh"), tf.zeros(shape.to_integer_list), shape)
    return graph, volumes


def parameters(graph):
    return sum(v.size for v in graph.trainable_variables)


PAPER = {  # edge of the maps after each convolution, and after each pool
    128: ((128, 64, 32, 8, 4, 2, 2), (64, 32, 16, 4, 2)),
    256: ((256, 128, 64, 16, 8, 4, 2), (128, 64, 32, 8, 4, 2)),
    512: ((512, 256, 128, 32, 16, 8, 4), (256, 128, 64, 16, 8, 4, 2)),
    64: ((64, 32, 16, 4, 2, 2, 2), (32, 16, 8, 2)),
    32: ((32, 16, 8, 2, 2, 2, 2), (16, 8, 4)),
}


@pytest.mark.parametrize("edge", PAPER)
def test_cosmoflow_has_the_paper_s_parameters_and_maps(edge):
    with tf.Graph().as_default():
        graph, volumes = make_volumes((2, edge, edge, edge, 4))
        y = COSMOFLOW(volumes, batch_norm=edge == 128)
    assert parameters(graph) == 9_437_636 + 2_016 * (edge == 128)
    assert (y.shape.dimension_names, y.shape.to_integer_list) == (["batch", "outputs"], [2, 4])
    for kind, edges in zip((mtf.Conv3dOperation, mtf_hetero.layers.PoolOperation), PAPER[edge]):
        shapes = [op.outputs[0].shape.to_integer_list for op in graph.operations if isinstance(op, kind)]
        assert [shape[1:4] for shape in shapes] == [[n] * 3 for n in edges]
    filters = [op.outputs[0].shape.dims[-1].size for op in graph.operations if isinstance(op, mtf.Conv3dOperation)]
    assert filters == [16, 32, 64, 128, 256, 256, 256]


def test_cosmoflow_starts_as_the_paper_does():
    """Glorot-uniform kernels, biases of 0.1, a mean of its own of each dense layer's inputs kept at 0.8."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        graph, volumes = make_volumes((1, 8, 8, 8, 4))
        COSMOFLOW(volumes, training=True)
        lowering = mtf_hetero.Lowering(graph, {volumes.mesh: cpu_mesh_impl(Layout("x:1", ""))})
        keeps = [op for op in graph.operations if isinstance(op, mtf.RandomOperation)]
        assert [op.outputs[0].shape.size for op in keeps] == [8 * 256, 2048, 256]
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            held = {v.name: lowering.variables[v].laid_out_tensor.tensor_list[0] for v in graph.all_variables}
            values = session.run(held)
    for name, inputs, outputs in [
        ("conv1/kernel", 27 * 4, 27 * 16),
        ("conv7/kernel", 27 * 256, 27 * 256),
        ("dense1/kernel", 8 * 256, 2048),
    ]:
        limit = (6 / (inputs + outputs)) ** 0.5
        assert 0.95 * limit < np.abs(values[name]).max() <= limit
    for number in (1, 2, 3):
        np.testing.assert_array_equal(values[f"dense{number}/bias"], np.float32(0.1))


def test_unet_has_the_paper_s_parameters():
    with tf.Graph().as_default():
        graph, volumes = make_volumes((1, 64, 48, 128, 1))
        logits = UNET3D(volumes, training=True)
    assert logits.shape.dimension_names == ["batch", "depth", "height", "width", "classes"]
    assert logits.shape.to_integer_list == [1, 64, 48, 128, 3]
    assert parameters(graph) == 19_070_560
    filters = [op.outputs[0].shape.dims[-1].size for op in graph.operations if isinstance(op, mtf.Conv3dOperation)]
    assert filters == [32, 64, 64, 128, 128, 256, 256, 512, 256, 256, 128, 128, 64, 64, 3]
    kind = mtf.Conv3dTransposeOperation
    wide = [op.outputs[0].shape.dims[-1].size for op in graph.operations if isinstance(op, kind)]
    assert wide == [512, 256, 128]


@pytest.mark.parametrize(
    ("build", "sizes", "message"),
    [
        (COSMOFLOW, (2, 24, 24, 24, 4), "24 x 24 x 24 voxels; give cubes .* a power of two from 4 to 512"),
        (COSMOFLOW, (2, 16, 16, 32, 4), "16 x 16 x 32 voxels; give cubes"),
        (COSMOFLOW, (2, 1024, 1024, 1024, 4), "1024 x 1024 x 1024 voxels"),
        (COSMOFLOW, (2, 16, 16, 4), "give an mtf.Tensor .batch, depth, height, width, channels."),
        (UNET3D, (2, 16, 12, 16, 1), "16 x 12 x 16 voxels; the network halves them 3 times; give multiples of 8"),
        (functools.partial(COSMOFLOW, strided=8), (2, 8, 8, 8, 1), "strided is 8, which is not a convolution"),
        (functools.partial(UNET3D, up=()), (2, 8, 8, 8, 1), "down has 3 levels and up has 0"),
    ],
)
def test_volumes_and_configurations_that_there_are_not(build, sizes, message):
    with tf.Graph().as_default():
        _, volumes = make_volumes(sizes)
        with pytest.raises(ValueError, match=message):
            build(volumes)


def cosmoflow_program(edge, batch=3, **config):
    def build(feed):
        dims = [mtf.Dimension(name, size) for name, size in zip(NAMES, (batch, edge, edge, edge, 2))]
        y = COSMOFLOW(feed("volumes", dims), training=True, **(TOY_COSMOFLOW | config))
        loss = mtf.reduce_mean(mtf.square(y - feed("targets", y.shape)))
        return {"y": y, "loss": loss}

    return build


def unet_program(sizes, batch=2, **config):
    def build(feed):
        dims = [mtf.Dimension(name, size) for name, size in zip(NAMES, (batch, *sizes, 2))]
        logits = UNET3D(feed("volumes", dims), training=True, **(TOY_UNET | config))
        classes = logits.shape.dims[-1]
        labels = mtf.one_hot(feed("labels", logits.shape.dims[:-1], below=3), classes, dtype=feed.dtype)
        loss = mtf.layers.softmax_cross_entropy_with_logits(logits, labels, classes)
        return {"logits": logits, "loss": mtf.reduce_mean(loss)}

    return build


def spatial(program, mesh_shape, shares):
    return lay_out(program, "spatial", training=False, mesh_shape=mesh_shape, shares=shares, least_values=1)


MESHES = {
    "two": ("depth:2", {"depth": [1, 1.7]}),
    "three": ("depth:3", {"depth": [5, 2, 3]}),
    "eight": ("depth:8", {"depth": EIGHT}),
    "depth and height": ("d:2;h:3", {"d": [3, 2], "h": [2, 1, 1]}),
    "batch and depth": ("batch:2;depth:3", {"batch": [2, 1], "depth": [2, 1, 1]}),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("mesh", "batch_norm"), [("three", True), ("three", False), ("depth and height", True), ("batch and depth", True)]
)
def test_cosmoflow_is_the_same_on_every_mesh(mesh, batch_norm):
    program = cosmoflow_program(16, batch_norm=batch_norm)
    layout = spatial(program, *MESHES[mesh])
    assert {"conv1/depth", "conv2/depth"} <= dict(layout.rules).keys()
    check(program, layout, dtype=tf.float32, tolerance=MODEL_TOLERANCE_FLOAT32, **ONCE)


@parametrize("mesh", ["two", "three", "eight"], first=["two"])
def test_unet_is_the_same_on_every_mesh(mesh):
    sizes = (16, 4, 4) if mesh == "eight" else (12, 12, 4)
    program = unet_program(sizes, **(DEEP_UNET if mesh == "three" else {}))
    layout = spatial(program, *MESHES[mesh])
    assert {"bottom/conv1/depth", "up1/depth", "transpose1/depth", "depth"} <= dict(layout.rules).keys()
    check(program, layout, dtype=tf.float32, tolerance=MODEL_TOLERANCE_FLOAT32, **ONCE)


def averaged(program):
    """The reference that moves the averages of batch norms: one processor of ours."""
    return run(program, lambda: cpu_mesh_impl(Layout("x:1", "")), tf.float32, averages=True, exports=False)


RECOMPUTED = {
    "cosmoflow": (functools.partial(cosmoflow_program, 16, batch_norm=True), ("conv1", "conv3")),
    "cosmoflow without batch norm": (functools.partial(cosmoflow_program, 16), ("all",)),
    "unet": (functools.partial(unet_program, (12, 8, 4), **DEEP_UNET), ("down1", "bottom", "up2", "up1")),
}


RECOMPUTED_ON = [  # rounding alone differs, where the layout does too
    ("cosmoflow", "one", 1e-6),
    ("cosmoflow without batch norm", "three", MODEL_TOLERANCE_FLOAT32),
    ("unet", "two", MODEL_TOLERANCE_FLOAT32),
]


@parametrize(("name", "mesh", "tolerance"), RECOMPUTED_ON, first=RECOMPUTED_ON[:1])
def test_stages_that_are_computed_again_change_no_step(name, mesh, tolerance):
    """Losses, variables, and the averages of batch norm, which move once."""
    program, recompute = RECOMPUTED[name]
    again = program(recompute=recompute)
    layout = Layout("x:1", "") if mesh == "one" else spatial(again, *MESHES[mesh])
    options = {"tolerance": tolerance, "averages": True, **ONCE}
    check(again, layout, dtype=tf.float32, reference=averaged(program()), **options)


@pytest.mark.parametrize(("build", "stage"), [(COSMOFLOW, "down1"), (UNET3D, "conv1")])
def test_stages_that_there_are_not(build, stage):
    with tf.Graph().as_default():
        _, volumes = make_volumes((2, 8, 8, 8, 1))
        with pytest.raises(ValueError, match=f"recompute names '{stage}'; it must be all or some of the stages "):
            build(volumes, recompute=(stage,))

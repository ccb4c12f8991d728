"""Ready for GPUs without one: what is placed on a GPU has a kernel there, by the registry of TensorFlow's wheel.

The ordinary wheel registers its GPU kernels on a machine without one too. On such a machine nothing else would notice
an operation that has none for its type: it is placed on the CPU, as everything is.
"""

import functools
import itertools

import pytest
from control_flow import control_flow
from oracle import Feed
from tiers import parametrize
from toy_models import PAIRS, TOY, toy_layout, toy_program

import mtf_hetero
from mtf_hetero import Layout, layers, mtf, tf
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.models import MODELS

GPU = ("GPU", "DEFAULT")  # a DEFAULT kernel is for every device, and holds its tensors in the host's memory
HALF = (tf.float16, tf.bfloat16)
B, H, W, C = (mtf.Dimension(*dim) for dim in [("b", 4), ("h", 8), ("w", 8), ("c", 6)])


@functools.cache
def gpu_kernels(kind):
    registry = pytest.importorskip("tensorflow.python.framework.kernels")
    return [kernel for kernel in registry.get_registered_kernels_for_op(kind).kernel if kernel.device_type in GPU]


def has_kernel(op):
    def fits(constraint):
        value = op.get_attr(constraint.name)
        types = {tf.as_dtype(dtype) for dtype in (value if isinstance(value, list) else [value])}
        return types <= {tf.as_dtype(dtype) for dtype in constraint.allowed_values.list.type}

    return any(all(map(fits, kernel.constraint)) for kernel in gpu_kernels(op.type))


def on_gpus(graph):
    return [op for op in graph.get_operations() if "GPU" in op.device]


def check(build, layout, dtype):
    """Lowers a training step with two optimizers to GPUs; looks for a kernel of each operation."""
    with tf.Graph().as_default() as tf_graph:
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        outputs = build(Feed(mesh, dtype))
        total = mtf.add_n([mtf.reduce_sum(y) for y in outputs.values() if y.dtype.is_floating])
        if variables := graph.trainable_variables:
            gradients = mtf.gradients([total], [v.outputs[0] for v in variables])
            for optimizer in (mtf.optimize.AdafactorOptimizer(0.1), mtf.optimize.MomentumOptimizer(0.1, 0.9)):
                optimizer.apply_grads(gradients, variables)
        devices = [f"gpu:{number}" for number in range(layout.size)]
        lowering = mtf_hetero.Lowering(graph, {mesh: mtf_hetero.UnevenMeshImpl.from_layout(layout, devices)})
        lowering.export_to_tf_tensor(total)
        placed = on_gpus(tf_graph)
        assert len(placed) > len(graph.operations)
        assert {(op.type, op.name) for op in placed if not has_kernel(op)} == set()


def test_what_has_no_kernel_is_found():
    with tf.Graph().as_default() as graph, tf.device("gpu:0"):
        text, product = tf.as_string(tf.constant(1.0)), tf.constant(1.0) * 2.0
        assert [op for op in on_gpus(graph) if not has_kernel(op)] == [text.op]
        assert product.op in on_gpus(graph)


TYPES = [*zip(TOY, itertools.cycle([*HALF, tf.float32]))]


@parametrize(("name", "dtype"), TYPES, first=[("vgg16", tf.bfloat16)])
def test_models(name, dtype):
    check(toy_program(name), toy_layout(name, *PAIRS[name][0]), dtype)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "config", "dtype"),
    [
        ("cosmoflow_small", {}, tf.float16),
        ("unet3d_small", {"training": True, "down": ((2, 3),), "bottom": (3, 4), "up": ((2, 3),)}, tf.bfloat16),
        ("unet3d_small", {"training": True}, tf.float32),
    ],
)
def test_models_of_volumes(name, config, dtype):
    def build(feed):
        return {"y": MODELS[name].build(feed("x", "batch:2 depth:16 height:16 width:16 channels:1"), **config)}

    with tf.Graph().as_default():
        graph = mtf.Graph()
        build(Feed(mtf.Mesh(graph, "mesh"), dtype))
    check(build, LAYOUTS["spatial"](graph, mesh_shape="x:2", shares={"x": [2, 1]}), dtype)


def image_layers(feed):
    """Apply layers in mixed precision: half-precision images, float32 variables."""
    dtype = mtf.VariableDType(tf.float32, tf.float32, feed.dtype)
    x = feed("x", [B, H, W, C])
    x = layers.grouped_conv2d(x, mtf.Dimension("f", 6), groups=2, variable_dtype=dtype)
    x = layers.upsample(layers.depthwise_conv2d(x, multiplier=2, variable_dtype=dtype), 2, method="bilinear")
    x = layers.batch_norm(layers.pool(x, kind="max", size=3, strides=2, padding="SAME"), training=True)
    x = mtf.relu(mtf.layers.conv2d(x, mtf.Dimension("g", 8), variable_dtype=dtype, name="conv"))
    x = mtf.dropout(layers.pool(x, kind="avg", size=2), is_training=True, keep_prob=0.5)
    y = mtf.layers.dense(x, mtf.Dimension("o", 3), reduced_dims=x.shape.dims[1:], variable_dtype=dtype, name="dense")
    return {"y": y}


def table(ids_dtype):
    """Lookups with the check of ids, which is made on the CPU, of a table whose rows may be split."""
    rows = mtf.Dimension("v", 5)

    def build(feed):
        ids = mtf.cast(feed("ids", [B, H], below=rows.size), ids_dtype)
        ids = mtf.cwise(lambda x: tf.where(x < 0, x + rows.size, x), [ids])
        types = mtf.VariableDType(tf.float32, tf.float32, feed.dtype)
        table = mtf.layers.embedding_weights(feed.mesh, rows, C, types, name="table")
        return {"y": mtf.relu(layers.lookup(table, ids, rows))}

    return build


def random_numbers(feed):
    functions = (tf.random.uniform, tf.random.normal, tf.random.truncated_normal)
    shape = mtf.Shape([B, C])
    drawn = {f.__name__: mtf.RandomOperation(feed.mesh, shape, f, dtype=feed.dtype).outputs[0] for f in functions}
    return {**drawn, "int": mtf.random_uniform(feed.mesh, shape, dtype=tf.int32, maxval=7)}


LAYERS = {
    "image layers": (image_layers, ["h:x;b:y", "c:x;f:y", "b:x"]),
    "lookups by int32": (table(tf.int32), ["v:x;b:y", "b:x", "c:x;h:y"]),
    "lookups by int64": (table(tf.int64), ["v:x;b:y", "b:x", "c:x;h:y"]),
    "random numbers": (random_numbers, ["c:x"]),
}


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.full)])
@parametrize("dtype", [tf.float32, *HALF], first=[tf.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, dtype, count):
    build, rules = LAYERS[name]
    for rule in rules[:count]:
        check(build, Layout("x:2;y:2", rule, {"x": [2, 1]}), dtype)


def test_random_numbers_in_loops():
    """Each operation of a loop is in the graph itself, as in a program that disables TensorFlow 2's control flow."""

    def build(feed):
        def turn(i, x):
            return [i + 1, x + mtf.random_normal(feed.mesh, x.shape)]

        start = [mtf.constant(feed.mesh, 0, dtype=tf.int32), mtf.zeros(feed.mesh, mtf.Shape([B, C]))]
        return {"y": mtf.while_loop(lambda i, x: mtf.less(i, 3), turn, start)[1]}

    with control_flow(1):
        check(build, Layout("x:2", "c:x", {"x": [2, 1]}), tf.float32)

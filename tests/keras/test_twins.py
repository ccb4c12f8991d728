"""Keras twins of the project's networks: what the network infers, and how it is trained, from the same weights."""

from typing import Any

import keras
import numpy as np
import pytest
from tiers import parametrize
from toy_models import TOY

import mtf_hetero
import mtf_hetero.layers
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cli.train import program
from mtf_hetero.keras import to_keras
from mtf_hetero.keras.twin import Twin
from mtf_hetero.models import MODELS, Model

BATCH = 3
SMALL = {  # of each network, what makes it small: shape of images, and changes of its configuration
    name: ((toy["size"] + 1, toy["size"], MODELS[name].image_shape[-1]), {"classes": 4, **toy["config"]})
    for name, toy in TOY.items()
} | {
    "cosmoflow": ((16, 16, 16, 2), {"filters": (2, 3, 2, 3), "strided": 3, "head": (5, 4)}),
    "cosmoflow_bn": ((8, 8, 8, 2), {"filters": (2, 3, 2), "strided": 2, "head": (5,), "outputs": 2}),
    "cosmoflow_small": ((16, 16, 16, 1), {"filters": (2, 3, 2, 3), "head": (5,)}),
    "unet3d": ((8, 8, 8, 1), {"down": ((2, 3), (3, 4)), "bottom": (4, 5), "up": ((2, 3), (3, 2))}),
    "unet3d_small": ((4, 8, 4, 2), {"batch_norm": False, "classes": 4}),
}
for _, changes in SMALL.values():
    changes.pop("training", None)
FIRST = ("lenet", "resnet50", "unet3d", "vgg13")


def compared_dtype(name):
    """Return the type to compare in: TensorFlow has no 3D pools in float64 on a CPU."""
    return tf.float32 if MODELS[name].takes_volumes else tf.float64


def randomised(twin, seed=3):
    """The twin, none of whose weights is zero or one by chance."""
    rng = np.random.default_rng(seed)
    for name, weight in twin.weights.items():
        value = rng.standard_normal(weight.variable.shape)
        if name.endswith("kernel"):
            value *= (2 / np.prod(value.shape[:-1])) ** 0.5
        elif name.endswith(("scale", "moving_variance")):
            value = 1 + 0.3 * np.abs(value)
        else:
            value *= 0.1
        weight.variable.assign(value)
    return twin


def without_chance(config, name):
    return {**config, "dropout": 0.0} if name.startswith(("alexnet", "cosmoflow", "vgg")) else config


def mtf_arrays(twin):
    """{mtf variable: its value} of the twin's weights."""
    return {name: weight.to_mtf(weight.variable.numpy()) for name, weight in twin.weights.items()}


def of_the_network(name, images, twin, config, *, training):
    """Outputs, gradients of the sum of their squares, and moving averages, of the network with the twin's weights."""
    values = mtf_arrays(twin)
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        names = ["batch", *program.IMAGE[-(images.ndim - 1) :]]
        shape = mtf.Shape([mtf.Dimension(*dim) for dim in zip(names, images.shape, strict=True)])
        outputs = MODELS[name].build(
            mtf.import_tf_tensor(mesh, tf.constant(images), shape), training=training, **config
        )
        assert {v.name for v in graph.all_variables} == set(twin.weights)
        variables = graph.trainable_variables
        gradients = mtf.gradients([mtf.reduce_sum(mtf.square(outputs))], [v.outputs[0] for v in variables])
        updates = mtf_hetero.layers.batch_norm_updates(graph)
        lowering = mtf_hetero.Lowering(
            graph, {mesh: mtf_hetero.UnevenMeshImpl.from_layout(Layout("all:1", ()), ["cpu:0"])}
        )
        fetched = {
            "outputs": lowering.export_to_tf_tensor(outputs),
            "gradients": {v.name: lowering.export_to_tf_tensor(g) for v, g in zip(variables, gradients, strict=True)},
        }
        held = {v._save_slice_info.full_name: v for v in tf.global_variables()}
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            for variable, value in values.items():
                held[variable].load(value, session)
            values = session.run(fetched)
            session.run([lowering.lowered_operation(op) for op in updates])
            values["averages"] = session.run({name: held[name] for name in held if "moving" in name})
    return values


def of_the_twin(images, twin, *, training):
    """The same of the twin."""
    trainable = {n: w for n, w in twin.weights.items() if w.variable.trainable}
    with tf.GradientTape() as tape:
        outputs = twin.model(images, training=training)
        loss = tf.reduce_sum(tf.square(outputs))
    gradients = tape.gradient(loss, [w.variable.value for w in trainable.values()])
    return {
        "outputs": outputs.numpy(),
        "gradients": {n: w.to_mtf(g.numpy()) for (n, w), g in zip(trainable.items(), gradients, strict=True)},
        "averages": {n: w.to_mtf(w.variable.numpy()) for n, w in twin.weights.items() if "moving" in n},
    }


def check(name, image_shape, config, *, training):
    dtype = compared_dtype(name)
    twin = randomised(MODELS[name].twin(image_shape=image_shape, dtype=dtype.name, **config))
    images = np.random.default_rng(1).standard_normal((BATCH, *image_shape)).astype(dtype.as_numpy_dtype)
    expected = of_the_network(name, images, twin, config, training=training)
    found = of_the_twin(images, twin, training=training)
    tolerance = {"rtol": 1e-8, "atol": 1e-10} if dtype == tf.float64 else {"rtol": 1e-3, "atol": 1e-5}
    scale = max(1.0, np.abs(expected["outputs"]).max())
    np.testing.assert_allclose(found["outputs"] / scale, expected["outputs"] / scale, **tolerance)
    for kind in ("gradients", "averages"):
        assert found[kind].keys() == expected[kind].keys()
        largest = max([1.0, *(np.abs(value).max() for value in expected[kind].values())])
        for variable, value in expected[kind].items():
            np.testing.assert_allclose(found[kind][variable] / largest, value / largest, **tolerance, err_msg=variable)


def test_each_network_has_a_twin():
    assert set(SMALL) == set(MODELS)


@parametrize(
    ("name", "training"),
    [*((name, True) for name in SMALL), *((name, False) for name in FIRST)],
    first=[("lenet", True), ("vgg13", True)],
)
def test_a_twin_infers_and_is_trained_as_the_network(name, training):
    shape, config = SMALL[name]
    check(name, shape, without_chance(config, name), training=training)


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_a_twin_has_the_network_s_size(name):
    model = MODELS[name]
    twin = model.twin()
    assert sum(w.variable.value.shape.num_elements() for w in twin.weights.values() if w.variable.trainable) == (
        model.parameters
    )
    assert {id(w.variable) for w in twin.weights.values()} >= {id(v) for v in twin.model.trainable_variables}
    assert {type(layer).__module__.split(".")[0] for layer in twin.model.layers} == {"keras"}


def test_dropout_is_where_the_network_has_it():
    rates = {}
    for name in ("alexnet", "vgg11", "cosmoflow"):
        twin = MODELS[name].twin(**{"image_shape": SMALL[name][0], **SMALL[name][1]})
        rates[name] = [layer.rate for layer in twin.model.layers if isinstance(layer, keras.layers.Dropout)]
    assert rates == {"alexnet": [0.5, 0.5], "vgg11": [0.5, 0.5], "cosmoflow": [0.2, 0.2, 0.2]}


def saved(path, values):
    """A checkpoint of arrays."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.Variable(value, name=name, use_resource=True) for name, value in values.items()]
        session.run(tf.global_variables_initializer())
        return tf.train.Saver(variables).save(session, str(path))


def test_a_checkpoint_becomes_a_keras_file(tmp_path):
    shape, config = SMALL["vgg13"]
    twin = randomised(MODELS["vgg13"].twin(image_shape=shape, **config))
    checkpoint = saved(tmp_path / "model.ckpt-7", mtf_arrays(twin))
    model = to_keras(MODELS["vgg13"], checkpoint, image_shape=shape, **config)
    model.save(tmp_path / "vgg.keras")
    images = np.random.default_rng(1).standard_normal((BATCH, *shape)).astype(np.float32)
    expected = np.asarray(twin.model(images))
    of_directory = to_keras(MODELS["vgg13"], tmp_path, image_shape=shape, **config)
    of_file: Any = keras.saving.load_model(tmp_path / "vgg.keras")
    for found in (of_directory, of_file):
        np.testing.assert_array_equal(np.asarray(found(images)), expected)


def test_a_keras_model_gets_what_was_trained(tmp_path):
    images = keras.Input((6, 5, 2))
    x = keras.layers.BatchNormalization(name="norm")(keras.layers.Conv2D(4, 3, name="conv")(images))
    model = keras.Model(images, keras.layers.Dense(3, name="head")(keras.layers.Flatten()(x)))
    twin = Twin.of(model)
    assert {id(weight.variable) for weight in twin.weights.values()} == {id(v) for v in model.variables}
    rng = np.random.default_rng(1)
    values = {name: rng.random(weight.shape).astype(np.float32) for name, weight in twin.weights.items()}
    assert to_keras(model, saved(tmp_path / "model.ckpt-1", values)) is model
    for name, weight in twin.weights.items():
        np.testing.assert_array_equal(weight.to_mtf(weight.variable.numpy()), values[name], err_msg=name)


def test_mistakes_are_named(tmp_path):
    shape, config = SMALL["lenet"]
    model = MODELS["lenet"]
    options = {"image_shape": shape, **config}
    with pytest.raises(ValueError, match="has no checkpoint; give a checkpoint, or another directory"):
        to_keras(model, tmp_path, **options)
    with pytest.raises(
        ValueError, match="is not a checkpoint; give one, as in MODEL_DIR/model.ckpt-500, or a directory"
    ):
        to_keras(model, tmp_path / "none", **options)
    checkpoint = saved(tmp_path / "model.ckpt-1", {"conv1/kernel": np.zeros([5, 5, 1, 4], np.float32)})
    message = r"variable 'conv1/kernel' has shape \[5, 5, 1, 5\] in this network, but shape \[5, 5, 1, 4\] in the"
    with pytest.raises(ValueError, match=f"{checkpoint} belongs to another network: {message}"):
        to_keras(model, checkpoint, **options)
    with pytest.raises(ValueError, match="classes: a keras.Model has no such options; remove them"):
        to_keras(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), checkpoint, classes=3)
    with pytest.raises(ValueError, match="this network has no Keras twin; give its Model a twin"):
        to_keras(Model(model.build, model.image_shape, 10, 0))

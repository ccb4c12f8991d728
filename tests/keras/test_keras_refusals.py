"""Refusals by name: what `mtf_hetero.keras.fit` does not do, and models whose own step is imported, not built."""

import json

import keras
import pytest
from fit_oracle import ONE, check, images, made, network

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.cluster import Cluster
from mtf_hetero.keras import compiled as compiled_lib

ORTHOGONAL = keras.regularizers.OrthogonalRegularizer()


def compiled():
    model = network()
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def refused(error, match, model=None, data=None, **options):
    with pytest.raises(error, match=match) as caught:
        mtf_hetero.keras.fit(model or made(compiled), *(data or images()), verbose=0, **options)
    assert len(str(caught.value).splitlines()) == 1


def not_built(match, model, *data):
    """Asserts that fit imports the step of a model, and that the reason has a name."""

    def look():
        compiled_lib.check(model)
        mtf_hetero.keras.build(model)

    with pytest.raises(NotImplementedError, match=match) as caught:
        compiled_lib.check_added(model, *data) if data else look()
    assert len(str(caught.value).splitlines()) == 1
    assert data or mtf_hetero.keras.fitting._builder_of(model) is None


def test_what_is_refused_by_name():
    refused(ValueError, "is not compiled; call model.compile", network())
    model = network()
    model.compile("sgd")
    refused(ValueError, "is compiled without a loss", model)


def test_optimizers_and_regularizers_that_are_imported():
    model = network()
    model.compile(keras.optimizers.Adafactor(), "mse")
    not_built("the optimizer is a Adafactor, which .* use one of SGD, Adam", model)
    model.compile(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    not_built("its optimizer is a LossScaleOptimizer, .* mixed_bfloat16 or float32", model)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activity_regularizer=ORTHOGONAL, name="dense")])
    model.compile("sgd", "mse")
    not_built("the output of layer 'dense' has the regularizer OrthogonalRegularizer", model)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, kernel_regularizer=ORTHOGONAL, name="dense")])
    model.compile("sgd", "mse")
    not_built("weight '.*dense/kernel' has the regularizer OrthogonalRegularizer", model)


def test_what_does_not_fit_together():
    refused(ValueError, "layout is 'bach'; it must be one of batch, even", layout="bach")
    refused(
        ValueError,
        r"list_speed is \[1, 2\] and layout 'auto': it chooses all sizes; remove list_speed",
        list_speed=[1, 2],
    )
    two = {"devices": "cpu:0,cpu:1", "layout": "batch"}
    refused(ValueError, "list_speed is '3': .* 1 numbers for 2 processors; give one per", list_speed="3", **two)
    refused(ValueError, "'fast' is not a number; give one per processor", list_speed="fast,slow", **two)
    layout = mtf_hetero.Layout("all:3", "batch:all")
    refused(ValueError, "mesh all:3 has 3 processors, but there are 2 devices", devices="cpu:0,cpu:1", layout=layout)
    refused(ValueError, "devices names 'cpu'; write cpu:N or gpu:N", devices="cpu")
    refused(ValueError, r'devices is 3; name each one, as in \["gpu:0"\]', devices=3)
    refused(ValueError, r"devices is \[0, 1\]; name each one", devices=[0, 1])
    refused(ValueError, "workers is Cluster.* name each one", workers=Cluster.local(["cpu:0"]))
    with pytest.raises(ValueError, match="model is a str; give a keras.Model"):
        mtf_hetero.keras.fit("model.keras", *images())


def test_devices_of_this_process_and_an_environment_that_names_others(monkeypatch):
    cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    refused(ValueError, "all belong to this process, but TF_CONFIG .* of 1 workers; unset TF_CONFIG", devices="cpu:0")
    monkeypatch.setenv("TF_CONFIG", "{")
    refused(ValueError, "TF_CONFIG is invalid: .* unset TF_CONFIG", devices="cpu:0")
    monkeypatch.delenv("TF_CONFIG")
    for name, value in {"PROCID": "1", "STEP_NUM_TASKS": "4", "STEP_NODELIST": "n", "STEP_TASKS_PER_NODE": "4"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    refused(ValueError, "but Slurm describes .* of 3 workers; unset SLURM_STEP_NUM_TASKS", devices=["cpu:0", "cpu:1"])
    refused(ValueError, "is worker 0 of Slurm; .* or unset SLURM_STEP_NUM_TASKS")


def test_what_a_layout_cannot_split_is_no_reason_to_import(monkeypatch):
    def lower(*_, **__):
        raise NotImplementedError("the layout")

    monkeypatch.setattr("mtf_hetero.importer.session.Session.lower", lower)
    refused(NotImplementedError, "^the layout$", devices="cpu:0")


def owners(name):
    """A model with a method of its own, on the instance, and one of a class with it."""
    model = made(compiled)
    setattr(model, name, lambda *_, **__: 1 / 0)
    kind = type("Own", (keras.Model,), {name: lambda *_, **__: 1 / 0})
    own = kind(model.inputs, model.outputs)
    own.compile("sgd", "mse")
    return model, own


@pytest.mark.parametrize("name", ["make_train_function", "make_test_function"])
def test_functions_that_are_not_called(name):
    model, own = owners(name)
    refused(NotImplementedError, rf"has its own {name} \(set on the instance\)", model)
    refused(NotImplementedError, rf"has its own {name} \(of its class Own\)", own)


@pytest.mark.parametrize("name", ["train_step", "test_step", "compute_loss"])
def test_steps_that_are_imported(name):
    model, own = owners(name)
    not_built(rf"has its own {name} \(set on the instance\)", model)
    not_built(rf"has its own {name} \(of its class Own\)", own)


def test_calls_and_rules_that_are_imported():
    model = made(compiled)
    model.call = lambda x, training=None: x
    not_built("model '.*' has its own call, set on the instance", model)
    model = made(compiled)
    model.layers[1].call = lambda x: x
    not_built("layer 'conv2d' has its own call, set on the instance", model)
    model = made(compiled)
    model.optimizer.update_step = lambda *_: None
    not_built("the optimizer has its own update_step", model)


class Scales(keras.Layer):
    """Does more than its registered function."""

    def __init__(self, more, **options):
        super().__init__(**options)
        self.more = more
        self.mean = keras.metrics.Mean(name="mean") if more == "metric" else None

    def build(self, shape):
        self.factor = self.add_weight(shape=(), name="factor", initializer="ones")

    def call(self, x):
        if self.more == "loss":
            self.add_loss(keras.ops.mean(x))
        if self.mean is not None:
            self.mean.update_state(x)
        return x * self.factor


@mtf_hetero.keras.register(Scales)
def scales(call, x):
    return x * call.variable(call.layer.factor, [])


def scaled(more, *, nested=False, **options):
    layer = Scales(more, name="scales", **options)
    inputs = keras.Input((6, 6, 3))
    x = keras.Sequential([keras.Input((6, 6, 3)), layer])(inputs) if nested else layer(inputs)
    model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(keras.layers.Flatten()(x)))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize("nested", [False, True])
def test_losses_and_metrics_of_layers(nested):
    not_built("layer 'scales' adds a loss by add_loss", scaled("loss", nested=nested), images()[0])
    not_built("layer 'scales' keeps the metric 'mean'", scaled("metric", nested=nested), images()[0])
    check(lambda: scaled("nothing", nested=nested, activity_regularizer="l2"), *images(), places=[ONE])


def on_ids(layer, lora=False):
    inputs = keras.Input((4,), dtype="int32")
    x = layer(inputs)
    if lora:
        layer.enable_lora(2)
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling1D()(x)))


def on_images(layer, change):
    inputs = keras.Input((6, 6, 3))
    x = layer(inputs)
    change(layer)
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.Flatten()(x)))


def recurrent():
    inputs = keras.Input((4, 3))
    x = keras.layers.Masking(name="masking")(inputs)
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.LSTM(3)(x)))


def mirrored():
    with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
        return network()


class Own(keras.Model):
    """Calls its layers itself."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(5)

    def call(self, x):
        return self.dense(x)


def lora(layer):
    return on_images(layer, lambda made: made.enable_lora(2))


REFUSED = {
    "mask_zero": (lambda: on_ids(keras.layers.Embedding(7, 3, mask_zero=True, name="e")), "'e' has mask_zero=True"),
    "Masking": (recurrent, "layer 'masking' is a Masking"),
    "LoRA of Dense": (lambda: lora(keras.layers.Dense(4, name="d")), r"layer 'd' has LoRA \(enable_lora\)"),
    "LoRA of Conv2D": (lambda: lora(keras.layers.Conv2D(4, 3, name="c")), "layer 'c' has LoRA"),
    "LoRA of Embedding": (lambda: on_ids(keras.layers.Embedding(7, 3, name="e"), lora=True), "layer 'e' has LoRA"),
    "int8": (
        lambda: on_images(keras.layers.Dense(4, name="d"), lambda made: made.quantize("int8")),
        r"layer 'd' is quantized \(int8\)",
    ),
    "subclassed": (Own, "is a Own, whose own code calls its layers; .* train it with model.fit"),
    "strategy": (mirrored, "in the scope of a tf.distribute strategy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_user_wrote_is_named(name):
    make, message = REFUSED[name]
    model = make()
    model.compile("sgd", "mse")
    if name == "strategy":
        refused(NotImplementedError, message, model)
    else:
        not_built(message, model)


@pytest.mark.full
@pytest.mark.parametrize("more", ["loss", "metric"])
def test_losses_and_metrics_of_layers_are_imported(more):
    check(lambda: scaled(more, nested=True), *images(), validation_data=images(9, seed=1))


def test_mixed_precision_with_a_loss_scale():
    def halved():
        keras.config.set_dtype_policy("mixed_float16")
        try:
            return compiled()
        finally:
            keras.config.set_dtype_policy("float32")

    model = made(halved)
    not_built("the dtype policy mixed_float16, .* mixed_bfloat16 or float32", model)

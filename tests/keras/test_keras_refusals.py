"""Refusals by name: what `mtf_hetero.keras.fit` does not do, and what it no longer refuses and does as Keras."""

import json

import keras
import pytest
from fit_oracle import BATCH, ONE, check, images, make_model, network

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.cluster import Cluster


def compiled():
    model = network()
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


@pytest.fixture(scope="module")
def model():
    """A model that no refused training changes."""
    return make_model(compiled)


def refused(error, match, model, **options):
    with pytest.raises(error, match=match) as caught:
        mtf_hetero.keras.fit(model, *images(), verbose=0, **options)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_not_compiled(model):
    import tf_keras  # which is imported in seconds, here alone

    refused(ValueError, "is not compiled; call model.compile", network())
    with pytest.raises(ValueError, match="is not compiled; call model.compile"):
        mtf_hetero.keras.evaluate(network(), *images())
    for run in (mtf_hetero.keras.fit, mtf_hetero.keras.evaluate, mtf_hetero.keras.predict):
        with pytest.raises(ValueError, match="model is a str; give a keras.Model"):
            run("model.keras", images()[0])
        with pytest.raises(ValueError, match="x is None; give the data"):
            run(model)
        with pytest.raises(ValueError, match="model is a Sequential of Keras 2; make it with Keras 3, or give its tra"):
            run(tf_keras.Sequential(), images()[0])


TWO = {"devices": "cpu:0,cpu:1", "layout": "batch"}
WRONG = [  # options, and what is said of them
    ({"layout": "bach"}, "layout is 'bach'; it must be one of batch, even"),
    ({"list_speed": [1, 2]}, r"list_speed is \[1, 2\] and layout 'auto': it chooses all sizes; remove list_speed"),
    ({"list_speed": "3", **TWO}, "list_speed is '3': .* 1 number for 2 processors; give one per"),
    ({"list_speed": "fast,slow", **TWO}, "'fast' is not a number; give one per processor"),
    ({**TWO, "layout": mtf_hetero.Layout("all:3", "batch:all")}, "all:3 has 3 processors, but there are 2 devices"),
    ({"devices": "cpu"}, "devices names 'cpu'; write cpu:N or gpu:N"),
    ({"devices": 3}, r'devices is 3; name each one, as in \["gpu:0"\]'),
    ({"devices": [0, 1]}, r"devices is \[0, 1\]; name each one"),
    ({"workers": Cluster.local(["cpu:0"])}, "workers is a Cluster without workers; leave it out"),
]


def test_what_does_not_fit_together(model):
    for options, message in WRONG:
        refused(ValueError, message, model, **options)


def test_devices_of_this_process_and_an_environment_that_names_others(model, monkeypatch):
    cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    message = "all belong to this process, but TF_CONFIG .* of 1 workers; unset TF_CONFIG"
    refused(ValueError, message, model, devices="cpu:0")
    monkeypatch.setenv("TF_CONFIG", "{")
    refused(ValueError, "TF_CONFIG is invalid: .* unset TF_CONFIG", model, devices="cpu:0")
    monkeypatch.delenv("TF_CONFIG")
    for name, value in {"PROCID": "1", "STEP_NUM_TASKS": "4", "STEP_NODELIST": "n", "STEP_TASKS_PER_NODE": "4"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    message = "but Slurm describes .* of 3 workers; unset SLURM_STEP_NUM_TASKS"
    refused(ValueError, message, model, devices=["cpu:0", "cpu:1"])
    refused(ValueError, "is worker 0 of Slurm; .* or unset SLURM_STEP_NUM_TASKS", model)


def owners(name, method):
    """A model with a method of its own, on the instance, and one of a class with it."""
    model = make_model(compiled)
    setattr(model, name, method.__get__(model))
    own = type("Own", (keras.Model,), {name: method})(model.inputs, model.outputs)
    own.compile("sgd", "mse")
    return model, own


@pytest.mark.parametrize("kind", ["train", "test", "predict"])
def test_functions_that_are_not_called(kind):
    name = f"make_{kind}_function"
    run = mtf_hetero.keras.predict if kind == "predict" else mtf_hetero.keras.fit
    for model, where in zip(owners(name, lambda self: 1 / 0), ("set on the instance", "of its class Own")):
        with pytest.raises(NotImplementedError, match=rf"has its own {name} \({where}\)") as caught:
            run(model, images()[0], **ONE)
        assert "\n" not in str(caught.value)


def test_a_loop_of_its_own_that_takes_other_data():
    def fit(self, *, dataset=None, **options):
        return keras.Model.fit(self, dataset, **options)

    _, model = owners("fit", fit)
    refused(
        NotImplementedError, "has its own fit .*class Own.* x and y; make it .* fit = keras.Model.fit$", model, **ONE
    )


def test_steps_that_run_eagerly():
    """Keras would run the model's Python code in every step."""
    model = make_model(compiled)
    model.compile("sgd", "mse", run_eagerly=True)
    refused(NotImplementedError, r"runs eagerly by model.compile\(run_eagerly=True\)", model, **ONE)
    tf.config.run_functions_eagerly(True)
    try:
        refused(
            NotImplementedError, r"runs eagerly by tf.config.run_functions_eagerly\(True\)", make_model(compiled), **ONE
        )
    finally:
        tf.config.run_functions_eagerly(False)


def test_a_strategy_of_tensorflow(model):
    with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
        refused(NotImplementedError, "in the scope of a tf.distribute strategy", model, **ONE)
        model = network()
    model.compile("sgd", "mse")
    refused(NotImplementedError, "in the scope of a tf.distribute strategy", model, **ONE)


def with_own(change):
    def make():
        model = make_model(compiled)
        return change(model) or model

    return make


def train_step(self, data):
    return {**keras.Model.train_step(self, data), "twice": self.optimizer.iterations * 2}


def halved(model):
    layer = model.layers[1]
    call = layer.call
    layer.call = lambda x: call(x) / 2


OWN = {"train_step": lambda model: setattr(model, "train_step", train_step.__get__(model)), "a layer's call": halved}


@pytest.mark.full
@pytest.mark.parametrize("name", OWN)
def test_what_the_user_overrides_is_run(name):
    check(with_own(OWN[name]), *images(16), places=[BATCH])

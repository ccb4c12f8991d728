"""The Estimator with uneven meshes: trained on one layout, resumed, evaluated and applied on others."""

import os
import shutil

import numpy as np
import pytest
from serving import run_signature
from tiers import parametrize
from uneven_estimator import BATCH, INPUTS, LAYOUTS, OPTIMIZERS, X, Y, estimator, input_fn, model_fn

from mtf_hetero import Estimator, EstimatorSpec, ModeKeys, RunConfig, tf
from mtf_hetero.estimator import export


def one_pass():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH.size, drop_remainder=True)


def values(trained):
    return {name: trained.get_variable_value(name) for name in trained.get_variable_names()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """One device: the values after 3 and after 6 steps, the evaluation and the predictions then."""
    trained = estimator("one", tmp_path_factory.mktemp("one")).train(input_fn, max_steps=3)
    middle = values(trained)
    trained.train(input_fn, max_steps=6)
    return middle, values(trained), trained.evaluate(one_pass), list(trained.predict(one_pass))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The directory of three steps on three processors."""
    directory = tmp_path_factory.mktemp("three")
    estimator("three", directory).train(input_fn, max_steps=3)
    return directory


@parametrize("second", ["four", "batch", "empty", "one"], first=["four"])
def test_train_on_three_and_go_on_on_any_other(tmp_path, expected, three, second):
    middle, last, metrics, predictions = expected
    for name, value in values(estimator("three", three)).items():
        np.testing.assert_allclose(value, middle[name], rtol=0, atol=1e-9, err_msg=name)
    shutil.copytree(three, tmp_path, dirs_exist_ok=True)
    resumed = estimator(second, tmp_path).train(input_fn, max_steps=6)
    assert set(values(resumed)) == set(last), "the logical variables and nothing else"
    for name, value in values(resumed).items():
        np.testing.assert_allclose(value, last[name], rtol=0, atol=1e-9, err_msg=name)
    assert resumed.evaluate(one_pass)["loss"] == pytest.approx(metrics["loss"], rel=1e-6)
    np.testing.assert_allclose(list(resumed.predict(one_pass)), predictions, rtol=0, atol=1e-9)


def check_the_end_of_the_data(make, tolerance=0.0):
    """Train to the end of the data, twice, and compare with trainings that end before: the variables are the same.

    Args:
      make: returns an Estimator for the name of a directory.
      tolerance: of the variables.
    """
    to_the_end, stopped = make("to_the_end"), make("stopped")
    for batches, steps in [(5, 5), (4, 9)]:
        to_the_end.train(lambda batches=batches: input_fn().take(batches))
        stopped.train(input_fn, max_steps=steps)
        found, last = values(to_the_end), values(stopped)
        assert found["global_step"] == steps
        for name, value in last.items():
            np.testing.assert_allclose(found[name], value, tolerance, tolerance, err_msg=name)


ENDS = [(optimizer, layout) for optimizer in OPTIMIZERS for layout in ("one", "three", "batch", "four")]


@parametrize(("optimizer", "layout"), ENDS, first=[("momentum", "one"), ("momentum", "three")])
def test_the_end_of_the_data_changes_nothing(optimizer, layout, tmp_path):
    is_float32 = optimizer in ("adam", "adafactor")  # in which TensorFlow's products may add in another order
    params = {"optimizer": optimizer, "dtype": tf.float32 if is_float32 else tf.float64}
    check_the_end_of_the_data(
        lambda name: estimator(layout, tmp_path / name, params=params), 1e-5 if is_float32 else 0.0
    )


@pytest.mark.full
@pytest.mark.parametrize("waits", [True, False])
def test_the_end_of_the_data_changes_nothing_on_workers(waits, workers, tmp_path):
    """Also if no lost worker is waited for, and so no values need be there before the first update."""
    cluster = workers.cluster
    params = {"layout": LAYOUTS["three"], "devices": cluster.devices}
    config = RunConfig(
        master=cluster.target,
        session_config=cluster.session_config(),
        workers=cluster.workers_in_use,
        wait_for_workers=waits,
    )
    check_the_end_of_the_data(lambda name: Estimator(model_fn, str(tmp_path / name), config, params), 1e-12)


@parametrize("layout", ["three", "empty"], first=["three"])
def test_a_model_that_is_exported_from_any_layout(layout, tmp_path):
    trained = estimator("three", tmp_path / "model").train(input_fn, max_steps=2)
    expected = np.array(list(trained.predict(one_pass)))

    def receiver():
        x = tf.placeholder(tf.float32, [BATCH.size, INPUTS.size], "x")
        return export.ServingInputReceiver(tf.cast(x, tf.float64), {"x": x})

    directory = estimator(layout, tmp_path / "model").export_saved_model(tmp_path / "served", receiver)
    assert os.path.dirname(directory) == str(tmp_path / "served")
    for begin in range(0, len(X), BATCH.size):
        batch = slice(begin, begin + BATCH.size)
        (found,) = run_signature(directory, X[batch].astype(np.float32), name="x", counts=[BATCH.size])
        np.testing.assert_allclose(found["output"], expected[batch], atol=1e-5)
    names = {name for name, _ in tf.train.list_variables(os.path.join(directory, "variables", "variables"))}
    assert names == {f"{layer}/{part}" for layer in ("first", "second") for part in ("kernel", "bias")}


def test_export_outputs_name_the_signatures(tmp_path):
    one, two = tf.constant(1.0), {"a": tf.constant(2.0)}
    several = {"one": export.PredictOutput(one), "serving_default": export.PredictOutput(two)}
    spec = EstimatorSpec(ModeKeys.PREDICT, predictions=one, export_outputs=several)
    assert export.signatures(spec, "serving_default") == {"one": {"output": one}, "serving_default": two}
    del several["serving_default"]
    assert export.signatures(spec, "serving_default")["serving_default"] == {"output": one}
    several["two"] = export.PredictOutput(two)
    with pytest.raises(ValueError, match="export_outputs are one, two; name the default output 'serving_default'"):
        export.signatures(spec, "serving_default")
    with pytest.raises(ValueError, match=r"export_outputs\['x'\] is 3; it must be a PredictOutput"):
        export.signatures(EstimatorSpec(ModeKeys.PREDICT, predictions=one, export_outputs={"x": 3}), "x")

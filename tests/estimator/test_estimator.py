"""The Estimator: train, evaluate, predict, resume, checkpoints, summaries, meshes and servers."""

import functools
import os

import numpy as np
import pytest
from estimator_oracle import CountHook, X, line_data, line_model, line_steps, log_lines, make, scalars, trained_steps

from mtf_hetero import estimator as estimator_lib
from mtf_hetero._compat import tf
from mtf_hetero.estimator import Estimator, EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec


@pytest.fixture(name="log")
def _log(monkeypatch):
    return log_lines(monkeypatch)


def test_train_evaluate_predict(tmp_path):
    estimator = make(tmp_path)
    assert estimator.train(line_data, steps=3) is estimator
    w = line_steps(0.0, 3)
    assert estimator.get_variable_value("w") == pytest.approx(w, rel=1e-5)
    assert {"w", "global_step"} <= set(estimator.get_variable_names())
    metrics = estimator.evaluate(functools.partial(line_data, repeat=1))
    assert metrics["global_step"] == 3
    assert metrics["error"] == pytest.approx(np.mean(np.abs(w - 2) * X), rel=1e-5)
    assert metrics["loss"] == pytest.approx(np.mean(np.square((w - 2) * X)), rel=1e-5)
    predictions = list(estimator.predict(functools.partial(line_data, repeat=1)))
    np.testing.assert_allclose([p["y"] for p in predictions], w * X, rtol=1e-5)
    np.testing.assert_array_equal([p["x"] for p in predictions], X)


def test_steps_add_and_max_steps_is_absolute(tmp_path, log):
    estimator = make(tmp_path)
    estimator.train(line_data, steps=2).train(line_data, steps=2)
    assert trained_steps(estimator) == 4
    estimator.train(line_data, max_steps=7)
    assert trained_steps(estimator) == 7
    before = estimator.get_variable_value("w")
    hook = CountHook()
    estimator.train(line_data, max_steps=7, hooks=[hook])
    assert hook.count == 0 and estimator.get_variable_value("w") == before
    assert any("nothing to train" in line and "step 7 of 7" in line for line in log)


def test_user_hooks_run_and_may_stop(tmp_path):
    class StopHook(CountHook):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            if self.count == 2:
                run_context.request_stop()

    hook = StopHook()
    estimator = make(tmp_path).train(line_data, steps=9, hooks=[hook])
    assert hook.count == 2 and trained_steps(estimator) == 2
    count = CountHook()
    estimator.evaluate(line_data, steps=3, hooks=[count])
    assert count.count == 3


def test_checkpoints_are_periodic_and_pruned(tmp_path):
    estimator = make(tmp_path, save_checkpoints_steps=2, keep_checkpoint_max=3)
    estimator.train(line_data, steps=7).train(line_data, steps=2)  # saves at 0, 2, 4, 6, 7 and 7, 9
    kept = sorted(int(path.stem.split("-")[1]) for path in (tmp_path / "model").glob("*.index"))
    assert kept == [6, 7, 9]
    assert str(estimator.latest_checkpoint()).endswith("model.ckpt-9")


def test_no_interval_saves_first_and_last_and_the_directory_can_be_moved(tmp_path):
    make(tmp_path, save_checkpoints_secs=None).train(line_data, steps=2)
    assert sorted(path.stem for path in (tmp_path / "model").glob("*.index")) == ["model.ckpt-0", "model.ckpt-2"]
    os.rename(tmp_path / "model", tmp_path / "moved")
    assert Estimator(line_model, tmp_path / "moved").evaluate(line_data, steps=1)["global_step"] == 2


def test_summaries(tmp_path):
    estimator = make(tmp_path, save_summary_steps=2, log_step_count_steps=2).train(line_data, max_steps=6)
    estimator.evaluate(line_data, steps=1)
    estimator.evaluate(line_data, steps=1, name="held_out")
    found = scalars(tmp_path / "model")
    assert sorted(found["weight"]) == sorted(found["loss"]) == [1, 3, 5]
    assert found["loss"][1] == pytest.approx(np.mean(np.square(2 * X[:4])), rel=1e-5)
    assert all(value > 0 for value in found["global_step/sec"].values())
    for name in ("eval", "eval_held_out"):
        assert {tag: list(values) for tag, values in scalars(tmp_path / "model" / name).items()} == {
            "error": [6],
            "loss": [6],
        }


def test_end_of_data_ends_training_and_evaluation(tmp_path, log):
    once = functools.partial(line_data, repeat=1)
    estimator = make(tmp_path).train(once)
    assert trained_steps(estimator) == 2
    estimator.train(once, max_steps=100)
    assert trained_steps(estimator) == 4
    count = CountHook()
    estimator.evaluate(once, steps=50, hooks=[count])
    assert count.count == 2
    estimator.train(functools.partial(line_data, repeat=0))
    assert trained_steps(estimator) == 4 and any("trained 0 steps" in line for line in log)
    with pytest.raises(ValueError, match="evaluate: input_fn returned no batch; check that"):
        estimator.evaluate(functools.partial(line_data, repeat=0))


@pytest.mark.parametrize("labelled", [False, True])
def test_input_fn_of_tensors(tmp_path, log, labelled):
    def input_fn(mode, params):
        assert params == {"a": 1} and mode in (ModeKeys.TRAIN, ModeKeys.PREDICT)
        return (tf.constant(X), tf.constant(2 * X)) if labelled else tf.constant(X)

    def model_fn(features, labels, mode, params):
        labels = 2 * features if labels is None else labels
        return line_model(features, labels, mode, {})

    estimator = make(tmp_path, model_fn, {"a": 1}).train(input_fn, steps=2)
    assert trained_steps(estimator) == 2
    predictions = estimator.predict(input_fn, predict_keys="x")
    assert [next(predictions)["x"] for _ in range(9)] == [*X, X[0]]
    predictions.close()
    assert any("never end" in line and "'infer'" in line for line in log)


def test_predict_batches_keys_and_other_graphs(tmp_path):
    estimator = make(tmp_path).train(line_data, steps=1)
    once = functools.partial(line_data, repeat=1)
    batches = list(estimator.predict(once, yield_single_examples=False, predict_keys=["x"]))
    assert [set(batch) for batch in batches] == [{"x"}, {"x"}]
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in batches]), X)
    generator = estimator.predict(once)
    next(generator)
    with tf.Graph().as_default() as graph:
        rest = list(generator)
        assert len(rest) == 7 and tf.get_default_graph() is graph and not graph.get_operations()
    with pytest.raises(
        ValueError, match=r"predict_keys names 'z', which the model does not predict; it predicts \['x', 'y'\]"
    ):
        next(estimator.predict(once, predict_keys=["z"]))


def test_predictions_of_one_tensor_and_of_unequal_batches(tmp_path):
    def model_fn(features, labels, mode, params):
        spec = line_model(features, labels, mode, params)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, {"y": features, "z": features[:1]} if params else spec.predictions["y"])
        return spec

    estimator = make(tmp_path, model_fn).train(line_data, steps=1)
    assert len(list(estimator.predict(functools.partial(line_data, repeat=1)))) == 8
    with pytest.raises(ValueError, match="remove predict_keys"):
        next(estimator.predict(line_data, predict_keys=["y"]))
    with pytest.raises(ValueError, match="batch sizes {'y': 4, 'z': 1}, which must be equal"):
        next(make(tmp_path, model_fn, {"unequal": True}).predict(line_data))


def test_checkpoint_path(tmp_path):
    estimator = make(tmp_path, save_checkpoints_steps=1).train(line_data, steps=3)
    path = str(tmp_path / "model" / "model.ckpt-1")
    assert estimator.evaluate(line_data, steps=1, checkpoint_path=path)["global_step"] == 1
    with pytest.raises(ValueError, match="checkpoint_path is '/nowhere/model.ckpt-1', which is not a checkpoint"):
        estimator.evaluate(line_data, checkpoint_path="/nowhere/model.ckpt-1")


def test_no_checkpoint_names_the_directory(tmp_path):
    estimator = make(tmp_path)
    for call in (estimator.evaluate, estimator.predict):
        with pytest.raises(ValueError, match=f"^model_dir '{tmp_path}/model' has no checkpoint; train first[^\n]*$"):
            call(line_data)
    assert estimator.latest_checkpoint() is None


def test_same_seed_same_values(tmp_path):
    def model_fn(features, mode):
        noise = tf.random.normal([3])
        w = tf.get_variable("w", [3], initializer=tf.random_normal_initializer())
        loss = tf.reduce_sum(w) + tf.reduce_sum(features)
        step = tf.train.get_or_create_global_step()
        train_op = tf.group(w.assign(w + noise), step.assign_add(1))
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    def train(name, seed):
        estimator = Estimator(model_fn, tmp_path / name, RunConfig(tf_random_seed=seed))
        return estimator.train(lambda: tf.constant(X), steps=2).get_variable_value("w")

    np.testing.assert_array_equal(train("a", 5), train("b", 5))
    assert not np.array_equal(train("c", 6), train("d", 7))


def test_train_and_evaluate(tmp_path, monkeypatch):
    estimator = make(tmp_path, save_checkpoints_steps=2)
    train_spec = TrainSpec(line_data, max_steps=6)
    evaluated = []
    evaluate = Estimator.evaluate

    def counting(self, *args, **kwargs):
        metrics = evaluate(self, *args, **kwargs)
        evaluated.append(int(metrics["global_step"]))
        return metrics

    monkeypatch.setattr(Estimator, "evaluate", counting)
    metrics, exports = estimator_lib.train_and_evaluate(estimator, train_spec, EvalSpec(line_data, 2, throttle_secs=0))
    assert evaluated == [2, 4, 6] and metrics["global_step"] == 6 and exports is None
    estimator_lib.train_and_evaluate(estimator, train_spec, EvalSpec(line_data, 2))  # nothing to train
    assert evaluated == [2, 4, 6, 6]
    estimator_lib.train_and_evaluate(estimator, TrainSpec(line_data, 9), EvalSpec(line_data, 2))  # throttled
    assert evaluated == [2, 4, 6, 6, 9]
    assert sorted(scalars(tmp_path / "model" / "eval")["loss"]) == [2, 4, 6, 9]


def test_reference_variables(tmp_path):
    def model_fn(features, labels, mode):
        with tf.variable_scope("", use_resource=False):
            return line_model(features, labels, mode, {})

    estimator = make(tmp_path, model_fn, save_summary_steps=1).train(line_data, steps=3)
    assert estimator.get_variable_value("w") == pytest.approx(line_steps(0.0, 3), rel=1e-5)
    assert sorted(scalars(tmp_path / "model")["loss"]) == [1, 2, 3]


def test_server_and_container(tmp_path):
    server = tf.train.Server.create_local_server()
    estimator = make(tmp_path, master=server.target, container="run-1").train(line_data, steps=2)
    assert estimator.evaluate(line_data, steps=1)["global_step"] == 2
    other = Estimator(line_model, tmp_path / "other", RunConfig(master=server.target, container="run-2"))
    assert other.train(line_data, steps=1).get_variable_value("w") == pytest.approx(line_steps(0.0, 1), rel=1e-5)

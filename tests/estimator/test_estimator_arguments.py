"""The arguments of the Estimator, and its one line about a mistake."""

import functools
import inspect

import pytest
from estimator_oracle import X, line_data, line_model, make

from mtf_hetero import estimator as estimator_lib
from mtf_hetero._compat import tf
from mtf_hetero.estimator import Estimator, EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec, training
from mtf_hetero.estimator.progress import ProgressHook

MODEL_FNS = [
    lambda features: locals(),
    lambda features, mode, params: locals(),
    lambda features, labels, mode, params, config: locals(),
]


@pytest.mark.parametrize("taken", MODEL_FNS)
def test_model_fn_takes_any_subset(tmp_path, taken):
    names, got = inspect.signature(taken).parameters, {}

    @functools.wraps(taken)
    def model_fn(*args, **kwargs):
        got.update(taken(*args, **kwargs))
        loss = tf.reduce_mean(got["features"])
        return EstimatorSpec(ModeKeys.TRAIN, loss=loss, train_op=tf.train.get_global_step().assign_add(1))

    estimator = Estimator(model_fn, tmp_path, RunConfig(), {"a": 1} if "params" in names else None)
    estimator.train(lambda: (tf.constant(X), tf.constant(X)) if "labels" in names else tf.constant(X), steps=1)
    assert set(got) == set(names)
    expected = {"mode": ModeKeys.TRAIN, "params": {"a": 1}, "config": estimator.config}
    assert all(got[name] == expected[name] for name in names if name in expected)
    assert all(got[name].shape == X.shape for name in ("features", "labels") if name in got)


def test_model_fn_may_be_partial_or_take_keywords(tmp_path):
    partial = make(tmp_path, functools.partial(line_model, params={})).train(line_data, steps=1)
    assert partial.get_variable_value("global_step") == 1
    keywords = make(tmp_path, lambda features, labels, **rest: line_model(features, labels, rest["mode"], {}))
    assert keywords.evaluate(line_data, steps=1) == partial.evaluate(line_data, steps=1)


def spec_of_no_loss(features, labels, mode):
    return EstimatorSpec(mode, train_op=tf.no_op())


def constant_model(features, mode):
    return EstimatorSpec(mode, loss=tf.constant(1.0), train_op=tf.no_op())


def train(estimator, model_fn):
    Estimator(model_fn, estimator.model_dir).train(line_data)


def make_other_mode(features, labels):
    return EstimatorSpec("infer", predictions=features)


BAD_CALLS = {
    "both steps": (lambda e: e.train(line_data, steps=1, max_steps=2), "steps is 1 and max_steps is 2; give one"),
    "no step": (lambda e: e.train(line_data, steps=0), "train: steps is 0; it must be a positive whole number or None"),
    "half a step": (lambda e: e.evaluate(line_data, steps=1.5), "evaluate: steps is 1.5; it must be"),
    "input_fn": (lambda e: e.train([1]), r"input_fn is \[1\]; it must be a function"),
    "input_fn argument": (lambda e: e.train(lambda day: 1), "input_fn has an argument 'day', but the Estimator passes"),
    "input_fn triple": (lambda e: e.train(lambda: (1, 2, 3)), "input_fn returned 3 values; it must return"),
    "no loss": (lambda e: train(e, spec_of_no_loss), "loss is None; mode 'train' needs it"),
    "no labels": (lambda e: train(e, constant_model), "no argument 'labels', but input_fn returns lab"),
    "no spec": (lambda e: train(e, lambda features, labels: 3), "returned 3; it must ret"),
    "other mode": (lambda e: train(e, make_other_mode), "called with mode 'train' and returned a spec of mode 'infer'"),
    "model_fn": (lambda e: Estimator("vgg"), "model_fn is 'vgg'; it must be a function"),
    "model_fn argument": (lambda e: Estimator(lambda features, x: 1), "model_fn has an argument 'x', but the Est"),
    "features": (lambda e: Estimator(lambda labels: 1), "model_fn has no argument 'features'"),
    "params": (lambda e: Estimator(constant_model, params={"a": 1}), r"but the Estimator got params \['a'\]"),
    "params kind": (lambda e: Estimator(constant_model, params=3), "params is 3; it must be a dict or None"),
    "config": (lambda e: Estimator(constant_model, config=3), "config is 3; it must be an mtf_hetero.RunConfig"),
    "two directories": (
        lambda e: Estimator(constant_model, "a", RunConfig(model_dir="b")),
        "model_dir is 'a', but the model_dir of config",
    ),
    "mode": (lambda e: EstimatorSpec("test"), "mode is 'test'; it must be one of train, eval, infer"),
    "hook": (lambda e: EstimatorSpec("infer", 1, prediction_hooks=[2]), "prediction_hooks holds 2; each must be a tf"),
    "train_spec": (lambda e: TrainSpec(3), "TrainSpec: input_fn is 3; it must be a function"),
    "max_steps": (lambda e: TrainSpec(line_data, -1), "TrainSpec: max_steps is -1; it must be a positive whole"),
    "throttle": (lambda e: EvalSpec(line_data, throttle_secs=-1), "throttle_secs is -1; it must be zero or a positive"),
    "specs": (lambda e: estimator_lib.train_and_evaluate(e, 1, 2), "got 1 where it needs a TrainSpec"),
    "batch_size": (lambda e: ProgressHook(0), "ProgressHook: batch_size is 0; it must be a positive whole number"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_arguments_are_named_in_one_line(tmp_path, case):
    call, message = BAD_CALLS[case]
    with pytest.raises(ValueError, match=message) as raised:
        call(make(tmp_path))
    assert "\n" not in str(raised.value)


def test_bad_specs():
    with tf.Graph().as_default():
        vector = tf.constant([1.0, 2.0])
        with pytest.raises(ValueError, match=r"loss has shape \(2,\); it must be a scalar: reduce it first"):
            EstimatorSpec("eval", loss=vector)
        assert EstimatorSpec("eval", loss=vector[:1]).loss.shape.rank == 0
        with pytest.raises(ValueError, match=r"eval_metric_ops\['a'\] is 3; it must be \(value, update operation\)"):
            EstimatorSpec("eval", loss=vector[0], eval_metric_ops={"a": 3})
        with pytest.raises(ValueError, match="eval_metric_ops names 'loss', which the Estimator itself reports"):
            EstimatorSpec("eval", loss=vector[0], eval_metric_ops={"loss": (1, 2)})
        with pytest.raises(ValueError, match="it must be a tf.Tensor: export an mtf.Tensor first"):
            EstimatorSpec("eval", loss=3)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("save_checkpoints_steps", 0, "save_checkpoints_steps is 0; it must be a positive whole number or None"),
        ("save_checkpoints_secs", -1, "save_checkpoints_secs is -1; it must be a positive number or None"),
        ("keep_checkpoint_max", 2.5, "keep_checkpoint_max is 2.5; it must be zero or a positive whole number or None"),
        ("tf_random_seed", "a", "tf_random_seed is 'a'; it must be a whole number or None"),
        ("session_config", {}, "session_config is {}; it must be a tf.ConfigProto or None"),
        ("master", None, "master is None; it must be a string such as"),
        ("container", "my run", "container is 'my run'; use letters, digits"),
        ("model_dir", "", "model_dir is ''; it must be the path of a directory"),
        ("model_dirs", "", "RunConfig has no field 'model_dirs'; it has model_dir, "),
    ],
)
def test_run_config_is_checked(field, value, message):
    with pytest.raises(ValueError, match=message):
        RunConfig().replace(**{field: value})


def test_run_config_intervals():
    assert (RunConfig().save_checkpoints_steps, RunConfig().save_checkpoints_secs) == (None, 60)
    by_steps = RunConfig(save_checkpoints_steps=5)
    assert (by_steps.save_checkpoints_steps, by_steps.save_checkpoints_secs) == (5, None)
    assert RunConfig().replace(save_checkpoints_steps=5) == by_steps
    assert by_steps.replace(save_checkpoints_secs=7, model_dir="a") == RunConfig("a", save_checkpoints_secs=7)
    with pytest.raises(ValueError, match="save_checkpoints_steps is 5 and save_checkpoints_secs is 60; give one"):
        RunConfig(save_checkpoints_steps=5, save_checkpoints_secs=60)


def test_a_large_graph_is_left_as_it_is(monkeypatch):
    """TensorFlow's optimizers are left out of a session, but where the program has options for them."""

    def is_off(given, **options):
        config = training.session_config(RunConfig(session_config=given), **options)
        return config.graph_options.rewrite_options.disable_meta_optimizer

    own = tf.ConfigProto(intra_op_parallelism_threads=3)
    own.graph_options.rewrite_options.min_graph_nodes = 4
    monkeypatch.setattr(training, "MANY_OPERATIONS", 10)
    monkeypatch.setattr(training, "MANY_IN_PAUSE", 5)
    with tf.Graph().as_default():
        assert not is_off(None) and training.session_config(RunConfig()).allow_soft_placement
        for count in range(10):
            assert is_off(None, in_pause=True) == (count >= 5) and not is_off(None)
            tf.no_op()
        given = tf.ConfigProto(intra_op_parallelism_threads=3)
        assert is_off(None) and is_off(given) and not is_off(own)
        assert training.session_config(RunConfig(session_config=given)).intra_op_parallelism_threads == 3
        assert not given.graph_options.HasField("rewrite_options")

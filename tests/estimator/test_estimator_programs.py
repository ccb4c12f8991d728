"""Programs that were written for tf.estimator, and for tf.estimator.tpu without a TPU, with the two names changed."""

import pkgutil

import numpy as np
import pytest
from mtf_modules import import_module

import mtf_hetero
from mtf_hetero import mtf, tf

BATCH, INPUTS, HIDDEN = (mtf.Dimension(*dim) for dim in [("batch", 6), ("inputs", 5), ("hidden", 11)])
RNG = np.random.default_rng(0)
X = RNG.standard_normal((18, INPUTS.size)).astype(np.float32)
Y = X.sum(1, keepdims=True).astype(np.float32)
tpu = tf.estimator.tpu
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what mesh_tensorflow imports


def input_fn(params):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat()
    return data.batch(params.get("batch_size", BATCH.size), drop_remainder=True)


def make_metrics(predictions, targets):
    return {"squared": tf.metrics.mean_squared_error(targets, predictions)}


def program(mesh_impl, spec_class):
    """A model_fn that returns an EstimatorSpec or a TPUEstimatorSpec."""

    def model_fn(features, labels, mode, params):
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        x = mtf.import_tf_tensor(mesh, features, mtf.Shape([BATCH, INPUTS]))
        y = mtf.layers.dense(mtf.layers.dense(x, HIDDEN, activation=mtf.tanh, name="first"), INPUTS, name="second")
        y = mtf.reduce_sum(y, reduced_dim=INPUTS)
        targets = tf.zeros([BATCH.size]) if labels is None else labels[:, 0]
        loss = mtf.reduce_mean(mtf.square(y - mtf.import_tf_tensor(mesh, targets, mtf.Shape([BATCH]))))
        if mode == tf.estimator.ModeKeys.TRAIN:
            variables = graph.trainable_variables
            gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
            updates = mtf.optimize.SgdOptimizer(0.05).apply_grads(gradients, variables)
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl()})
        predictions, tf_loss = lowering.export_to_tf_tensor(y), lowering.export_to_tf_tensor(loss)
        if mode == tf.estimator.ModeKeys.PREDICT:
            export = {"serve": tf.estimator.export.PredictOutput({"y": predictions})}
            return spec_class(mode, predictions={"y": predictions}, export_outputs=export)
        options = {}
        if mode == tf.estimator.ModeKeys.TRAIN:
            steps = [lowering.lowered_operation(op) for op in updates]
            options["train_op"] = tf.group(steps, tf.assign_add(tf.train.get_global_step(), 1))
            options["training_hooks"] = [mtf.MtfRestoreHook(lowering)]
            if spec_class is tpu.TPUEstimatorSpec:
                options["host_call"] = (lambda loss: tf.print("a step's loss", loss), [tf_loss])
        elif spec_class is tpu.TPUEstimatorSpec:
            options["eval_metrics"] = (make_metrics, {"predictions": predictions, "targets": targets})
            options["scaffold_fn"] = tf.train.Scaffold
        else:
            options["eval_metric_ops"] = make_metrics(predictions, targets)
        return spec_class(mode, loss=tf_loss, **options)

    return model_fn


def uneven():
    return mtf_hetero.UnevenMeshImpl("all:3", "hidden:all", ["cpu:0"] * 3, shares={"all": [6, 3, 1]})


def one_device():
    return mtf_hetero.UnevenMeshImpl("all:1", "", ["cpu:0"])


def results(estimator):
    estimator.train(input_fn, max_steps=5)
    weights = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
    metrics = estimator.evaluate(input_fn, steps=3)
    prediction = next(estimator.predict(input_fn))
    return {**weights, **metrics, **prediction}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return results(
        tf.estimator.Estimator(
            program(one_device, tf.estimator.EstimatorSpec), str(tmp_path_factory.mktemp("one")), params={}
        )
    )


def test_a_program_for_tf_estimator(tmp_path, expected):
    config = tf.estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=2)
    estimator = tf.estimator.Estimator(program(uneven, tf.estimator.EstimatorSpec), config=config, params={})
    assert_same(results(estimator), expected)


def test_a_program_for_tpus(tmp_path, expected, capfd):
    config = tpu.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=2, tpu_config=tpu.TPUConfig(100))
    sizes = dict.fromkeys(("train_batch_size", "eval_batch_size", "predict_batch_size"), BATCH.size)
    options = {"config": config, "use_tpu": False, "export_to_tpu": False, **sizes}
    estimator = tpu.TPUEstimator(program(uneven, tpu.TPUEstimatorSpec), **options)
    assert_same(results(estimator), expected)
    assert capfd.readouterr().err.count("a step's loss") == 5


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_needs_a_tpu_says_so(tmp_path):
    model_fn = program(one_device, tpu.TPUEstimatorSpec)
    with pytest.raises(NotImplementedError, match="^TPUEstimator: use_tpu=True needs a TPU; mtf_hetero does not"):
        tpu.TPUEstimator(model_fn, str(tmp_path))
    with pytest.raises(NotImplementedError, match="^cluster='a TPU' needs a TPU"):
        tpu.RunConfig(cluster="a TPU")
    with pytest.raises(
        ValueError, match="params has batch_size 3, which TPUEstimator sets itself; give train_batch_si"
    ):
        tpu.TPUEstimator(model_fn, str(tmp_path), use_tpu=False, params={"batch_size": 3})
    executor = import_module("mesh_tensorflow.experimental.model_executor")
    with pytest.raises(NotImplementedError, match="^tf.contrib.tpu.initialize_system needs a TPU"):
        executor.tpu.initialize_system()
    with pytest.raises(
        AttributeError, match="TensorFlow removed 'DNNClassifier', and its replacement mtf_hetero.estimator"
    ):
        _ = tf.estimator.DNNClassifier


NOT_TO_BE_HAD = {"auto_mtf": "ortools"}  # package -> what it needs beside TensorFlow


def test_every_module_of_mesh_tensorflow_can_be_imported():
    """But for its tests, which have a test of their own, and what needs a package that nothing else does."""
    imported, failed = [], {}
    for info in pkgutil.walk_packages(mtf.__path__, "mesh_tensorflow.", onerror=lambda name: None):
        name = info.name.removeprefix("mesh_tensorflow.")
        if not name.endswith(("_test", "test_utils", "ops_with_redefined_builtins")):
            try:
                imported.append(import_module(info.name))
            except ImportError as error:
                failed[name] = str(error.name).split(".")[0]
    assert failed.items() <= NOT_TO_BE_HAD.items()
    assert len(imported) > 35


def test_volumes_are_turned_as_contrib_did():
    """mesh_tensorflow.experimental.data_aug_lib takes tf.contrib.image.transform."""
    augmentation = import_module("mesh_tensorflow.experimental.data_aug_lib")
    image = np.arange(12, dtype=np.float32).reshape(1, 3, 4, 1)
    right_by_one = [1.0, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    with tf.Graph().as_default(), tf.Session() as session:
        moved = session.run(augmentation.contrib_image.transform(tf.constant(image), right_by_one, "NEAREST"))
    np.testing.assert_array_equal(moved[:, :, 1:], image[:, :, :-1])
    assert not moved[:, :, 0].any()

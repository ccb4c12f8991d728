"""T5's way to train: mesh_tensorflow.transformer.utils with a Bitransformer, with the two names changed in it."""

import pathlib
import types

import numpy as np
import pytest
from mtf_modules import import_module

import mtf_hetero
from mtf_hetero import mtf, tf

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*invalid escape sequence")
GIN = """
num_layers = 1
d_model = 16
d_ff = 23
num_heads = 3
d_kv = 4
dropout_rate = 0.0
utils.get_variable_dtype.activation_dtype = "float32"
utils.get_variable_dtype.master_dtype = "float32"
Bitransformer.decode.beam_size = 1
Bitransformer.decode.temperature = 0.0
"""
LENGTH, BATCH, VOCABULARY, STEPS = 7, 6, 24, 4
MESH = "data:2;model:2"
LAYOUT = "batch:data,d_ff:model,heads:model,vocab:model"
SHARES = {"data": [2, 1], "model": [5, 2]}


class Vocabulary:
    """So many words; decoding gives the numbers."""

    vocab_size = VOCABULARY


def dataset_fn(**_):
    """Sequences that end in 1, and the same with each word the next one."""
    rng = np.random.default_rng(3)
    inputs = rng.integers(2, VOCABULARY - 1, (18, LENGTH))
    inputs[:, -1] = 1
    targets = np.where(inputs > 1, inputs + 1, 1)
    return tf.data.Dataset.from_tensor_slices({"inputs": inputs, "targets": targets})


def two_names():
    """mtf as a program sees it that says UnevenMeshImpl and Lowering of this package in place of mtf's own."""
    names = types.SimpleNamespace(**vars(mtf))
    names.Lowering = mtf_hetero.Lowering

    def mesh_impl(shape, layout, devices):
        return mtf_hetero.UnevenMeshImpl(shape, layout, devices, shares=SHARES)

    names.placement_mesh_impl = types.SimpleNamespace(PlacementMeshImpl=mesh_impl)
    return names


@pytest.fixture
def utils():
    module = import_module("mesh_tensorflow.transformer.utils")
    gin = module.gin
    with gin.unlock_config():
        gin.clear_config()
        text = (pathlib.Path(module.__file__).parent / "gin" / "defaults.gin").read_text(encoding="utf-8")
        gin.parse_config(text + GIN, skip_unknown=True)
    yield module
    with gin.unlock_config():
        gin.clear_config()


def run(utils, directory, mesh, optimizer):
    """Trains, evaluates and decodes; returns weights, metrics and what was decoded."""
    lengths = {"inputs": LENGTH, "targets": LENGTH}
    estimator = utils.get_estimator(
        model_type="bitransformer",
        vocabulary=Vocabulary(),
        mesh_shape=mtf.convert_to_shape(mesh),
        layout_rules=mtf.convert_to_layout_rules(LAYOUT if mesh else ""),
        model_dir=str(directory),
        batch_size=BATCH,
        sequence_length=lengths,
        autostack=True,
        learning_rate_schedule=0.05,
        keep_checkpoint_max=2,
        save_checkpoints_steps=STEPS,
        optimizer=optimizer,
        predict_fn=None,
        variable_filter=None,
        ensemble_inputs=None,
        use_tpu=False,
        tpu_job_name=None,
        iterations_per_loop=1,
        cluster=None,
        mesh_devices=["cpu:0"] * mtf.convert_to_shape(mesh).size,
    )
    utils.train_model(estimator, Vocabulary(), lengths, BATCH, dataset_fn, STEPS, None)
    weights = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}

    def input_fn(params):
        del params
        return dataset_fn().batch(BATCH, drop_remainder=True)

    metrics = estimator.evaluate(input_fn, steps=2)
    decoded = [prediction["outputs"] for prediction in estimator.predict(input_fn)]
    return weights, metrics, np.array(decoded)


@pytest.mark.full
def test_a_t5_like_program(tmp_path, utils, monkeypatch):
    """Weights after some steps, metrics and what is decoded then are those that mtf itself gives on one device."""
    optimizer = mtf.optimize.AdafactorOptimizer  # whose moments of rows and columns are sums over slices
    expected, expected_metrics, expected_words = run(utils, tmp_path / "stock", "", optimizer)
    monkeypatch.setattr(utils, "mtf", two_names())
    weights, metrics, words = run(utils, tmp_path / "uneven", MESH, optimizer)
    for found, one_device in [(weights, expected), (metrics, expected_metrics)]:
        assert set(found) == set(one_device)
        for name, value in found.items():
            np.testing.assert_allclose(value, one_device[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(words, expected_words)

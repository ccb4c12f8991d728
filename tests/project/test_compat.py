"""The versions that are supported, what is said of others, and what mesh-tensorflow finds in a newer TensorFlow."""

import importlib
import pathlib
import sys
import warnings

import pytest

import mtf_hetero
from mtf_hetero import _compat, mtf, tf
from mtf_hetero._support import command_line


@pytest.mark.parametrize("version", ["2.15.0", "2.21.0", "2.21.3"])
def test_supported_versions(version):
    _compat.check_versions(version, "0.1.21")


@pytest.mark.parametrize("version", ["2.22.0-rc1", "2.100.0", "3.0.0"])
def test_a_version_that_is_newer_than_tested_ones(version):
    message = (
        f"^TensorFlow {version} is newer than the versions that mtf_hetero was tested with, 2.15 to 2.21; if something"
    )
    with pytest.warns(UserWarning, match=message):
        _compat.check_versions(version, "0.1.21")


def test_a_program_shows_the_warning_in_one_line(capfd):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with command_line.capture_stderr():
            warnings.warn("of somebody else", UserWarning, stacklevel=1)
            _compat.check_versions("2.22.0", "0.1.21")
    assert [str(warning.message) for warning in caught] == ["of somebody else"]
    err = capfd.readouterr().err
    assert err.startswith("warning: TensorFlow 2.22.0 is newer than") and err.count("\n") == 1


def test_an_install_has_the_same_bounds():
    setup = (pathlib.Path(__file__).parents[2] / "setup.py").read_text(encoding="utf-8")
    (oldest_major, oldest), (newest_major, newest) = _compat.OLDEST_TENSORFLOW, _compat.NEWEST_TENSORFLOW
    assert f'"tensorflow>={oldest_major}.{oldest},<{newest_major}.{newest + 1}"' in setup
    assert f'"mesh-tensorflow=={_compat.MESH_TENSORFLOW}"' in setup


@pytest.mark.parametrize(
    ("tensorflow", "mesh", "message"),
    [
        ("2.14.1", "0.1.21", r"^TensorFlow 2.14.1 is too old: mtf_hetero needs 2.15 or newer; pip install "),
        ("1.15.5", "0.1.21", "TensorFlow 1.15.5 is too old"),
        ("unknown", "0.1.21", "TensorFlow unknown is too old"),
        ("2.21.0", "0.1.20", r"^mesh-tensorflow 0.1.20 is not supported: mtf_hetero needs 0.1.21; pip install "),
    ],
)
def test_unsupported_versions_give_one_line(tensorflow, mesh, message):
    with pytest.raises(ImportError, match=message) as error:
        _compat.check_versions(tensorflow, mesh)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["attention", "moe", "transformer", "transformer_layers", "vocab_embeddings"])
def test_modules_of_mtfs_transformer_are_imported_when_they_are_asked_for(name):
    module = importlib.import_module(f"mesh_tensorflow.transformer.{name}")
    assert getattr(mtf.transformer, name) is module is sys.modules[module.__name__]
    assert importlib.import_module("mesh_tensorflow.transformer") is mtf.transformer


def test_mtfs_transformer_has_no_other_names():
    with pytest.raises(
        AttributeError, match="^module 'mesh_tensorflow.transformer' has no attribute 'no_such_module'$"
    ):
        _ = mtf.transformer.no_such_module
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mesh_tensorflow.transformer.no_such_module")


def test_modes_of_mtfs_transformer_are_those_of_the_estimator():
    """mtf_hetero.ModeKeys can be given to its models."""
    modes = mtf.transformer.transformer.tf_estimator.ModeKeys
    for name in ("TRAIN", "EVAL", "PREDICT"):
        assert getattr(modes, name) == getattr(mtf_hetero.ModeKeys, name)


def test_functions_of_pipelines_are_not_rewritten(monkeypatch):
    """Unlike a user's, whose `if` may depend on a tensor."""
    api = importlib.import_module("tensorflow.python.autograph.impl.api")
    rewritten, rewrite = [], api._convert_actual
    monkeypatch.setattr(api, "_convert_actual", lambda f, ctx: rewritten.append(f) or rewrite(f, ctx))
    with tf.Graph().as_default():
        mtf_hetero.data.load("mnist5k").train_input_fn(8, 2)
        assert not rewritten
        small = tf.data.Dataset.range(4).map(lambda x: x if x > 1 else -x)
        assert small.element_spec.dtype == tf.int64 and len(rewritten) == 1


def test_two_constructors_of_mtf_are_changed():
    """And no other method of a class: lowering changes instances alone."""
    classes = [c for c in vars(mtf.ops).values() if isinstance(c, type) and c.__module__ == mtf.ops.__name__]
    changed = {
        f"{c.__name__}.{name}"
        for c in classes
        for name, method in vars(c).items()
        if callable(method) and getattr(method, "__code__", None) and "mtf_hetero" in method.__code__.co_filename
    }
    assert len(classes) > 50 and changed == {"Conv2dOperation.__init__", "Conv3dOperation.__init__"}

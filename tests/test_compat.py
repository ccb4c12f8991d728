"""The versions that are supported, what is said of others, and what mesh-tensorflow finds in a newer TensorFlow."""

import importlib
import sys

import pytest

import mtf_hetero
from mtf_hetero import _compat, mtf


@pytest.mark.parametrize("version", ["2.15.0", "2.21.0", "2.22.0-rc1", "3.0.0"])
def test_supported_versions(version):
    _compat.check_versions(version, "0.1.21")


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

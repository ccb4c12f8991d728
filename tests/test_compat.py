"""The versions that are supported, and what is said of others."""

import pytest

from mtf_hetero import _compat


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

"""TensorFlow's start-up messages: chatter is dropped, errors are shown, and level 0 shows everything."""

import contextlib
import os
import sys
from unittest import mock

import pytest

from mtf_hetero._support import start_up

CHATTER = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
    "I0000 00:00:1795650020.399074    9775 port.cc:153] oneDNN custom operations are on.\n",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow\n",
    "E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)\n",
    "2025-01-01 01:01:01.0: E x/cuda_dnn.cc:9] Unable to register cuDNN factory: Attempting to register factory\n",
]
ERRORS = [
    "E0000 00:00:1.2 3 gpu.cc:52] out of memory\n",
    "Traceback (most recent call last):\n",
    "W0000 0 1 a.cc:1] b\n",
]


def write():
    for line in [*CHATTER, *ERRORS]:
        os.write(2, line.encode())


def test_chatter_is_dropped_and_errors_are_shown(capfd, monkeypatch):
    monkeypatch.delenv(start_up.LEVEL, raising=False)
    with contextlib.suppress(ImportError), start_up.without_chatter():
        write()
        raise ImportError
    assert capfd.readouterr().err == "".join(ERRORS)
    assert os.environ[start_up.LEVEL] == "2"
    os.write(2, CHATTER[1].encode())
    assert capfd.readouterr().err == CHATTER[1]


@pytest.mark.parametrize("given", [None, "0"])
def test_onednn_is_used_unless_the_environment_says_otherwise(given, monkeypatch):
    (name,) = start_up.KERNELS or pytest.skip("not tried on this processor")
    monkeypatch.setitem(sys.modules, "tensorflow", mock.MagicMock())
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name) if given is None else monkeypatch.setenv(name, given)
    with start_up.importing_tensorflow():
        assert os.environ[name] == (given or "1")


def test_level_0_shows_everything(capfd, monkeypatch):
    monkeypatch.setenv(start_up.LEVEL, "0")
    with start_up.without_chatter():
        write()
    assert capfd.readouterr().err == "".join([*CHATTER, *ERRORS])


@pytest.mark.parametrize("level", ["2", "3"])
def test_the_users_level_stays(level, capfd, monkeypatch):
    monkeypatch.setenv(start_up.LEVEL, level)
    with start_up.without_chatter():
        write()
    assert (os.environ[start_up.LEVEL], capfd.readouterr().err) == (level, "".join(ERRORS))

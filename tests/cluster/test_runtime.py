"""A worker's TensorFlow without its API: it has all kernels, and other devices' libraries bring the API back."""

import json
import os
import subprocess
import sys

import pytest

from mtf_hetero import tf
from mtf_hetero.cluster import runtime

ONLY_WITH_THE_API = "AudioMicrofrontend"  # TensorFlow Lite's: its module loads a library
PROGRAM = """
import json, sys
from mtf_hetero.cluster import runtime
api = lambda: any(name.startswith("tensorflow._api") for name in sys.modules)
is_left_out = "API" not in sys.argv and runtime.leave_out_api()
version = runtime.load().__version__
from tensorflow.python.framework.kernels import get_all_registered_kernels
kernels = sorted({f"{x.op} {x.device_type} {x.constraint}" for x in get_all_registered_kernels().kernel})
print(json.dumps({"is_left_out": is_left_out, "api": api(), "version": version, "kernels": kernels}))
"""


def loaded(*arguments, **environment):
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.full
def test_a_worker_has_all_kernels_without_the_api():
    found, whole = loaded(), loaded("API")
    assert (found["is_left_out"], found["api"], found["version"]) == (True, False, tf.__version__)
    assert whole["api"] and len(whole["kernels"]) > 1000
    assert {kernel.split()[0] for kernel in whole["kernels"] if kernel not in found["kernels"]} == {ONLY_WITH_THE_API}


@pytest.mark.full
def test_with_libraries_of_other_devices_it_has_the_api(tmp_path):
    (tmp_path / "tensorflow-plugins").mkdir()
    found = loaded(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert (found["is_left_out"], found["api"]) == (False, True)


def test_a_process_with_the_api_keeps_it():
    assert not runtime.leave_out_api() and not runtime.is_left_out()
    assert runtime.load() is tf

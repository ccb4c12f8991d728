"""TensorFlow's runtime without its Python API, for a process that only serves.

A worker calls almost nothing of the API, which takes most of the time of `import tensorflow`: its operations are native
code. So its process has the package `tensorflow` without what its `__init__` imports.
It starts in half the processor time.
"""

import functools
import importlib
import importlib.util
import os
import site
import sys
import types
from typing import Any

from mtf_hetero._support import start_up

_PACKAGE = "tensorflow"
_KERNELS = os.path.join("core", "kernels")  # a directory of libraries that `__init__` loads
_PLUGINS, _PLUGIN = "tensorflow-plugins", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"  # likewise
_SETTINGS = {"ENABLE_RUNTIME_UPTIME_TELEMETRY": "1", "TF2_BEHAVIOR": "1", **start_up.KERNELS}  # two of `__init__`


def leave_out_api() -> bool:
    """Leave the API out of this process, which must not import it later; returns whether it could be done.

    It is needed for libraries of other devices: TensorFlow's `__init__` loads them.
    """
    spec = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:  # an error comes with its import
        return False
    directories = {*sys.path, *site.getsitepackages(), site.getusersitepackages()}
    libraries = [os.path.join(path, _KERNELS) for path in spec.submodule_search_locations]
    libraries += [os.path.join(path, _PLUGINS) for path in directories]
    if os.environ.get(_PLUGIN) or any(map(os.path.exists, libraries)):
        return False
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    return True


def is_left_out() -> bool:
    """Return whether this process has no API of TensorFlow."""
    return _PACKAGE in sys.modules and not hasattr(sys.modules[_PACKAGE], "__version__")


@functools.cache
def load() -> Any:
    """Return `tf`, or the names of it that a worker needs if its API is left out of this process."""
    if not is_left_out():
        return importlib.import_module("mtf_hetero._compat").tf
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    with start_up.without_chatter():
        importlib.import_module("tensorflow.python.tf2").enable()
        framework = {
            name: importlib.import_module(f"tensorflow.python.framework.{name}")
            for name in ("config", "constant_op", "dtypes", "errors", "ops", "versions")
        }
        server = importlib.import_module("tensorflow.python.training.server_lib")
        session = importlib.import_module("tensorflow.python.client.session")
        variables = importlib.import_module("tensorflow.python.ops.gen_resource_variable_ops")
        protos = importlib.import_module("tensorflow.core.protobuf.config_pb2")
    return types.SimpleNamespace(
        __version__=framework["versions"].VERSION,
        config=framework["config"],
        constant=framework["constant_op"].constant_v1,
        ConfigProto=protos.ConfigProto,
        errors=framework["errors"],
        Graph=framework["ops"].Graph,
        raw_ops=variables,
        Session=session.Session,
        string=framework["dtypes"].string,
        train=server,
    )

"""The one place that imports TensorFlow and Mesh-TensorFlow, and makes them work together.

mesh-tensorflow 0.1.21 is the last release there is. It was written for TensorFlow 1.15 to 2.14; what later
versions took away from under it is put back here, each shim with the version and the symptom it serves.
Every other module says `from mtf_hetero._compat import mtf, tf`.
"""

import functools
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from mtf_hetero._support import stand_ins, start_up

OLDEST_TENSORFLOW: list[int] = [2, 15]
NEWEST_TENSORFLOW: list[int] = [2, 21]  # that the tests have run with; setup.py has both bounds too
MESH_TENSORFLOW = "0.1.21"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def check_versions(tensorflow_version: str, mesh_tensorflow_version: str) -> None:
    """Raises ImportError, in one line, unless the two versions are ones that mtf_hetero supports.

    Warns where TensorFlow is newer than those that mtf_hetero has been tested with.
    """
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST_TENSORFLOW, NEWEST_TENSORFLOW))
    try:
        version = [int(part) for part in tensorflow_version.split(".")[:2]]
    except ValueError:
        version = []
    if version < OLDEST_TENSORFLOW:
        raise ImportError(
            f"TensorFlow {tensorflow_version} is too old: mtf_hetero needs {oldest} or newer; "
            f"pip install 'tensorflow>={oldest}'"
        )
    if version > NEWEST_TENSORFLOW:
        warnings.warn(
            f"TensorFlow {tensorflow_version} is newer than the versions that mtf_hetero was tested with, {oldest} to "
            f"{newest}; if something fails, pip install 'tensorflow=={newest}.*'",
            UserWarning,
            stacklevel=1,
        )
    if mesh_tensorflow_version not in (MESH_TENSORFLOW, "none"):
        raise ImportError(
            f"mesh-tensorflow {mesh_tensorflow_version} is not supported: mtf_hetero needs {MESH_TENSORFLOW}; "
            f"pip install mesh-tensorflow=={MESH_TENSORFLOW}"
        )


def _of(module: str) -> Callable[[str], Any]:
    """What looks a name up in another module, which is imported then: those of mtf_hetero need this one."""

    def attribute(name: str) -> Any:
        found = importlib.import_module(module)
        if name.startswith("_") or not hasattr(found, name):
            raise AttributeError(f"TensorFlow removed {name!r}, and its replacement {module} does not have it")
        return getattr(found, name)

    return attribute


def _add_estimator(tensorflow: Any, tf_v1: Any) -> None:
    """TensorFlow 2.16 removed tf.estimator: `ImportError: cannot import name 'estimator'`.

    mesh_tensorflow.ops takes two base classes from it, and both have always lived in tf.train; programs take its
    Estimator, which is that of mtf_hetero. gin.tf, which mesh_tensorflow.transformer.utils takes, looks in tensorflow.
    """
    try:
        complete = hasattr(tf_v1.estimator, "SessionRunHook")
    except (AttributeError, ImportError):  # 2.15 imports tensorflow_estimator on first access
        complete = False
    if not complete:
        name = "tensorflow.compat.v1.estimator"
        room = "mtf_hetero.estimator"
        tensorflow.estimator = tf_v1.estimator = stand_ins.module(
            name,
            _of(room),
            CheckpointSaverListener=tf_v1.train.CheckpointSaverListener,
            SessionRunHook=tf_v1.train.SessionRunHook,
            export=stand_ins.module(f"{name}.export", _of(f"{room}.export")),
            tpu=stand_ins.module(f"{name}.tpu", _of(f"{room}.tpu")),
        )


def _only_on_tpus(module: str) -> Callable[[str], Any]:
    """What gives for each name a function that raises when it is called."""

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def raise_error(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"{module}.{name} needs a TPU; mtf_hetero does not run on TPUs")

        return raise_error

    return attribute


def _transform(images: Any, transforms: Any, interpolation: str = "NEAREST", output_shape: Any = None) -> Any:
    """tf.contrib.image.transform: images [batch, height, width, channels], eight numbers a transform."""
    tensorflow: Any = importlib.import_module("tensorflow")
    shape = tensorflow.shape(images)[1:3] if output_shape is None else output_shape
    transforms = tensorflow.reshape(tensorflow.cast(transforms, tensorflow.float32), [-1, 8])
    return tensorflow.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=shape,
        fill_value=0.0,
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )


def _resource_filename(package: str, name: str) -> str:
    """pkg_resources.resource_filename, of a file beside a module."""
    return os.path.join(os.path.dirname(str(sys.modules[package].__file__)), *name.split("/"))


def _contrib(name: str) -> Any:
    """A module of tensorflow.contrib, while one of mesh_tensorflow's is imported."""
    module = sys.modules.get(f"tensorflow.contrib.{name}")
    if module is None:
        raise AttributeError(f"tensorflow.contrib has no {name!r} here: TensorFlow 2 removed it")
    return module


def _missing_modules() -> dict[str, Any]:
    """What stands in for modules that mesh_tensorflow's import, and that TensorFlow 2 and setuptools 82 removed."""
    contrib, python_tpu, contrib_tpu = "tensorflow.contrib", "tensorflow.python.tpu", "tensorflow.contrib.tpu"
    device_assignment = f"{contrib_tpu}.python.tpu.device_assignment"
    attribute_of: dict[str, Any] = {
        f"{python_tpu}.tpu_config": _of("mtf_hetero.estimator.tpu"),
        f"{python_tpu}.tpu_estimator": _of("mtf_hetero.estimator.tpu"),
        contrib: _contrib,
        f"{contrib}.summary": _of("tensorflow.python.ops.summary_ops_v2"),
        contrib_tpu: _only_on_tpus("tf.contrib.tpu"),
        f"{contrib_tpu}.python": None,
        f"{contrib_tpu}.python.tpu": None,
        device_assignment: _only_on_tpus("device_assignment"),
    }
    modules = {name: stand_ins.module(name, attribute) for name, attribute in attribute_of.items()}
    modules[f"{contrib}.image"] = stand_ins.module(f"{contrib}.image", transform=_transform)
    modules["pkg_resources"] = stand_ins.module("pkg_resources", resource_filename=_resource_filename)
    return modules


def _add_register_tensor_conversion_function() -> None:
    """TensorFlow 2.15 moved it: `AttributeError: module ...ops has no attribute 'register_tensor_conversion_function'`.

    mesh_tensorflow.tpu_variables calls it while it is imported.
    """
    ops: Any = importlib.import_module("tensorflow.python.framework.ops")
    if not hasattr(ops, "register_tensor_conversion_function"):
        registry: Any = importlib.import_module("tensorflow.python.framework.tensor_conversion_registry")
        ops.register_tensor_conversion_function = registry.register_tensor_conversion_function


def _make_transformer_lazy(mesh_tensorflow: Any) -> None:
    """TensorFlow 2.16 removed TPUEstimator: `No module named 'tensorflow.python.tpu.tpu_estimator'`.

    mesh_tensorflow.transformer imports nine of its modules, and one of them, utils, trains with it. Here the package
    imports a module when it is asked for, so that a program that does not train with it does not import it either.
    """
    name = f"{mesh_tensorflow.__name__}.transformer"
    if name in sys.modules:
        return
    spec: Any = importlib.util.find_spec(name)
    package: Any = importlib.util.module_from_spec(spec)

    def import_module(module: str) -> Any:
        if importlib.util.find_spec(f"{name}.{module}") is None:
            raise AttributeError(f"module {name!r} has no attribute {module!r}")
        return importlib.import_module(f"{name}.{module}")

    package.__getattr__ = import_module
    sys.modules[name] = mesh_tensorflow.transformer = package


def windows(extent: int, size: int, stride: int, padding: str) -> int:
    """Number of windows of a convolution along one dimension, as TensorFlow counts them."""
    return -(-(extent if padding == "SAME" else extent - size + 1) // stride)


def execute(kind: str, outputs: int, inputs: list[Any], attributes: list[Any]) -> list[Any]:
    """Run one operation eagerly, by its type: tf.raw_ops has other names for some arguments.

    Args:
      kind: its type.
      outputs: the number of its outputs.
      inputs: eager tensors, lists flattened.
      attributes: names and values by turns.
    """
    eager: Any = importlib.import_module("tensorflow.python.eager.execute")
    context: Any = importlib.import_module("tensorflow.python.eager.context")
    return eager.quick_execute(kind, outputs, inputs, tuple(attributes), context.context())


def graph_of_definition(definition: Any) -> Any:
    """Return the FuncGraph of a FunctionDef whose functions the default graph has."""
    module: Any = importlib.import_module("tensorflow.python.framework.function_def_to_graph")
    return module.function_def_to_graph(definition)


def eagerly() -> Any:
    """Return a context in which TensorFlow executes eagerly and traces functions, inside of a tf.Graph too."""
    context: Any = importlib.import_module("tensorflow.python.eager.context")
    return context.eager_mode()


def _count_windows_as_tensorflow_does(mesh_tensorflow: Any) -> None:
    """mtf rounds the number of windows down, TensorFlow up: `Tensor (7 -> 3) ... slice shape ... (4)` when lowered.

    Where a stride divides, as wherever mtf can lower a convolution, the two numbers are the same.
    """

    def counting(init: Any) -> Any:
        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            init(self, *args, **kwargs)
            (image, kernel), output = self.inputs, self.outputs[0]
            rank = kernel.shape.ndims - 1
            dims = image.shape.dims[-rank:-1]
            counts = [
                windows(dim.size, window.size, stride, self._padding)
                for dim, window, stride in zip(dims, kernel.shape.dims, (self._strides or [1] * (rank + 1))[1:])
            ]
            if counts != [dim.size for dim in output.shape.dims[-rank:-1]]:
                space = [mesh_tensorflow.Dimension(dim.name, count) for dim, count in zip(dims, counts)]
                shape = mesh_tensorflow.Shape([*output.shape.dims[:-rank], *space, output.shape.dims[-1]])
                self._outputs = [mesh_tensorflow.Tensor(self, shape, output.dtype)]

        return __init__

    for operation in (mesh_tensorflow.Conv2dOperation, mesh_tensorflow.Conv3dOperation):
        operation.__init__ = counting(operation.__init__)


def _import_tensorflow() -> Any:
    """Imports TensorFlow; a program's own output comes first, and not what TensorFlow says of this machine."""
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"]
    with start_up.without_chatter():
        tensorflow: Any = importlib.import_module("tensorflow")
        if not start_up.has_driver():  # or the first session says so, as an error
            tensorflow.config.list_physical_devices("GPU")
    return tensorflow


def _import() -> tuple[Any, Any]:
    tensorflow = _import_tensorflow()
    check_versions(tensorflow.__version__, _version("mesh-tensorflow"))
    tf_v1: Any = importlib.import_module("tensorflow.compat.v1")
    _add_estimator(tensorflow, tf_v1)
    _add_register_tensor_conversion_function()
    sys.meta_path.insert(0, stand_ins.StandIns("mesh_tensorflow", _missing_modules()))
    mesh_tensorflow: Any = importlib.import_module("mesh_tensorflow")
    _count_windows_as_tensorflow_does(mesh_tensorflow)
    _make_transformer_lazy(mesh_tensorflow)
    return mesh_tensorflow, tf_v1


if TYPE_CHECKING:
    from mtf_hetero._support import dynamic as mtf
    from mtf_hetero._support import dynamic as tf
else:
    mtf, tf = _import()


saveable: Any = importlib.import_module("tensorflow.python.training.saving.saveable_object")  # without a public name
# The class of eager variables, which has no public name
ResourceVariable: Any = importlib.import_module("tensorflow.python.ops.resource_variable_ops").ResourceVariable
# Copies what is known of the values behind a handle, to another tensor
copy_handle_data: Any = importlib.import_module("tensorflow.python.ops.handle_data_util").copy_handle_data


def chrome_trace(step_stats: Any) -> str:
    """A step's statistics as a Chrome trace, by TensorFlow's own writer, which has no public name."""
    timeline: Any = importlib.import_module("tensorflow.python.client.timeline")
    return timeline.Timeline(step_stats).generate_chrome_trace_format()


def variable_of(**definition: Any) -> Any:
    """The tf.Variable of operations that are in the graph, by the fields of a VariableDef, which has no public name."""
    protos: Any = importlib.import_module("tensorflow.core.framework.variable_pb2")
    return tf.Variable(variable_def=protos.VariableDef(**definition), use_resource=True)

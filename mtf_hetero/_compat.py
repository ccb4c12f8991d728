"""Import TensorFlow and Mesh-TensorFlow, and make them work together.

mesh-tensorflow 0.1.21 is the last release. It was written for TensorFlow 1.15 to 2.14. This module restores the names
that later versions removed, and each shim names the version and the symptom.
Every other module writes `from mtf_hetero import mtf, tf`.
"""

import functools
import importlib
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

from mtf_hetero._support import garbage, installed, stand_ins

OLDEST_TENSORFLOW: list[int] = [2, 15]
NEWEST_TENSORFLOW: list[int] = [2, 21]  # tested; setup.py has both bounds too
MESH_TENSORFLOW = "0.1.21"


def check_versions(tensorflow_version: str, mesh_tensorflow_version: str) -> None:
    """Raise ImportError, in one line, unless mtf_hetero supports both versions.

    A TensorFlow newer than the tested ones gives a warning.
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


def _attribute_getter(module: str) -> Callable[[str], object]:
    """Return a function that imports a module and returns its attributes: mtf_hetero's modules import this one."""

    def attribute(name: str) -> object:
        found = importlib.import_module(module)
        if name.startswith("_") or not hasattr(found, name):
            raise AttributeError(f"TensorFlow removed {name!r}, and its replacement {module} does not have it")
        return getattr(found, name)

    return attribute


def _add_estimator(tensorflow: Any, tf_v1: Any) -> None:
    """TensorFlow 2.16 removed tf.estimator: `ImportError: cannot import name 'estimator'`.

    mesh_tensorflow.ops imports two base classes from it, which are in tf.train too. Programs get mtf_hetero's Estimator
    under this name. gin.tf, which mesh_tensorflow.transformer.utils imports, looks for it in tensorflow.
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
            _attribute_getter(room),
            CheckpointSaverListener=tf_v1.train.CheckpointSaverListener,
            SessionRunHook=tf_v1.train.SessionRunHook,
            export=stand_ins.module(f"{name}.export", _attribute_getter(f"{room}.export")),
            tpu=stand_ins.module(f"{name}.tpu", _attribute_getter(f"{room}.tpu")),
        )


def _only_on_tpus(module: str) -> Callable[[str], Callable[..., NoReturn]]:
    """Return a function that makes, for each name, a function that raises when it is called."""

    def attribute(name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def raise_error(*args: object, **kwargs: object) -> NoReturn:
            raise NotImplementedError(f"{module}.{name} needs a TPU; mtf_hetero does not run on TPUs")

        return raise_error

    return attribute


def _transform(
    images: "tf.Tensor",
    transforms: "tf.Tensor",
    interpolation: str = "NEAREST",
    output_shape: "tf.Tensor | None" = None,
) -> "tf.Tensor":
    """Replace tf.contrib.image.transform: images [batch, height, width, channels], eight numbers per transform."""
    tensorflow = importlib.import_module("tensorflow")
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
    """Replace pkg_resources.resource_filename: return the path of a file beside a module."""
    return os.path.join(os.path.dirname(str(sys.modules[package].__file__)), *name.split("/"))


def _contrib(name: str) -> types.ModuleType:
    """Make a module of tensorflow.contrib for the imports of mesh_tensorflow."""
    module = sys.modules.get(f"tensorflow.contrib.{name}")
    if module is None:
        raise AttributeError(f"tensorflow.contrib has no {name!r} here: TensorFlow 2 removed it")
    return module


def _missing_modules() -> dict[str, types.ModuleType]:
    """Return stand-ins for modules that mesh_tensorflow imports, and that TensorFlow 2 and setuptools 82 removed."""
    contrib, python_tpu, contrib_tpu = "tensorflow.contrib", "tensorflow.python.tpu", "tensorflow.contrib.tpu"
    device_assignment = f"{contrib_tpu}.python.tpu.device_assignment"
    attribute_of: dict[str, Callable[[str], object] | None] = {
        f"{python_tpu}.tpu_config": _attribute_getter("mtf_hetero.estimator.tpu"),
        f"{python_tpu}.tpu_estimator": _attribute_getter("mtf_hetero.estimator.tpu"),
        contrib: _contrib,
        f"{contrib}.summary": _attribute_getter("tensorflow.python.ops.summary_ops_v2"),
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
        registry = importlib.import_module("tensorflow.python.framework.tensor_conversion_registry")
        ops.register_tensor_conversion_function = registry.register_tensor_conversion_function


def _make_transformer_lazy(mesh_tensorflow: Any) -> None:
    """TensorFlow 2.16 removed TPUEstimator: `No module named 'tensorflow.python.tpu.tpu_estimator'`.

    mesh_tensorflow.transformer imports nine of its modules, and one of them, utils, trains with it. Here the package
    imports each module at its first use, so that other programs do not need TPUEstimator.
    """
    name = f"{mesh_tensorflow.__name__}.transformer"
    if name in sys.modules:
        return
    spec: Any = importlib.util.find_spec(name)
    package: Any = importlib.util.module_from_spec(spec)

    def import_module(module: str) -> types.ModuleType:
        if importlib.util.find_spec(f"{name}.{module}") is None:
            raise AttributeError(f"module {name!r} has no attribute {module!r}")
        return importlib.import_module(f"{name}.{module}")

    package.__getattr__ = import_module
    sys.modules[name] = mesh_tensorflow.transformer = package


def windows(extent: int, size: int, stride: int, padding: str) -> int:
    """Return the number of windows of a convolution along one dimension, counted like TensorFlow."""
    return -(-(extent if padding == "SAME" else extent - size + 1) // stride)


def execute(kind: str, outputs: int, inputs: list["tf.Tensor"], attributes: Sequence[object]) -> list["tf.Tensor"]:
    """Run one operation eagerly, by its type. tf.raw_ops has other names for some arguments.

    Args:
      kind: its type.
      outputs: the number of its outputs.
      inputs: eager tensors, lists flattened.
      attributes: names and values by turns.
    """
    eager = importlib.import_module("tensorflow.python.eager.execute")
    context = importlib.import_module("tensorflow.python.eager.context")
    return eager.quick_execute(kind, outputs, inputs, tuple(attributes), context.context())


def graph_of_definition(definition: object) -> "FuncGraph":
    """Return the FuncGraph of a FunctionDef whose functions the default graph has."""
    module = importlib.import_module("tensorflow.python.framework.function_def_to_graph")
    return module.function_def_to_graph(definition)


def has_state(kind: str) -> bool:
    """Return whether a type of operations has a state, or is none of this TensorFlow's."""
    definition = importlib.import_module("tensorflow.python.framework.op_def_registry").get(kind)
    return definition is None or definition.is_stateful


def eagerly() -> AbstractContextManager[None]:
    """Return a context in which TensorFlow executes eagerly and traces functions, even inside of a tf.Graph."""
    context = importlib.import_module("tensorflow.python.eager.context")
    return context.eager_mode()


class _Handle:
    """The handle of any tf.Variable, in place of the attribute of each; the id of the variable is told first."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell

    def __get__(self, variable: object, owner: type | None = None) -> object:
        if variable is None:
            return self
        self._tell(id(variable))
        return vars(variable)["_handle"]

    def __set__(self, variable: object, handle: object) -> None:
        vars(variable)["_handle"] = handle


def handle_watch(tell: Callable[[int], None] | None) -> None:
    """Have a function told the id of each tf.Variable that is read or written, and of each tensor that a call captures.

    TensorFlow has no public hook for this. All that reads or writes a variable asks it for its attribute `_handle`, in
    C++ too. A traced function has the handles among the tensors that it captures.

    Args:
      tell: called before; None: nothing is told any more.
    """
    variables = importlib.import_module("tensorflow.python.ops.resource_variable_ops").BaseResourceVariable
    functions = importlib.import_module("tensorflow.python.eager.polymorphic_function.concrete_function")
    concrete = functions.ConcreteFunction
    if "_handle" in vars(variables):
        del variables._handle
        concrete._call_flat = concrete._call_flat.__wrapped__
    if tell is None:
        return
    call = concrete._call_flat

    @functools.wraps(call)
    def call_flat(self: object, tensor_inputs: object, captured_inputs: Sequence[object]) -> object:
        for captured in captured_inputs:
            tell(id(captured))
        return call(self, tensor_inputs, captured_inputs)

    variables._handle, concrete._call_flat = _Handle(tell), call_flat


def _count_windows_as_tensorflow_does(mesh_tensorflow: types.ModuleType) -> None:
    """Round the number of windows up like TensorFlow. mtf rounds down: `Tensor (7 -> 3) ... slice shape ... (4)`.

    If the stride divides the size, the two numbers are equal. mtf can lower only such convolutions.
    """

    def counting(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(self: "mtf.Conv2dOperation | mtf.Conv3dOperation", *args: Any, **kwargs: Any) -> None:  # noqa: N807
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


def _keep_from_autograph() -> None:
    """Let AutoGraph leave the functions of this package alone: they have no `if` or loop on a tensor's value.

    It rewrites each function that a pipeline maps, which takes a second before the first step of a training.
    """
    config: Any = importlib.import_module("tensorflow.python.autograph.core.config")
    config.CONVERSION_RULES = (config.DoNotConvert("mtf_hetero"), *config.CONVERSION_RULES)


def _import_tensorflow() -> types.ModuleType:
    """Import TensorFlow without Keras.

    Its last lines import Keras, with scikit-learn, pandas and Matplotlib if they are installed: 40 % of the import.
    Here the first program that uses Keras imports it: `tf.keras` is lazy.
    """
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"]
    with stand_ins.without("keras.src.optimizers"):
        return importlib.import_module("tensorflow")


@garbage.without_collection()
def _import() -> tuple[types.ModuleType, types.ModuleType]:
    tensorflow = _import_tensorflow()
    check_versions(tensorflow.__version__, installed.version("mesh-tensorflow"))
    tf_v1 = importlib.import_module("tensorflow.compat.v1")
    _add_estimator(tensorflow, tf_v1)
    _add_register_tensor_conversion_function()
    _keep_from_autograph()
    sys.meta_path.insert(0, stand_ins.StandIns("mesh_tensorflow", _missing_modules()))
    mesh_tensorflow = importlib.import_module("mesh_tensorflow")
    _count_windows_as_tensorflow_does(mesh_tensorflow)
    _make_transformer_lazy(mesh_tensorflow)
    return mesh_tensorflow, tf_v1


if TYPE_CHECKING:  # tests/stubs has the types of both
    import mesh_tensorflow as mtf
    import tensorflow.compat.v1 as tf  # pyright: ignore[reportMissingModuleSource] - TensorFlow makes it
    from tensorflow.core.framework.device_attributes_pb2 import DeviceAttributes
    from tensorflow.core.framework.op_def_pb2 import OpDef as OpDef
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction as ConcreteFunction
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function as Function
    from tensorflow.python.framework.func_graph import FuncGraph as FuncGraph
    from tensorflow.python.ops.control_flow_ops import ControlFlowContext as ControlFlowContext
    from tensorflow.python.training.saver import BaseSaverBuilder as BaseSaverBuilder
    from tensorflow.python.training.saving.saveable_object import SaveableObject as SaveableObject
    from tensorflow.python.training.saving.saveable_object import SaveSpec as SaveSpec
else:
    mtf, tf = _import()
    # Without a public name
    SaveableObject, SaveSpec = (
        getattr(importlib.import_module("tensorflow.python.training.saving.saveable_object"), name)
        for name in ("SaveableObject", "SaveSpec")
    )
    BaseSaverBuilder = importlib.import_module("tensorflow.python.training.saver").BaseSaverBuilder


# Makes an eager variable of the options that any of TensorFlow's classes takes; it has no public name
make_variable: "Callable[..., tf.Variable]" = importlib.import_module(
    "tensorflow.python.ops.resource_variable_ops"
).default_variable_creator_v2


def valueless_variable(**options: object) -> "tf.Variable":
    """Return an eager variable that has no value; it has no public name.

    Args:
      **options: as of tf.Variable, without a value; with the shape.
    """
    return importlib.import_module("tensorflow.python.ops.resource_variable_ops").UninitializedVariable(**options)


def flatten_fetches(
    fetches: object,
) -> "tuple[list[tf.Tensor | tf.Operation], Callable[[list[object]], object]]":
    """Return the tensors and operations in what tf.Session.run takes, and a function that puts their values there.

    Of an operation, the value is None. TensorFlow's own class has no public name.
    """
    mapper = importlib.import_module("tensorflow.python.client.session")._FetchMapper.for_fetch(fetches)
    return mapper.unique_fetches(), mapper.build_results


def chrome_trace(step_stats: object) -> str:
    """Return a step's statistics as a Chrome trace, by TensorFlow's writer, which has no public name."""
    timeline = importlib.import_module("tensorflow.python.client.timeline")
    return timeline.Timeline(step_stats).generate_chrome_trace_format()


def status_devices(status: bytes) -> "list[DeviceAttributes]":
    """Return the DeviceAttributes of a serialized GetStatusResponse, a message that TensorFlow has in C++ alone."""
    protos = importlib.import_module("tensorflow.core.framework.device_attributes_pb2")
    parts = tf.train.BytesList.FromString(status).value  # the same message, of bytes
    return [protos.DeviceAttributes.FromString(part) for part in parts]


def wrap_variable(**definition: object) -> "tf.Variable":
    """Return the tf.Variable of existing operations, from the fields of a VariableDef, which has no public name."""
    protos = importlib.import_module("tensorflow.core.framework.variable_pb2")
    return tf.Variable(variable_def=protos.VariableDef(**definition), use_resource=True)

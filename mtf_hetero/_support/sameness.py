"""Tell functions that compute the same, so that the operations of one can be copied for the other."""

import dataclasses
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

from mtf_hetero._compat import tf

_LIBRARIES = {"keras", "mesh_tensorflow", "mtf_hetero", "tensorflow"}  # their functions keep no count of their calls
_PLAIN = (bool, bytes, complex, float, int, str, type(None))


class _UnknownError(Exception):
    """A value that cannot be compared."""


def function_key(function: Any) -> Any:
    """Return a key of what a function computes, for comparison; None for a function that may depend on more.

    The functions of the modules of TensorFlow, Keras, mesh_tensorflow and this package are known, with plain values as
    arguments of functools.partial or in the frozen dataclass whose method they are. A function within a function is
    not: it may look at what its arguments are made of, as tf.gradients does.

    Example:
      >>> along_rows, along_columns = (functools.partial(tf.nn.softmax, axis=axis) for axis in (0, 1))
      >>> function_key(along_rows) == function_key(along_columns)
      False
    """
    try:
        return _key(function)
    except _UnknownError:
        return None


def _key(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), repr(value)  # 1, 1.0 and True are equal, as are 0.0 and -0.0
    if isinstance(value, types.FunctionType):
        return _key_of_function(value)
    if isinstance(value, functools.partial):
        return functools.partial, _key(value.func), _keys(value.args), _key(value.keywords)
    if isinstance(value, types.MethodType):
        return _key_of_function(value.__func__), _key(value.__self__)
    if isinstance(value, (list, tuple)):
        return type(value), _keys(value)
    if isinstance(value, Mapping):
        return type(value), _keys(value), _keys(value.values())
    if isinstance(value, tf.DType):
        return value
    if dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:  # pyright: ignore
        return type(value), _key(vars(value))
    raise _UnknownError


def _keys(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(_key, values))


def _key_of_function(function: types.FunctionType) -> Any:
    if function.__module__.partition(".")[0] not in _LIBRARIES or "<" in function.__qualname__:
        raise _UnknownError
    return function

"""What a value is, as text that is the same in every process: of a function what it computes, not what it is called.

Two operations may share measured times only if they do the same. Their functions are distinguished by their code with
its constants and names, and by what closures, defaults, global names and functools.partial add to it. What cannot be
described has a text of its own each time: it is measured anew rather than taken for another.
"""

import dis
import functools
import hashlib
import itertools
import sys
import types
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf

# What these define by name is of one version as long as measurements are kept
_LIBRARIES = sys.stdlib_module_names | {"mesh_tensorflow", "mtf_hetero", "numpy", "tensorflow"}
_PARTS_OF_A_GRAPH = (mtf.Graph, mtf.Mesh, mtf.Operation)  # an operation is described by its inputs and outputs as well
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")


def text_of(value: Any) -> str:
    """The text of a value. Dimensions are alike whatever their names, as layers are.

    Example:
      >>> text_of(lambda x: 2 * x) == text_of(lambda x: 2 * x)
      True
      >>> text_of(lambda x: 2 * x) == text_of(lambda x: 3 * x)
      False
    """
    try:
        return _Text().of(value)
    except RecursionError:
        return _unknown(value)


def _unknown(value: Any) -> str:
    return f"unknown {type(value).__name__} {uuid.uuid4()}"


def _is_of_a_library(value: Any) -> bool:
    name = getattr(value, "__qualname__", "<")
    return "<" not in name and str(getattr(value, "__module__", "")).partition(".")[0] in _LIBRARIES


class _Text:
    """Writes values; a function, a class or an object that comes again, as in a recursion, by its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def of(self, value: Any) -> str:
        """The text of a value."""
        for kinds, write in _WRITERS:
            if isinstance(value, kinds):
                return write(self, value)
        return self._once(value, self._object)

    def _once(self, value: Any, write: Callable[[Any], str]) -> str:
        if id(value) in self._numbers:  # all of them are parts of the value that is written: no id is used again
            return f"again {self._numbers[id(value)]}"
        self._numbers[id(value)] = len(self._numbers)
        return write(value)

    def _list(self, values: Iterable[Any]) -> str:
        return f"[{', '.join(map(self.of, values))}]"

    def _plain(self, value: Any) -> str:
        return f"{type(value).__name__} {value!r}"

    def _mapping(self, value: Any) -> str:
        return f"{{{', '.join(sorted(f'{self.of(key)}: {self.of(entry)}' for key, entry in value.items()))}}}"

    def _set(self, value: Any) -> str:
        return f"set {sorted(map(self.of, value))}"  # the order of a set is another one in each process

    def _array(self, value: Any) -> str:
        if value.dtype.hasobject:
            return _unknown(value)
        return f"{value.dtype.str} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"

    def _partial(self, value: Any) -> str:
        return f"partial {self._list([value.func, value.args, value.keywords])}"

    def _method(self, value: Any) -> str:
        return f"method {self._list([value.__self__, value.__func__])}"

    def _builtin(self, value: Any) -> str:
        owner = value.__self__
        return f"builtin {value.__qualname__} of {self.of(owner)}"

    def _function(self, value: Any) -> str:
        if _is_of_a_library(value):
            return f"{value.__module__}.{value.__qualname__}"
        return self._once(value, self._computed)

    def _computed(self, function: Any) -> str:
        cells = [cell.cell_contents if _is_full(cell) else ... for cell in function.__closure__ or ()]
        names = [name for name in _global_names(function.__code__) if name in function.__globals__]
        used = [(name, function.__globals__[name]) for name in names]
        return (
            f"function {self._list([function.__code__, cells, function.__defaults__, function.__kwdefaults__, used])}"
        )

    def _code(self, code: Any) -> str:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_nlocals
        variables = len(code.co_cellvars), len(code.co_freevars)
        written = code.co_code, code.co_exceptiontable
        return f"code {self._list([counts, variables, *written, code.co_names, code.co_consts])}"

    def _class(self, value: Any) -> str:
        return (
            f"{value.__module__}.{value.__qualname__}" if _is_of_a_library(value) else self._once(value, self._members)
        )

    def _members(self, value: Any) -> str:
        """Of a class of the user's: its methods, and those that it inherits."""
        members = [(name, _function_of(member)) for name, member in sorted(vars(value).items())]
        functions = [(name, function) for name, function in members if function is not None]
        return f"class {value.__qualname__} {self._list([value.__bases__, functions])}"

    def _object(self, value: Any) -> str:
        kind = type(value)
        fields = getattr(value, "__dict__", None)
        is_readable = isinstance(fields, dict) and (
            not _is_of_a_library(kind) or kind.__module__.startswith("mtf_hetero.")
        )
        return f"{self.of(kind)} {self.of(fields)}" if is_readable else _unknown(value)


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # of a function that is not defined yet
        return False


def _function_of(member: Any) -> Any:
    """The function of a method, static or not, or of a property; or None."""
    for name in ("__func__", "fget", "func"):
        member = getattr(member, name, None) or member
    return member if isinstance(member, types.FunctionType) else None


def _global_names(code: Any) -> list[str]:
    """What the code and the functions within it look up by name in their module."""
    names = {entry.argval for entry in dis.get_instructions(code) if entry.opname in _GLOBAL}
    inner = (_global_names(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return sorted(names.union(itertools.chain.from_iterable(inner)))


_WRITERS: tuple[tuple[Any, Callable[[_Text, Any], str]], ...] = (
    ((str, bytes, bool, int, float, complex, type(None), type(...)), _Text._plain),
    (mtf.Dimension, lambda text, value: f"dimension {value.size}"),
    (mtf.Shape, lambda text, value: f"shape {value.to_integer_list}"),
    (_PARTS_OF_A_GRAPH, lambda text, value: type(value).__name__),
    ((mtf.Tensor, tf.Tensor, tf.Variable), lambda text, value: f"tensor {value.dtype.name} {_sizes(value.shape)}"),
    (tf.DType, lambda text, value: f"dtype {value.name}"),
    ((np.ndarray, np.generic), lambda text, value: text._array(np.asarray(value))),
    (np.ufunc, lambda text, value: f"ufunc {value.__name__}"),
    ((tuple, list), _Text._list),
    ((dict, types.MappingProxyType), _Text._mapping),
    ((set, frozenset), _Text._set),
    (functools.partial, _Text._partial),
    (types.MethodType, _Text._method),
    (types.BuiltinFunctionType, _Text._builtin),
    (types.FunctionType, _Text._function),
    (types.CodeType, _Text._code),
    (types.ModuleType, lambda text, value: f"module {value.__name__}"),
    (type, _Text._class),
)


def _sizes(shape: Any) -> list[int] | None:
    """Of a shape of mtf's or TensorFlow's."""
    return shape.to_integer_list if isinstance(shape, mtf.Shape) else None if shape.rank is None else shape.as_list()

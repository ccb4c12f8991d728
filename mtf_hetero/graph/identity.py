"""Keys of operations: equal for those that do the same work, in every process.

Operations share measured times if their keys are equal, and measurements are kept for later runs. So a key is made of
text that is the same in every process. An operation's class, shapes and numbers are such text. A function is not: two
lambdas have one name, and a function that is made anew for each layer has another address in each. It is described by
its module, its bytecode, and the values that it closes over or has as defaults: Python has no other name for what it
computes, and its source is not always there. Code that it calls by name counts as the same as long as the name is. A
value that cannot be described gets a text of its own each time: it is measured anew, and never taken for another.
"""

import functools
import hashlib
import sys
import types
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.ops.functions import FUNCTIONS
from mtf_hetero.ops.traits import is_contraction

# What these define by name is of one version as long as measurements are kept
_LIBRARIES = sys.stdlib_module_names | {"mesh_tensorflow", "mtf_hetero", "numpy", "tensorflow"}
_PARTS_OF_A_GRAPH = (mtf.Graph, mtf.Mesh, mtf.Operation)  # an operation is described by its inputs and outputs as well
_NO_ATTRIBUTE = ("_name", "_inputs", "_outputs", "_mesh", "_splittable_dims", "_unsplittable_dims", "lower")


def group_key(operations: Sequence[mtf.Operation], names: Collection[str] = ()) -> str:
    """Return a name for all operations that do the same work: a summary of the largest one, and a digest of all.

    Args:
      operations: mtf operations, in the graph's order.
      names: of dimensions, in whose places others may stand.
    """
    numbers_of: dict[mtf.Tensor, int] = {}
    lines = []

    def text(tensor: mtf.Tensor) -> str:
        number = numbers_of.setdefault(tensor, len(numbers_of))
        return f"{number}:{tensor.dtype.name}[{_extents(tensor.shape, names)}]"

    dim_numbers: dict[str, int] = {}
    for op in operations:
        layout = [
            dim_numbers.setdefault(dim, len(dim_numbers)) for shape in _shapes(op) for dim in shape.dimension_names
        ]
        attributes = _attributes(op)
        inputs, outputs = [text(x) for x in op.inputs], [text(y) for y in op.outputs]
        lines.append(f"{type(op).__name__} {inputs} {outputs} {layout} {attributes}")
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    main = max(operations, key=lambda op: (is_contraction(op), max((s.size for s in _shapes(op)), default=0)))
    kind = type(main).__name__.removesuffix("Operation")
    shapes = ",".join(_extents(x.shape, names) for x in main.inputs)
    return f"{kind}({shapes})-{digest}"


def operation_key(op: mtf.Operation) -> str:
    """Return a name for all operations that do the same: of its class, its attributes and the shapes of its tensors."""
    return group_key([op])


def _shapes(op: mtf.Operation) -> Iterator[mtf.Shape]:
    for tensor in (*op.inputs, *op.outputs):
        yield tensor.shape


def _extents(shape: mtf.Shape, names: Collection[str]) -> str:
    return "x".join(f"{dim.size}{'*' if dim.name in names else ''}" for dim in shape.dims)


def _attributes(op: mtf.Operation) -> list[str]:
    """Describe all of an operation but its tensors."""
    if isinstance(op, FUNCTIONS):
        return [op.function.describe()]
    return [f"{name}={value_text(entry)}" for name, entry in sorted(vars(op).items()) if name not in _NO_ATTRIBUTE]


def value_text(value: object) -> str:
    """Return the text of a value. Dimensions are alike whatever their names, as layers are.

    Example:
      >>> value_text(lambda x: 2 * x) == value_text(lambda x: 2 * x)
      True
      >>> value_text(lambda x: 2 * x) == value_text(lambda x: 3 * x)
      False
    """
    try:
        return _Text().of(value)
    except RecursionError:
        return _unique(value)


def _unique(value: object) -> str:
    return f"unknown {type(value).__name__} {uuid.uuid4()}"


class _Text:
    """Writes values; a function or an object that comes again, as in a recursion, by its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def of(self, value: object) -> str:
        """Return the text of a value."""
        for kinds, write in _WRITERS:
            if isinstance(value, kinds):
                return write(self, value)
        return self._once(value, self._object)

    def sequence(self, values: Iterable[object]) -> str:
        """Return the text of some values in their order."""
        return f"[{', '.join(map(self.of, values))}]"

    def mapping(self, value: Mapping[object, object]) -> str:
        """Return the text of a mapping, whatever the order of its keys."""
        return f"{{{', '.join(sorted(f'{self.of(key)}: {self.of(entry)}' for key, entry in value.items()))}}}"

    def function(self, value: types.FunctionType) -> str:
        """Return the name of a function of a library, or what another one computes."""
        return _name(value) if _is_of_a_library(value) else self._once(value, self._computed)

    def _once(self, value: object, write: Callable[[Any], str]) -> str:
        if id(value) in self._numbers:  # all of them are parts of the value that is written: no id is used again
            return f"again {self._numbers[id(value)]}"
        self._numbers[id(value)] = len(self._numbers)
        return write(value)

    def _computed(self, function: types.FunctionType) -> str:
        cells = [cell.cell_contents if _is_full(cell) else ... for cell in function.__closure__ or ()]
        values = cells, function.__defaults__, function.__kwdefaults__
        return f"function {function.__module__} {self._code(function.__code__)} {self.sequence(values)}"

    def _code(self, code: types.CodeType) -> str:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        constants = [self._code(x) if isinstance(x, types.CodeType) else self.of(x) for x in code.co_consts]
        return f"{counts} {code.co_code!r} {code.co_names} {constants}"

    def _object(self, value: object) -> str:
        kind, fields = type(value), getattr(value, "__dict__", None)
        is_own = kind.__module__.startswith("mtf_hetero.") or not _is_of_a_library(kind)
        if not isinstance(fields, dict) or not is_own:
            return _unique(value)
        return f"{self.of(kind)} {self.of(fields)}"


def _name(value: types.FunctionType | type) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _class(value: type) -> str:
    return _unique(value) if "<" in value.__qualname__ else _name(value)  # of a class within a function there are many


def _is_of_a_library(value: types.FunctionType | type) -> bool:
    return "<" not in value.__qualname__ and str(value.__module__).partition(".")[0] in _LIBRARIES


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # of a function that is not defined yet
        return False


def _array(value: np.ndarray) -> str:
    if value.dtype.hasobject:
        return _unique(value)
    return f"{value.dtype.str} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"


def _sizes(shape: mtf.Shape | tf.TensorShape) -> list[int] | None:
    """Return the sizes of a shape of mtf's or TensorFlow's; None if not even their number is known."""
    return shape.to_integer_list if isinstance(shape, mtf.Shape) else None if shape.rank is None else shape.as_list()


_WRITERS: tuple[tuple[Any, Callable[[_Text, Any], str]], ...] = (
    ((str, bytes, bool, int, float, complex, type(None), type(...)), lambda _, x: f"{type(x).__name__} {x!r}"),
    (mtf.Dimension, lambda _, x: f"dimension {x.size}"),
    (mtf.Shape, lambda _, x: f"shape {x.to_integer_list}"),
    (_PARTS_OF_A_GRAPH, lambda _, x: type(x).__name__),
    ((mtf.Tensor, tf.Tensor, tf.Variable), lambda _, x: f"tensor {x.dtype.name} {_sizes(x.shape)}"),
    (tf.DType, lambda _, x: f"dtype {x.name}"),
    ((np.ndarray, np.generic), lambda _, x: _array(np.asarray(x))),
    (np.ufunc, lambda _, x: f"ufunc {x.__name__}"),
    ((tuple, list), _Text.sequence),
    ((dict, types.MappingProxyType), _Text.mapping),
    ((set, frozenset), lambda text, x: f"set {sorted(map(text.of, x))}"),  # its order is another one in each process
    (functools.partial, lambda text, x: f"partial {text.sequence([x.func, x.args, x.keywords])}"),
    (types.MethodType, lambda text, x: f"method {text.sequence([x.__self__, x.__func__])}"),
    (types.BuiltinFunctionType, lambda text, x: f"builtin {x.__qualname__} of {text.of(x.__self__)}"),
    (types.FunctionType, _Text.function),
    (types.ModuleType, lambda _, x: f"module {x.__name__}"),
    (type, lambda _, x: _class(x)),
)

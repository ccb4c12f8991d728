"""A traced step as plain data: operations on values, without variables, control flow or arithmetic of shapes."""

import dataclasses
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import execute, tf
from mtf_hetero._support import functions
from mtf_hetero._support.ops import attribute, create


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor of the program.

    Args:
      shape: its sizes.
      dtype: its tf.DType.
      array: its elements, if they are known before the step runs.
      name: names the dimensions that it is the first to have.
      uses: number of times that operations and results read it.
    """

    shape: tuple[int, ...]
    dtype: tf.DType
    array: np.ndarray | None = None
    name: str = ""
    uses: int = 0


@dataclasses.dataclass(eq=False)
class Operation:
    """An operation of TensorFlow on values.

    Args:
      type: its type, "MatMul" for instance.
      inputs: the values that it reads, lists flattened.
      outputs: the values that it makes.
      attributes: {name: tf.AttrValue}.
      is_stateful: whether two runs may give different results.
      source: the tf.Operation that was read when it was made.
    """

    type: str
    inputs: list[Value]
    outputs: list[Value]
    attributes: Mapping[str, Any]
    is_stateful: bool = False
    source: Any = None

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a Python value."""
        if name not in self.attributes:
            return default
        proto = self.attributes[name]
        kind = proto.WhichOneof("value")
        if kind == "list":
            return next((list(numbers) for _, numbers in proto.list.ListFields()), [])
        value = getattr(proto, kind)
        if kind == "shape":
            return None if value.unknown_rank else [dim.size for dim in value.dim]
        return tf.as_dtype(value) if kind == "type" else value.decode() if kind == "s" else value

    @property
    def line(self) -> str:
        """Return the user's line, "model.py:12", that made the operation."""
        return line_of(self.source)


@dataclasses.dataclass(eq=False)
class Variable:
    """A variable of the program.

    Args:
      variable: the tf.Variable.
      before: its value before the step.
      after: its value after the step; `before` itself if the step does not write it.
    """

    variable: Any
    before: Value
    after: Value


@dataclasses.dataclass(eq=False)
class Program:
    """A function: (feeds, variables before) -> (results, variables after).

    Args:
      feeds: the values that are fed.
      variables: in the order in which the step captured them, those that are trained first.
      operations: each after those that it reads.
      results: the values that are fetched.
      hosted: variables that stay in this process: their values are fed, and fetched after the step.
      effects: operations without a result, such as Print and Assert, which are left out.
      examples: number of feeds, the first ones, whose first axis is the batch if it has the same size.
    """

    feeds: list[Value] = dataclasses.field(default_factory=list)
    variables: list[Variable] = dataclasses.field(default_factory=list)
    operations: list[Operation] = dataclasses.field(default_factory=list)
    results: list[Value] = dataclasses.field(default_factory=list)
    hosted: list[Variable] = dataclasses.field(default_factory=list)
    effects: list[Any] = dataclasses.field(default_factory=list)
    examples: int = 1

    @property
    def inputs(self) -> list[Value]:
        """All values that are fed."""
        return [*self.feeds, *(variable.before for variable in self.hosted)]

    @property
    def fetches(self) -> list[Value]:
        """All values that are fetched."""
        return [*self.results, *(variable.after for variable in self.hosted)]

    def keep_here(self, variables: Collection[Any]) -> None:
        """Keep some of the variables in this process."""
        ids = {id(variable) for variable in variables}
        self.hosted = [v for v in self.variables if id(v.variable) in ids]
        self.variables = [v for v in self.variables if id(v.variable) not in ids]

    def keep_live(self) -> None:
        """Drop the operations that no result and no variable needs, and count the uses of values."""
        ends = [*self.fetches, *(v.after for v in self.variables if v.after is not v.before)]
        self.operations = self.needed(ends)
        for value in [*ends, *(value for op in self.operations for value in op.inputs)]:
            value.uses += 1

    def needed(self, ends: Iterable[Value]) -> list[Operation]:
        """Return the operations that some values are computed by, in their order."""
        read, found = set(ends), []
        for op in reversed(self.operations):
            if not read.isdisjoint(op.outputs):
                found.append(op)
                read.update(op.inputs)
        return found[::-1]


def line_of(node: Any) -> str:
    """Return the user's line that made a tf.Operation; the operation's name if none did."""
    if node is None:
        return ""
    for frame in reversed(list(node.traceback or ())):
        path = pathlib.Path(frame.filename)
        if not functions.is_of_library(path):
            return f"{path.name}:{frame.lineno}"
    return node.name


def known(array: Any, dtype: tf.DType = tf.int32) -> Value:
    """Return a value that is known."""
    array = np.asarray(array, dtype.as_numpy_dtype)
    return Value(array.shape, dtype, array)


def synthetic(kind: str, inputs: Sequence[Value], shapes: Sequence[Sequence[int]], name: str, **more: Any) -> Operation:
    """Return an operation that was not traced; its first input has the type of its results.

    Args:
      kind: its type.
      inputs: what it reads.
      shapes: of its results.
      name: of its results.
      **more: attributes beside "T".
    """
    dtype = inputs[0].dtype
    attributes = {"T": attribute(dtype), **{key: attribute(value) for key, value in more.items()}}
    return Operation(kind, list(inputs), [Value(tuple(s), dtype, name=name) for s in shapes], attributes)


def replay(op: Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Make an operation again in the default graph, on other tensors.

    Args:
      op: the operation.
      inputs: as many tensors as it reads, of other shapes perhaps.
    """
    return create(op.type, list(inputs), [v.dtype for v in op.outputs], op.type, op.attributes).outputs


def evaluate(op: Operation) -> list[np.ndarray]:
    """Compute an operation of which all inputs are known. Call it eagerly."""
    values = {name: op.attr(name) for name in op.attributes}
    values = {name: value.as_datatype_enum if isinstance(value, tf.DType) else value for name, value in values.items()}
    attributes = [part for pair in values.items() for part in pair]
    with tf.device("cpu:0"):
        tensors = [tf.constant(v.array, v.dtype) for v in op.inputs]
        return [y.numpy() for y in execute(op.type, len(op.outputs), tensors, attributes)]


def infer_shapes(op: Operation) -> list[tf.TensorShape]:
    """Return the shapes of an operation's results, inferred from the values that it reads."""
    with tf.Graph().as_default():
        xs = [tf.placeholder(v.dtype, v.shape) if v.array is None else tf.constant(v.array, v.dtype) for v in op.inputs]
        return [y.shape for y in replay(op, xs)]

"""Reads a traced function: variables are followed, calls are inlined, loops unrolled, what is known is computed.

A read of a variable is the value of the last write before it. So the order of reads and writes dissolves, and a pure
function is left: (feeds, variables before) -> (results, variables after).
"""

import collections
import contextlib
import itertools
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import PYTHON_OPERATIONS
from mtf_hetero.importer import accesses, control, formulas, lists, moments
from mtf_hetero.importer.program import (
    Operation,
    Program,
    Value,
    Variable,
    attributes_of,
    definition,
    evaluate,
    infer_shapes,
    known,
    refusal,
    within,
)

_MOST_COMPARED = 64  # elements of arrays that are compared to find equal operations
_OPTIONALS: dict[str, Callable[[Any, Sequence[Any]], Any]] = {
    "OptionalFromValue": lambda node, inputs: lists.Optional(inputs),
    "OptionalNone": lambda node, inputs: lists.Optional([]),
    "OptionalGetValue": lambda node, inputs: inputs[0].value(node),
}
_REDUCTIONS = {"Sum", "Mean", "Max", "Min", "Prod", "All", "Any"}
_SHAPE_OF = {"Shape": np.shape, "ShapeN": np.shape, "Rank": np.ndim, "Size": np.size}
KINDS = {*_OPTIONALS, *_SHAPE_OF, "Const"}  # of operations that the reader itself follows


class _Resource(str):
    """The name of a captured resource that is no variable."""


class _Part:
    """A part of the program that is read apart: its operations, and the values of variables after it."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.now: list[Value] = []
        self.equal: Mapping[Any, Operation] = {}


def read(
    concrete: Any,
    names: Sequence[str],
    variables: Mapping[str, Any],
    hosted: Collection[Any] = (),
    shapes: Mapping[int, tf.TensorShape] = types.MappingProxyType({}),
    paths: Mapping[int, str] = types.MappingProxyType({}),
) -> Program:
    """Read the program of a traced function.

    Args:
      concrete: the ConcreteFunction of a tf.function.
      names: one per tensor that is fed.
      variables: {name: tf.Variable} that come first in the program, in this order, if the function uses them.
      hosted: tf.Variables that stay in this process.
      shapes: {id of a tensor of the function: its shape}, where the function leaves it open.
      paths: {id of a tf.Variable: its name}, for those whose own name is not used.

    Raises:
      NotImplementedError: an operation that is not followed, by name and the user's line.
    """
    return _Reader(concrete, names, variables, hosted, shapes, paths).program


class _Reader:
    """Follows a graph. Each tensor means a Value, a TensorList, a _Resource or a variable's number.

    Args:
      concrete: the ConcreteFunction.
      names: one per tensor that is fed.
      variables: those that come first.
      hosted: those that stay in this process.
      shapes: of tensors by id.
      paths: the names of some by their ids.
    """

    def __init__(
        self,
        concrete: Any,
        names: Sequence[str],
        variables: Mapping[str, Any],
        hosted: Collection[Any],
        shapes: Mapping[int, tf.TensorShape],
        paths: Mapping[int, str],
    ) -> None:
        self.program, self._shapes = Program(), shapes
        self._operations = self.program.operations  # of the part that is read now
        self._equal: collections.ChainMap[Any, Operation] = collections.ChainMap()
        self._numbers: dict[int, int] = {}  # of variables, by the ids of their handles
        self.now: list[Any] = []  # the value of each variable at this point of the step
        self._source: Any = None  # what is read now
        graph, meaning = concrete.graph, {}
        captures = list(graph.captures)
        feeds = graph.inputs[: len(graph.inputs) - len(captures)]
        for tensor, name in zip(feeds, names, strict=True):
            meaning[id(tensor)] = value = Value(_static(tensor, shapes), tensor.dtype, name=name)
            self.program.feeds.append(value)
        numbers = self._begin_variables(concrete, variables, paths)
        for outer, inner in captures:
            meaning[id(inner)] = _captured(outer, numbers)
        results = self.follow(graph, meaning)
        self.program.results = [self._result(value) for value in results]
        for variable, after in zip(self.program.variables, self.now, strict=True):
            variable.after = after
        self.program.keep_here(hosted)
        self.program.operations = moments.join(self.program.operations)
        self.program.keep_live()
        _check_live(self.program)

    def _begin_variables(self, concrete: Any, first: Mapping[str, Any], paths: Mapping[int, str]) -> dict[int, int]:
        """Enter all variables of a function, those that are trained in the order of use.

        Returns:
          {id of a handle: number of the variable}.
        """
        variables = {id(v.handle): v for v in concrete.graph.variables}
        for outer, _ in concrete.graph.captures:
            variable = accesses.variable_of(outer)
            variables |= {} if variable is None else {id(outer): variable}
        used = [variables[id(outer)] for outer, _ in concrete.graph.captures if id(outer) in variables]
        names = {id(v): name for name, v in first.items()}
        known = [v for v in first.values() if any(v is other for other in used)]
        taken = set(first)
        for variable in [*known, *sorted(used, key=lambda v: not v.trainable)]:
            if id(variable.handle) in self._numbers:
                continue
            path = paths.get(id(variable)) or variable.name.partition(":")[0]
            name = names.get(id(variable)) or _free(path, taken)
            taken.add(name)
            self._numbers[id(variable.handle)] = len(self.now)
            value = Value(_static(variable), variable.dtype, name=name)
            self.program.variables.append(Variable(variable, value, value))
            self.now.append(value)
        return self._numbers

    def _result(self, value: Any) -> Value:
        if not isinstance(value, Value):
            raise NotImplementedError("the step returns a variable or a TensorArray; return tensors")
        return value

    def follow(self, graph: Any, meaning: dict[int, Any], ends: Sequence[Any] | None = None) -> list[Any]:
        """Read the operations of a graph.

        Args:
          graph: a FuncGraph.
          meaning: {id of a tensor: what it means}, of its inputs; that of other tensors is added.
          ends: the tensors that are needed, of operations without a state; None: all of the graph's.

        Returns:
          What the ends, or the graph's outputs, mean.
        """
        todo = list(graph.get_operations())[::-1] if ends is None else [t.op for t in ends]
        done, early = set(), set()
        while todo:
            node = todo.pop()
            if node in done or node.type in ("Placeholder", "NoOp"):
                continue
            # A loop that was differentiated got inputs that are made after it
            later = [t.op for t in node.inputs if id(t) not in meaning]
            if later:
                todo += [node, *later]
                early |= set(later)
                continue
            done.add(node)
            if node in early and any(isinstance(meaning[id(t)], int) for t in node.inputs):
                raise refusal(node, "reads or writes a variable, and a loop before it needs the result")
            outputs = self._read(graph, node, [meaning[id(t)] for t in node.inputs])
            meaning |= {id(tensor): value for tensor, value in zip(node.outputs, outputs, strict=True)}
        return [meaning[id(t)] for t in (graph.outputs if ends is None else ends)]

    def _read(self, graph: Any, node: Any, inputs: list[Any]) -> Sequence[Any]:
        kind, self._source = node.type, node
        constant = _constant(node, inputs)
        if constant is not None:
            return [constant]
        if kind in control.ALIASES:
            return inputs
        if kind in _OPTIONALS:
            return [_OPTIONALS[kind](node, inputs)]
        if (follow := control.rule_of(graph, kind)) is not None:
            return follow(self, graph, node, inputs)
        if not node.outputs and not any(isinstance(x, int) for x in inputs):  # Print, Assert, a summary
            self.program.effects.append(node)
            return []
        self._check(node, inputs)
        if any(isinstance(x, int) for x in inputs):
            return accesses.follow(node, inputs, self.now, self.add)
        if lists.is_about_lists(node, inputs):
            return lists.follow(node, inputs, self.add)
        norm = formulas.follow_norm(self._operation(node, inputs), self.add) if kind in formulas.NORMS else None
        return norm or self.add(self._traced(node, inputs))

    def _check(self, node: Any, inputs: Sequence[Any]) -> None:
        """Raise NotImplementedError if an operation cannot be followed."""
        if node.type in PYTHON_OPERATIONS:
            raise refusal(node, "calls Python, which no device but this process can run; write it with TensorFlow")
        if node.type.startswith("Cudnn"):
            raise refusal(node, "is cuDNN's, which only a GPU has; give the layer use_cudnn=False")
        resource = next((x for x in inputs if isinstance(x, _Resource)), None)
        if resource is not None:
            raise refusal(node, f"reads {resource}, which is no tf.Variable; do it where the data are prepared")
        about_variables = any(isinstance(x, int) for x in inputs)
        is_free = (
            node.type in control.DRAWS or node.type == "Empty" or node.type.startswith("Stateless") or about_variables
        )
        if definition(node).is_stateful and not is_free:
            raise refusal(node, "has a state of its own, which is not followed; keep the state in a tf.Variable")

    def _operation(self, node: Any, inputs: list[Value]) -> Operation:
        """Return an operation as it was traced; the shapes of its results are not known yet."""
        results = [Value((), t.dtype, name=node.name) for t in node.outputs]
        return Operation(node.type, inputs, results, attributes_of(node), definition(node).is_stateful)

    def _traced(self, node: Any, inputs: list[Value]) -> Operation:
        op = self._operation(node, inputs)
        if op.type in _SHAPE_OF or _is_known(op):  # its shapes are not looked for
            return op
        shapes = [self._shapes.get(id(t), t.shape) for t in node.outputs]
        if not all(shape.is_fully_defined() for shape in shapes):
            shapes = infer_shapes(op)
        if not all(shape.is_fully_defined() for shape in shapes):
            raise refusal(node, "gives a tensor whose shape depends on the data; give it a fixed shape")
        for value, shape in zip(op.outputs, shapes, strict=True):
            value.shape = tuple(shape.as_list())
        return op

    # --- parts of the program

    def inline(self, graph: Any, function: Any, inputs: Sequence[Any]) -> list[Any]:
        """Read a function that a graph calls, on some inputs; returns what it gives."""
        inner = control.graph_of(graph, function if isinstance(function, str) else function.name)
        return self.follow(inner, {id(t): value for t, value in zip(inner.inputs, inputs, strict=True)})

    @contextlib.contextmanager
    def block(self) -> "Iterator[_Part]":
        """Read what follows apart from the rest; variables then have the values that they had before."""
        around = self._operations, self._equal, self.now
        part = _Part()
        self._operations, self._equal, self.now = part.operations, self._equal.new_child(), list(self.now)
        try:
            yield part
            part.now, part.equal = self.now, self._equal.maps[0]
        finally:
            self._operations, self._equal, self.now = around

    @property
    def is_inside(self) -> bool:
        """Return whether the operation that is read now may be left out of some steps."""
        return self._operations is not self.program.operations

    def splice(self, part: "_Part") -> None:
        """Have a part's operations among the others."""
        self._operations += part.operations
        for key, op in part.equal.items():
            self._equal.setdefault(key, op)

    def append(self, op: Operation) -> None:
        """Add an operation with blocks."""
        self._operations.append(op)

    def write(self, values: Mapping[int, Value]) -> None:
        """Give variables values, by their numbers."""
        for number, value in values.items():
            self.now[number] = value

    # --- operations on values

    def add(self, op: Operation) -> list[Value]:
        """Add an operation, unless its results are known or an equal operation is there."""
        op.source = self._source
        if op.type in _SHAPE_OF:
            for value, x in zip(op.outputs, op.inputs, strict=True):
                like = np.broadcast_to(np.int8(0), x.shape)
                _set(value, np.asarray(_SHAPE_OF[op.type](like), value.dtype.as_numpy_dtype))
            return op.outputs
        if _is_known(op):
            for value, array in zip(op.outputs, evaluate(op), strict=True):
                _set(value, array)
            return op.outputs
        if op.type in _REDUCTIONS and op.inputs[1].array is not None and not op.inputs[1].array.size:
            return op.inputs[:1]  # over no axes: the gradient of a broadcast from an open size
        if op.is_stateful or any(value.elements is not None for value in op.outputs):  # equal lists are not the same
            self._operations.append(op)
            return op.outputs
        key = op.type, _text(op.attributes), *map(_identity, op.inputs)
        if key not in self._equal:
            self._equal[key] = op
            self._operations.append(op)
        return self._equal[key].outputs


def _constant(node: Any, inputs: Sequence[Any]) -> Value | None:
    """Return the value of a constant; None if the tf.Operation is none."""
    if node.type == "Const":
        return known(tf.make_ndarray(node.get_attr("value")), node.outputs[0].dtype)
    if node.type == "Empty" and inputs[0].array is not None:  # what it is filled with later is read as new values
        return known(np.zeros(inputs[0].array), node.outputs[0].dtype)
    return None


def _check_live(program: Program) -> None:
    """Raise NotImplementedError if something needs strings; what is printed is not needed."""
    for op in within(program.operations):
        if any(value.dtype == tf.string for value in (*op.inputs, *op.outputs)):
            raise refusal(op.source, "works on strings, which no device divides; do it where the data are prepared")


def _is_known(op: Operation) -> bool:
    """Return whether the results of an operation can be computed now."""
    are_lists = any(value.elements is not None for value in op.outputs)
    return not op.is_stateful and not are_lists and all(value.array is not None for value in op.inputs)


def _set(value: Value, array: np.ndarray) -> None:
    value.array, value.shape = array, array.shape


def _static(tensor: Any, shapes: Mapping[int, tf.TensorShape] = types.MappingProxyType({})) -> tuple[int, ...]:
    shape = shapes.get(id(tensor), tensor.shape)
    if not shape.is_fully_defined():
        raise ValueError(f"{tensor.name} has the shape {shape}; give examples whose shapes are known")
    return tuple(shape.as_list())


def _free(name: str, taken: set[str]) -> str:
    """Return a variable's name that is not taken, and that TensorFlow allows."""
    name = re.sub(r"^[^\w.]*_*", "", re.sub(r"[^\w/.-]", "_", name, flags=re.ASCII)) or "variable"
    return next(found for n in itertools.count() if (found := f"{name}_{n}" if n else name) not in taken)


def _captured(outer: Any, numbers: Mapping[int, int]) -> Any:
    """Return what a tensor from outside of the function means in it."""
    if id(outer) in numbers:
        return numbers[id(outer)]
    if outer.dtype in (tf.resource, tf.variant):
        return _Resource(f"a {outer.dtype.name}")
    return known(outer.numpy(), outer.dtype)


def _text(attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, proto.SerializeToString(deterministic=True)) for name, proto in attributes.items()))


def _identity(value: Value) -> Any:
    """Return what is equal for equal values: small arrays are compared by their elements."""
    if value.array is None or value.array.size > _MOST_COMPARED or value.dtype == tf.string:
        return id(value)
    return value.dtype, value.shape, value.array.tobytes()

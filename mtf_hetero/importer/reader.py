"""Reads a traced function: variables are followed, calls are inlined, loops unrolled, what is known is computed.

A read of a variable is the value of the last write before it. So the order of reads and writes dissolves, and a pure
function is left: (feeds, variables before) -> (results, variables after).
"""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import PYTHON_OPERATIONS, attribute
from mtf_hetero.importer import accesses, lists, moments
from mtf_hetero.importer.lists import TensorList
from mtf_hetero.importer.program import (
    Operation,
    Program,
    Value,
    Variable,
    evaluate,
    infer_shapes,
    known,
    line_of,
    synthetic,
)

_ALIASES = {"Identity", "StopGradient", "PreventGradient", "IdentityN", "EnsureShape", "Snapshot"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "StatelessPartitionedCall"}
_CHOICES = {"If", "StatelessIf", "Case", "StatelessCase"}
_LOOPS = {"While", "StatelessWhile"}
_DRAWS = {  # stateful operations that give random numbers
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}
_MOST_COMPARED = 64  # elements of arrays that are compared to find equal operations
_DEFINITIONS: dict[str, Any] = {}  # by type
_SHAPE_OF = {"Shape": np.shape, "ShapeN": np.shape, "Rank": np.ndim, "Size": np.size}


class _Resource(str):
    """The name of a captured resource that is no variable."""


def read(concrete: Any, names: Sequence[str], variables: Mapping[str, Any], hosted: Collection[Any] = ()) -> Program:
    """Read the program of a traced function.

    Args:
      concrete: the ConcreteFunction of a tf.function.
      names: one per tensor that is fed.
      variables: {name: tf.Variable} that come first in the program, in this order, if the function uses them.
      hosted: tf.Variables that stay in this process.

    Raises:
      NotImplementedError: an operation that is not followed, by name and the user's line.
    """
    return _Reader(concrete, names, variables, hosted).program


class _Reader:
    """Follows a graph. Each tensor means a Value, a TensorList, a _Resource or a variable's number.

    Args:
      concrete: the ConcreteFunction.
      names: one per tensor that is fed.
      variables: those that come first.
      hosted: those that stay in this process.
    """

    def __init__(
        self, concrete: Any, names: Sequence[str], variables: Mapping[str, Any], hosted: Collection[Any]
    ) -> None:
        self.program = Program()
        self._equal: dict[Any, Operation] = {}
        self._numbers: dict[int, int] = {}  # of variables, by the ids of their handles
        self._now: list[Value] = []  # the value of each variable at this point of the step
        self._source: Any = None  # what is read now
        self._repeats = 0  # loops and conditions around what is read
        graph, meaning = concrete.graph, {}
        captures = list(graph.captures)
        feeds = graph.inputs[: len(graph.inputs) - len(captures)]
        for tensor, name in zip(feeds, names, strict=True):
            meaning[id(tensor)] = value = Value(_static(tensor), tensor.dtype, name=name)
            self.program.feeds.append(value)
        numbers = self._begin_variables(concrete, variables)
        for outer, inner in captures:
            meaning[id(inner)] = _captured(outer, numbers)
        results = self._follow(graph, meaning)
        self.program.results = [self._result(value) for value in results]
        for variable, after in zip(self.program.variables, self._now, strict=True):
            variable.after = after
        self.program.keep_here(hosted)
        self.program.operations = moments.join(self.program.operations)
        self.program.keep_live()

    def _begin_variables(self, concrete: Any, first: Mapping[str, Any]) -> dict[int, int]:
        """Enter all variables of a function, those that are trained in the order of use.

        Returns:
          {id of a handle: number of the variable}.
        """
        variables = {id(v.handle): v for v in concrete.graph.variables}
        used = [variables[id(outer)] for outer, _ in concrete.graph.captures if id(outer) in variables]
        names = {id(v): name for name, v in first.items()}
        known = [v for v in first.values() if any(v is other for other in used)]
        taken = set(first)
        for variable in [*known, *sorted(used, key=lambda v: not v.trainable)]:
            if id(variable.handle) in self._numbers:
                continue
            name = names.get(id(variable)) or _free(variable.name.partition(":")[0], taken)
            taken.add(name)
            self._numbers[id(variable.handle)] = len(self._now)
            value = Value(_static(variable), variable.dtype, name=name)
            self.program.variables.append(Variable(variable, value, value))
            self._now.append(value)
        return self._numbers

    def _result(self, value: Any) -> Value:
        if not isinstance(value, Value):
            raise NotImplementedError("the step returns a variable or a TensorArray; return tensors")
        return value

    def _follow(self, graph: Any, meaning: dict[int, Any]) -> list[Any]:
        """Read all operations of a graph, given the meaning of its inputs; returns that of its outputs."""
        todo, done, early = list(graph.get_operations())[::-1], set(), set()
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
                raise _refusal(node, "reads or writes a variable, and a loop before it needs the result")
            outputs = self._read(graph, node, [meaning[id(t)] for t in node.inputs])
            meaning |= {id(tensor): value for tensor, value in zip(node.outputs, outputs, strict=True)}
        return [meaning[id(t)] for t in graph.outputs]

    def _read(self, graph: Any, node: Any, inputs: list[Any]) -> Sequence[Any]:
        kind, self._source = node.type, node
        if kind == "Const":
            return [known(tf.make_ndarray(node.get_attr("value")), node.outputs[0].dtype)]
        if kind in _ALIASES:
            return inputs
        if kind in _CALLS:
            return self._inline(graph, node.get_attr("f"), inputs)
        if kind in _CHOICES:
            return self._choose(graph, node, *inputs)
        if kind in _LOOPS:
            return self._unroll(graph, node, inputs)
        if not node.outputs and not any(isinstance(x, int) for x in inputs):  # Print, Assert, a summary
            self.program.effects.append(node)
            return []
        self._check(node, inputs)
        if any(isinstance(x, int) for x in inputs):
            return accesses.follow(node, inputs, self._now, self._add)
        if lists.is_about_lists(node, inputs):
            return lists.follow(node, inputs, self._add)
        return self._add(self._traced(node, inputs))

    def _check(self, node: Any, inputs: Sequence[Any]) -> None:
        """Raise NotImplementedError if an operation cannot be followed."""
        if node.type in PYTHON_OPERATIONS:
            raise _refusal(node, "calls Python, which no device but this process can run; write it with TensorFlow")
        resource = next((x for x in inputs if isinstance(x, _Resource)), None)
        if resource is not None:
            raise _refusal(node, f"reads {resource}, which is no tf.Variable; do it where the data are prepared")
        if node.type in _DRAWS and self._repeats:
            raise _refusal(node, "draws in a loop or a condition; use a function of tf.random.stateless_*")
        about_variables = any(isinstance(x, int) for x in inputs)
        is_free = node.type in _DRAWS or node.type.startswith("Stateless") or about_variables
        if _definition(node).is_stateful and not is_free:
            raise _refusal(node, "has a state of its own, which is not followed; keep the state in a tf.Variable")

    def _traced(self, node: Any, inputs: list[Value]) -> Operation:
        names = {a.name for a in _definition(node).attr}
        attributes = {name: proto for name, proto in node.node_def.attr.items() if name in names}
        op = Operation(node.type, inputs, [Value((), t.dtype, name=node.name) for t in node.outputs], attributes)
        op.is_stateful = _definition(node).is_stateful
        if op.type in _SHAPE_OF or _is_known(op):  # its shapes are not looked for
            return op
        shapes = [t.shape for t in node.outputs]
        if not all(shape.is_fully_defined() for shape in shapes):
            shapes = infer_shapes(op)
        if not all(shape.is_fully_defined() for shape in shapes):
            raise _refusal(node, "gives a tensor whose shape depends on the data; give it a fixed shape")
        for value, shape in zip(op.outputs, shapes, strict=True):
            value.shape = tuple(shape.as_list())
        return op

    # --- calls, conditions and loops

    def _inline(self, graph: Any, function: Any, inputs: Sequence[Any]) -> list[Any]:
        inner = _graph_of(graph, function.name)
        return self._follow(inner, {id(t): value for t, value in zip(inner.inputs, inputs, strict=True)})

    def _choose(self, graph: Any, node: Any, chosen: Value, *inputs: Any) -> list[Any]:
        """Read all branches; of what they give and write, select what the condition says."""
        if node.type in ("If", "StatelessIf"):
            branches = [node.get_attr("else_branch"), node.get_attr("then_branch")]
        else:
            branches = node.get_attr("branches")
        if chosen.array is not None:
            index = int(chosen.array)
            return self._inline(graph, branches[index if 0 <= index < len(branches) else -1], inputs)
        before, ends = list(self._now), []
        self._repeats += 1
        for branch in branches:
            self._now = list(before)
            ends.append([*self._inline(graph, branch, inputs), *self._now])
        self._repeats -= 1
        joined = ends[-1]  # which an index out of range chooses
        for number in reversed(range(len(branches) - 1)):
            joined = [self._selected(node, chosen, number, a, b) for a, b in zip(ends[number], joined, strict=True)]
        count = len(joined) - len(before)
        self._now = joined[count:]
        return joined[:count]

    def _selected(self, node: Any, chosen: Value, number: int, a: Any, b: Any) -> Any:
        """Return `a` where the choice is that number, else `b`."""
        if a is b:
            return a
        if isinstance(a, TensorList) and isinstance(b, TensorList) and len(a) == len(b):
            indices = range(len(a))
            return a.replaced([self._selected(node, chosen, number, a.item(i), b.item(i)) for i in indices])
        if not (isinstance(a, Value) and isinstance(b, Value)) or a.shape != b.shape:
            raise _refusal(node, "has branches that give tensors of different shapes; give them one shape")
        if chosen.dtype == tf.bool:
            then, other, condition = b, a, chosen  # the first branch is that of False
        else:
            then, other = a, b
            equal = synthetic("Equal", [chosen, known(number, chosen.dtype)], [()], node.name)
            equal.outputs[0].dtype = tf.bool
            (condition,) = self._add(equal)
        select = Operation(
            "SelectV2",
            [condition, then, other],
            [Value(a.shape, a.dtype, name=a.name or b.name)],
            {"T": attribute(a.dtype)},
        )
        return self._add(select)[0]

    def _unroll(self, graph: Any, node: Any, values: Sequence[Any]) -> Sequence[Any]:
        """Read a loop turn by turn, as often as its condition, which is known, says."""
        self._repeats += 1
        while True:
            (condition,) = self._inline(graph, node.get_attr("cond"), values)
            if condition.array is None:
                raise _refusal(node, "is a loop that ends by its data; give it a fixed number of turns")
            if not condition.array:
                break
            values = self._inline(graph, node.get_attr("body"), values)
        self._repeats -= 1
        return values

    # --- operations on values

    def _add(self, op: Operation) -> list[Value]:
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
        if op.is_stateful:
            self.program.operations.append(op)
            return op.outputs
        key = op.type, _text(op.attributes), *map(_identity, op.inputs)
        if key not in self._equal:
            self._equal[key] = op
            self.program.operations.append(op)
        return self._equal[key].outputs


def _definition(node: Any) -> Any:
    """Return the OpDef of a tf.Operation, which TensorFlow parses anew each time that it is asked for it."""
    if node.type not in _DEFINITIONS:
        _DEFINITIONS[node.type] = node.op_def
    return _DEFINITIONS[node.type]


def _is_known(op: Operation) -> bool:
    """Return whether the results of an operation can be computed now."""
    return not op.is_stateful and all(value.array is not None for value in op.inputs)


def _set(value: Value, array: np.ndarray) -> None:
    value.array, value.shape = array, array.shape


def _static(tensor: Any) -> tuple[int, ...]:
    if not tensor.shape.is_fully_defined():
        raise ValueError(f"{tensor.name} has the shape {tensor.shape}; give examples whose shapes are known")
    return tuple(tensor.shape.as_list())


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


def _graph_of(graph: Any, name: str) -> Any:
    """Return the graph of a function that a graph calls; TensorFlow has no public way to it."""
    return graph._get_function(name).graph


def _refusal(node: Any, why: str) -> NotImplementedError:
    return NotImplementedError(f"operation {node.type} {node.name!r} ({line_of(node)}) {why}")


def _text(attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, proto.SerializeToString(deterministic=True)) for name, proto in attributes.items()))


def _identity(value: Value) -> Any:
    """Return what is equal for equal values: small arrays are compared by their elements."""
    if value.array is None or value.array.size > _MOST_COMPARED or value.dtype == tf.string:
        return id(value)
    return value.dtype, value.shape, value.array.tobytes()

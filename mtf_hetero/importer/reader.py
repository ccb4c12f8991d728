"""Reads a traced function operation by operation: functions that it calls too, and parts apart from the rest."""

import collections
import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._compat import graph_of_definition, tf
from mtf_hetero._support import facts
from mtf_hetero.importer import shapes as shapes_lib
from mtf_hetero.importer.nodes import OPEN_SHAPE, RefusedError, is_stateful, node_attributes, user_line
from mtf_hetero.importer.program import Guard, Meaning, Operation, Program, Value
from mtf_hetero.importer.refusals import Refused, check, lost, open_values
from mtf_hetero.importer.replaying import evaluate

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph

_MOST_COMPARED = 64  # elements of arrays that are compared to find equal operations
_OF_GRADIENTS = {"backward_function_name", "forward_function_name"}  # attributes of functions that belong together
_SUMS = facts.ADDITIONS & facts.ELEMENTWISE  # and no bias, which has fewer axes
_SHAPE_OF = {"Shape": np.shape, "ShapeN": np.shape, "Rank": np.ndim, "Size": np.size}
_HARMLESS = facts.VARIABLE_READS | facts.DRAWS  # they have a state, but change no variable
KINDS = set(_SHAPE_OF)  # of operations on shapes


class Part:
    """A part of the program that is read apart.

    Attributes:
      operations: of the part.
      guards: of the part.
      effects: as of a Reader.
      now: the values of variables after it.
      equal: {what is the same for equal operations: the first of them}.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.guards: list[Guard] = []
        self.effects: list[Refused] = []
        self.now: list[Value] = []
        self.equal: Mapping[Hashable, Operation] = {}


class Reader:
    """Reads functions. Each tensor of a function means something: see `program.Meaning`.

    Args:
      program: gets what is read.
      rule: reads one operation, and returns what its results mean.

    Attributes:
      program: the same.
      now: the value of each variable at this point of the step; another list after each write.
      streams: {path of an operation with random numbers of its own: number of the variable that has its state}.
      path: the names of the operation that is read now, and before it of each call that leads to it and its function.
      inside: the parts of the program that are read now, each within the one before.
      guards: of the part that is read now; None: it is of a loop, where nothing can be guarded.
      guarded: conditions that may be guarded.
      effects: refused values of operations that change something, so that the part that is read now needs them.
      places: {operation: its place in the order of reading}.
      refused: the error for a device that needs a tensor of an open shape, while all is recorded as it is; else None.
    """

    def __init__(self, program: Program, rule: "Follow") -> None:
        self.program, self._rule = program, rule
        self.guards: list[Guard] | None = self.program.guards
        self._operations = self.program.operations  # of the part that is read now
        self._equal: collections.ChainMap[Hashable, Operation] = collections.ChainMap()
        self.now: list[Meaning] = []
        self.streams: dict[tuple[str, ...], int] = {}
        self.path: tuple[str, ...] = ()
        self.inside: tuple[Part, ...] = ()
        self.guarded: set[tf.Operation] = set()
        self.effects: list[Refused] = []
        self.places: dict[tf.Operation, int] = {}
        self.refused: NotImplementedError | None = None
        self._source: tf.Operation | None = None  # what is read now
        self._expanded: tf.Operation | None = None  # the operation in whose place a function is read

    def follow(
        self, graph: "FuncGraph", meaning: dict[int, Meaning], ends: Sequence[tf.Tensor] | None = None
    ) -> list[Meaning]:
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
            self.places.setdefault(node, len(self.places))
            inputs = [meaning[id(t)] for t in node.inputs]
            self._source = self._expanded or node
            around, self.path = self.path, (*self.path, node.name)
            try:
                if node in early and any(isinstance(x, int) for x in inputs):
                    raise RefusedError(node, "reads or writes a variable, and a loop before it needs the result")
                outputs = self._rule(self, graph, node, inputs)
            except NotImplementedError as error:
                if self.refused is not None:
                    raise
                outputs = self._refuse(node, inputs, error)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # a fault of ours
                if not hasattr(error, "__notes__"):  # of an operation within this one
                    error.add_note(f"at operation {node.type} {node.name!r} ({user_line(node)})")
                raise
            finally:
                self.path = around
            meaning |= {id(tensor): value for tensor, value in zip(node.outputs, outputs, strict=True)}
        return [meaning[id(t)] for t in (graph.outputs if ends is None else ends)]

    def _refuse(self, node: tf.Operation, inputs: Sequence[Meaning], error: NotImplementedError) -> list[Refused]:
        """Return the results of an operation that is refused."""
        values = [x for x in inputs if isinstance(x, Value)]
        if is_stateful(node) and node.type not in _HARMLESS:
            self.effects.append(Refused((), tf.variant, refused=error, inputs=values))
        return [Refused((), t.dtype, refused=error, inputs=values) for t in node.outputs]

    def operation(self, node: tf.Operation, inputs: list[Value]) -> Operation:
        """Return an operation as it was traced; the shapes of its results are not known yet."""
        name = "" if self._source is None else self._source.name
        results = [Value((), t.dtype, name=name) for t in node.outputs]
        return Operation(node.type, inputs, results, node_attributes(node), is_stateful(node))

    def shaped(self, node: tf.Operation, op: Operation) -> Operation:
        if op.type in _SHAPE_OF or _is_known(op):  # its shapes are not looked for
            return op
        shapes = [t.shape for t in node.outputs]
        if not all(shape.is_fully_defined() for shape in shapes):
            shapes = shapes_lib.infer(op)
        if not all(shape.is_fully_defined() for shape in shapes):
            makers = {value: made for made in self._equal.values() for value in made.outputs}
            crop = shapes_lib.as_slice(op, makers)
            if crop is not None:
                return crop
            shapes = shapes_lib.infer(shapes_lib.with_limits(op, makers))
        if not all(shape.is_fully_defined() for shape in shapes):
            raise RefusedError(node, OPEN_SHAPE)
        for value, shape in zip(op.outputs, shapes, strict=True):
            value.shape = tuple(shape.as_list())
        return op

    # --- parts of the program

    def inline(self, graph: "FuncGraph", function: "str | tf.AttrValue", inputs: Sequence[Meaning]) -> list[Meaning]:
        """Read a function that a graph calls, on some inputs; returns what it gives."""
        name = function if isinstance(function, str) else function.name
        inner = function_graph(graph, name)
        around, self.path = self.path, (*self.path, name)
        try:
            return self.follow(inner, {id(t): value for t, value in zip(inner.inputs, inputs, strict=True)})
        finally:
            self.path = around

    def expand(self, node: tf.Operation, rule: Callable[..., object], inputs: Sequence[Value]) -> list[Value]:
        """Read a function in place of an operation; returns what the function gives.

        Args:
          node: the tf.Operation.
          rule: the function, of the operation's attributes and of tensors.
          inputs: values in place of the tensors.
        """
        shapes = [tf.TensorShape(value.shape) for value in inputs]
        # the state of a random operation, which is none of its inputs, comes first
        for i, tensor in enumerate(reversed(node.inputs) if self.refused is not None else (), 1):
            if inputs[-i].refused is not None and tensor.dtype != tf.resource:
                shapes[-i] = tensor.shape
        specs = tuple((shape, value.dtype) for shape, value in zip(shapes, inputs, strict=True))
        graph, self._expanded = _traced(node.type, rule, _text(node_attributes(node)), specs), node
        try:
            results = self.follow(graph, {id(t): value for t, value in zip(graph.inputs, inputs, strict=True)})
        finally:
            self._expanded = None
        check(lost(results))
        return results

    @contextlib.contextmanager
    def block(self, *, of_loop: bool = False) -> Iterator[Part]:
        """Read what follows apart from the rest; variables then have the values that they had before."""
        around = self._operations, self._equal, self.now, self.guards, self.effects, self.inside
        part = Part()
        self.effects, self.inside = part.effects, (*self.inside, part)
        self._operations, self._equal = part.operations, self._equal.new_child()
        self.guards = None if of_loop or self.guards is None else part.guards
        try:
            yield part
            part.now, part.equal = self.now, self._equal.maps[0]
        finally:
            self._operations, self._equal, self.now, self.guards, self.effects, self.inside = around

    def attempt(
        self, follow: Callable[[], Sequence[Meaning] | NotImplementedError]
    ) -> Sequence[Meaning] | NotImplementedError:
        """Read something; if it is refused, as if it had not been read, and the error is returned."""
        grown = [self._operations, self.program.effects, self.effects, *([] if self.guards is None else [self.guards])]
        counts, now, equal, effects = list(map(len, grown)), self.now, self._equal, len(self.effects)
        self._equal = equal.new_child()
        try:
            outputs = follow()
            if isinstance(outputs, NotImplementedError):
                raise outputs
            check(lost([*outputs, *self.effects[effects:]]))
            equal.maps[0].update(self._equal.maps[0])
            return outputs
        except NotImplementedError as error:
            for each, count in zip(grown, counts, strict=True):
                del each[count:]
            self.now = now
            return error
        finally:
            self._equal = equal

    @contextlib.contextmanager
    def recording(
        self, rule: "Follow", refused: NotImplementedError, now: list[Meaning], path: tuple[str, ...]
    ) -> Iterator[Part]:
        """Record what follows as it is, by another rule, apart from the rest.

        Args:
          rule: reads one operation.
          refused: the error for a device that needs a result of an open shape.
          now: the values of the variables.
          path: as of the reader.
        """
        around = self._rule, self.refused, self.path
        try:
            with self.block(of_loop=True) as part:
                self._rule, self.refused, self.path, self.now = rule, refused, path, now
                yield part
        finally:
            self._rule, self.refused, self.path = around

    def splice(self, part: Part) -> None:
        """Have a part's operations among the others."""
        self._operations += part.operations
        for key, op in part.equal.items():
            self._equal.setdefault(key, op)

    def find_open(self, values: Sequence[Meaning], *parts: Part) -> list[NotImplementedError]:
        """Return why devices cannot have some values, or the effects of some parts; no reason while all is recorded."""
        return [] if self.refused is not None else open_values([*values, *(x for part in parts for x in part.effects)])

    def append(self, op: Operation) -> None:
        """Add an operation with blocks, or any other as it is recorded."""
        if self.refused is not None:
            op.inputs += dict.fromkeys(x for block in op.blocks for x in block.outside if x.array is None)
            for value in op.outputs:
                value.refused = self.refused
        self._operations.append(op)

    def write(self, values: Mapping[int, Value]) -> None:
        """Give variables values, by their numbers."""
        self.now = list(self.now)
        for number, value in values.items():
            if value.refused is not None:
                value.shape = self.program.variables[number].before.shape
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
        if (same := _unchanged(op)) is not None:
            return [same]
        if op.is_stateful or any(value.elements is not None for value in op.outputs):  # equal lists are not the same
            self._operations.append(op)
            return op.outputs
        key = op.type, _text(op.attributes), *map(_identity, op.inputs)
        if key not in self._equal:
            self._equal[key] = op
            self._operations.append(op)
        return self._equal[key].outputs


Follow = Callable[[Reader, "FuncGraph", tf.Operation, list[Meaning]], Sequence[Meaning]]


def function_graph(graph: "FuncGraph", name: str) -> "FuncGraph":
    """Return the graph of a function that a graph calls; TensorFlow has no public way to it."""
    function = graph._get_function(_of_cpus(graph, name))
    if not hasattr(function, "graph"):  # TensorFlow made it in an older way, as in tf.nn.ctc_loss
        with graph.as_default():
            function.graph = graph_of_definition(function.definition)
    return function.graph


def _of_cpus(graph: "FuncGraph", name: str) -> str:
    """Return the function that TensorFlow's optimizer of graphs calls on CPUs in the place of another one.

    TensorFlow Probability gives its samplers several implementations so, whose random numbers differ.
    """
    attributes = _attributes(graph, name)
    if "api_implements" not in attributes or not _OF_GRADIENTS.isdisjoint(attributes):
        return name
    for other in graph._functions:
        found = _attributes(graph, other)
        is_same = found.get("api_implements") == attributes["api_implements"] and _OF_GRADIENTS.isdisjoint(found)
        if is_same and (device := found.get("api_preferred_device")) is not None and device.s == b"CPU":
            return other
    return name


def _attributes(graph: "FuncGraph", function: str) -> Mapping[str, tf.AttrValue]:
    """Return the attributes of a function."""
    made = graph._get_function(function)
    is_older = not hasattr(made, "cached_definition")  # TensorFlow made it in another way, and keeps its definition
    return (made.definition if is_older else made.cached_definition).attr


@functools.lru_cache(maxsize=1024)
def _traced(
    kind: str,
    rule: Callable[..., object],
    attributes: tuple[tuple[str, bytes], ...],
    specs: tuple[tuple[tf.TensorShape, tf.DType], ...],
) -> "FuncGraph":
    """Return the graph of a rule for operations that have a type, attributes, and shapes and types of inputs."""
    attr = Operation(kind, [], [], {name: tf.AttrValue.FromString(text) for name, text in attributes}).attr
    traced = tf.compat.v2.function(lambda *tensors: rule(attr, *tensors), autograph=False)
    return traced.get_concrete_function(*(tf.TensorSpec(*spec) for spec in specs)).graph


def _is_known(op: Operation) -> bool:
    """Return whether the results of an operation can be computed now."""
    are_lists = any(value.elements is not None for value in op.outputs)
    return not op.is_stateful and not are_lists and all(value.array is not None for value in op.inputs)


def _unchanged(op: Operation) -> Value | None:
    """Return the operand that an operation leaves as it is: a reduction over no axes, or a sum with zeros.

    The gradient of a loop begins its sums with zeros, and that of a broadcast from an open size may reduce nothing.
    """
    if op.type in facts.REDUCTIONS and op.inputs[1].array is not None and not op.inputs[1].array.size:
        return op.inputs[0]
    if op.type in _SUMS and op.outputs[0].elements is None:
        addends = [value for value in op.inputs if value.array is None or value.array.any()]
        if len(addends) == 1 and addends[0].shape == op.outputs[0].shape:
            return addends[0]
    return None


def _set(value: Value, array: np.ndarray) -> None:
    value.array, value.shape = array, array.shape


def _text(attributes: Mapping[str, tf.AttrValue]) -> tuple[tuple[str, bytes], ...]:
    return tuple(sorted((name, proto.SerializeToString(deterministic=True)) for name, proto in attributes.items()))


def _identity(value: Value) -> Hashable:
    """Return what is equal for equal values: small arrays are compared by their elements."""
    if value.array is None or value.array.size > _MOST_COMPARED or value.dtype == tf.string:
        return id(value)
    return value.dtype, value.shape, value.array.tobytes()

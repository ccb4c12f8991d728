"""Reads the program of a traced function: variables are followed, calls inlined, and what is known is computed.

A read of a variable is the value of the last write before it. So the order of reads and writes dissolves, and a pure
function is left: (feeds, variables before) -> (results, variables after).
"""

import functools
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import PYTHON_OPERATIONS
from mtf_hetero.importer import (
    broadcasts,
    conditions,
    control,
    formulas,
    lists,
    moments,
    normalization,
    preparing,
    rows,
    streams,
    variables,
)
from mtf_hetero.importer.islands import Islands, Place
from mtf_hetero.importer.nodes import CHECKS, constant_array, is_stateful, known_shape, refusal
from mtf_hetero.importer.preparing import Preparation, Resource
from mtf_hetero.importer.program import Meaning, Program, Value, literal, within
from mtf_hetero.importer.reader import Follow, Reader
from mtf_hetero.importer.structures import Optional, TensorList

if TYPE_CHECKING:
    from mtf_hetero._compat import ConcreteFunction, FuncGraph

_OPTIONALS: dict[str, Callable[[tf.Operation, Sequence[Meaning]], Meaning]] = {
    "OptionalFromValue": lambda node, inputs: Optional(inputs),
    "OptionalNone": lambda node, inputs: Optional([]),
    "OptionalGetValue": lambda node, inputs: inputs[0].value(node),
}
KINDS = {*_OPTIONALS, "Const"}  # of operations that are followed here
_NONE: Mapping = types.MappingProxyType({})
_STRINGS = "works on strings, which no device divides; do it where the data are prepared"


def read(
    concrete: "ConcreteFunction",
    first: Mapping[str, tf.Variable] = _NONE,
    *,
    names: Sequence[str] | None = None,
    shapes: Sequence[tf.TensorShape] | None = None,
    hosted: Collection[tf.Variable] = (),
    paths: Mapping[int, str] = _NONE,
    prepares: bool = False,
    states: streams.States | None = None,
    observed: Sequence[tf.Tensor] = (),
) -> Program:
    """Read the program of a traced function.

    Args:
      concrete: the ConcreteFunction of a tf.function.
      first: {name: tf.Variable} that come first in the program, in this order, if the function uses them.
      names: one per tensor that is fed; None: the function's own.
      shapes: of the tensors that are fed; None: the function has them.
      hosted: tf.Variables that stay in this process.
      paths: {id of a tf.Variable: its name}, for those whose own name is not used.
      states: of the operations that draw random numbers from one of their own; None: these stay as they are.
      prepares: whether this process may do before each step what no device can do; else it is refused.
      observed: tensors of the traced graph that become results too, those that devices have.

    Raises:
      NotImplementedError: an operation that is not followed, by name and the user's line.
    """
    program, graph, meaning = Program(concrete), concrete.graph, {}
    preparation, captures = Preparation(program), list(graph.captures)
    prepared = preparation if prepares else None
    reader = Reader(program, functools.partial(_read, prepared, Islands(prepared)))
    fed = graph.inputs[: len(graph.inputs) - len(captures)]
    names, shapes = names or [tensor.op.name for tensor in fed], shapes or [tensor.shape for tensor in fed]
    for tensor, name, shape in zip(fed, names, shapes, strict=True):
        meaning[id(tensor)] = value = Value(known_shape(name, shape), tensor.dtype, name=name)
        program.feeds.append(value)
    drawn = {} if states is None else streams.find_states(concrete, states)
    numbers = variables.enter(reader, concrete, first, paths, drawn.values())
    reader.streams = {path: numbers[id(state.handle)] for path, state in drawn.items()}
    for outer, inner in captures:
        meaning[id(inner)] = _captured(outer, numbers)
    program.results = reader.follow(graph, meaning)
    if not all(isinstance(value, Value) for value in program.results):
        raise NotImplementedError("the step returns a variable or a TensorArray; return tensors")
    if any(value.dtype == tf.string for value in program.results):
        raise NotImplementedError("the step returns strings, which no device has; return numbers")
    program.observed = [tensor for tensor in observed if _is_on_devices(reader, meaning.get(id(tensor)))]
    program.results += [meaning[id(tensor)] for tensor in program.observed]
    for variable, after in zip(program.variables, reader.now, strict=True):
        variable.after = after
    unused = {id(state) for state in drawn.values()}  # but for those that are drawn from: not in a branch never taken
    program.variables = [v for v in program.variables if id(v.variable) not in unused or v.after is not v.before]
    program.keep_here(hosted)
    program.examples = _count_examples(concrete)
    program.operations = broadcasts.delay(normalization.join(moments.join(program.operations)))
    program.keep_live()
    preparation.finish()
    _check_live(program)
    return program


def _captured(outer: tf.Tensor, numbers: Mapping[int, int]) -> Meaning:
    """Return what a tensor from outside of the function means in it."""
    if id(outer) in numbers:
        return numbers[id(outer)]
    if outer.dtype in (tf.resource, tf.variant):
        return Resource(outer)
    return literal(outer.numpy(), outer.dtype)


def _is_on_devices(reader: Reader, x: Meaning) -> bool:
    """Return whether devices have a tensor as an array of its shape."""
    if not isinstance(x, Value) or x.elements is not None or x.refused is not None or x in reader.rows:
        return False
    return x.dtype not in (tf.string, tf.resource, tf.variant)


def _count_examples(concrete: "ConcreteFunction") -> int:
    """Return the number of tensors in the first argument that has some: images and their classes, say."""
    arguments, _ = concrete.structured_input_signature
    leaves = (tf.nest.flatten(argument, expand_composites=True) for argument in arguments)
    return next(filter(None, (sum(isinstance(x, tf.TensorSpec) for x in each) for each in leaves)), 0)


def _check_live(program: Program) -> None:
    """Raise NotImplementedError if something needs strings; what is printed is not needed."""
    for op in within(program.operations):
        if any(value.dtype == tf.string for value in (*op.inputs, *op.outputs)):
            assert op.source is not None
            raise refusal(op.source, _STRINGS)


def _read(
    preparation: Preparation | None,
    islands: Islands,
    reader: Reader,
    graph: "FuncGraph",
    node: tf.Operation,
    inputs: list[Meaning],
) -> Sequence[Meaning]:
    """Read an operation; returns what its results mean."""
    kind = node.type
    if kind == "Const":
        return [literal(constant_array(node), node.outputs[0].dtype)]
    is_fixed = kind == "EnsureShape" and isinstance(inputs[0], Value) and inputs[0].refused is not None
    if kind in control.ALIASES and not is_fixed:
        return inputs
    place = Place(graph, node, inputs, reader.now, reader.path, reader.inside)
    if (follow := control.control_rule(graph, kind)) is not None:
        if kind in conditions.KINDS or kind in control.LOOPS:
            return _follow_flow(preparation, islands, reader, place, follow)
        return follow(reader, graph, node, inputs)
    if not _is_about_variables(inputs) and _is_effect(graph, node):
        reader.program.effects.append(node)
        return [] if not node.outputs else inputs[:1]
    try:
        outputs = _follow_or_prepare(None if reader.inside else preparation, islands, reader, place)
    except NotImplementedError as error:
        joined = islands.add(reader, place, error)
        if joined is None:
            raise
        return joined
    islands.remember(place, outputs)
    return outputs


def _follow_flow(
    preparation: Preparation | None, islands: Islands, reader: Reader, place: Place, follow: Follow
) -> Sequence[Meaning]:
    """Read a condition or a loop; one around open shapes is an island."""
    if preparation is not None:
        preparation.settle(place.inputs)
    try:
        with reader.attempt():
            outputs = follow(reader, place.graph, place.node, list(place.inputs))
    except NotImplementedError as error:
        if (joined := islands.add(reader, place, error)) is not None:
            return joined
        if place.node.type not in conditions.KINDS:
            raise
        reader.guarded.add(place.node)
        outputs = follow(reader, place.graph, place.node, list(place.inputs))
    islands.remember(place, outputs)
    return outputs


def _follow_or_prepare(
    preparation: Preparation | None, islands: Islands, reader: Reader, place: Place
) -> Sequence[Meaning]:
    """Read an operation for the devices, or else for this process; returns what its results mean."""
    node, inputs = place.node, list(place.inputs)
    if preparation is not None and any(t.dtype == tf.string for t in (*node.inputs, *node.outputs)):
        prepared = preparation.add(node, reader.operation(node, inputs), refusal(node, _STRINGS))
        if prepared is not None:
            return prepared
    if rows.concern(reader, node, inputs):
        return _follow_rows(preparation, islands, reader, place)
    return _follow_here_or_there(preparation, islands, reader, place)


def _follow_rows(preparation: Preparation | None, islands: Islands, reader: Reader, place: Place) -> Sequence[Meaning]:
    """Read an operation on rows of which some exist."""
    node, inputs = place.node, list(place.inputs)
    if (followed := rows.follow(reader, node, inputs)) is not None:
        return followed
    try:
        outputs = _follow_here_or_there(preparation, islands, reader, place)
    except NotImplementedError as error:
        outputs = rows.note(reader, node, inputs, [Value((), t.dtype, refused=error) for t in node.outputs])
        if outputs is None:
            raise
        return outputs
    return rows.note(reader, node, inputs, outputs) or outputs


def _follow_here_or_there(
    preparation: Preparation | None, islands: Islands, reader: Reader, place: Place
) -> Sequence[Meaning]:
    """Read an operation for the devices, or for this process if they cannot have it."""
    node, inputs = place.node, list(place.inputs)
    try:
        return _follow(reader, node, inputs)
    except NotImplementedError as error:
        if preparation is None:
            raise
        makes_list = any(t.dtype == tf.variant for t in node.outputs)
        if makes_list and preparation.settle(inputs):  # a loop on the devices may read it
            return _follow(reader, node, inputs)
        prepared = preparation.add(node, reader.operation(node, inputs), error)
        if prepared is not None:
            return prepared
        blamed = [x for x in inputs if isinstance(x, Value) and x.refused is error]
        if islands.may_add(reader, place, error) or not preparation.settle(inputs):
            preparing.check(blamed)  # of which it may know more now
            raise
        return _follow(reader, node, inputs)


def _follow(reader: Reader, node: tf.Operation, inputs: list[Meaning]) -> Sequence[Meaning]:
    """Read an operation for the devices; returns what its results mean."""
    kind, about_variables = node.type, _is_about_variables(inputs)
    if kind == "Empty" and inputs[0].array is not None:  # what it is filled with later is read as new values
        return [literal(np.zeros(inputs[0].array), node.outputs[0].dtype)]
    if kind in formulas.STREAMS and (drawn := streams.draw(reader, node, inputs)) is not None:
        return drawn
    if kind in _OPTIONALS and (kind != "OptionalGetValue" or isinstance(inputs[0], Optional)):
        return [_OPTIONALS[kind](node, inputs)]
    _check(node, inputs, about_variables=about_variables)
    if kind not in lists.KEEPING or not isinstance(inputs[0], TensorList):  # its elements may have any shapes
        preparing.check(inputs)
    if about_variables:
        return variables.follow(reader, node, inputs)
    if lists.is_about_lists(node, inputs):
        return lists.follow(node, inputs, reader.add)
    if (kept := next((x for x in inputs if isinstance(x, Optional)), None)) is not None:
        if kind != "ZerosLike":
            raise refusal(node, "of what a condition keeps is not followed; write the condition with tf.where")
        return [lists.zeros(node, kept, reader.add)]
    op = reader.operation(node, inputs)
    if kind in formulas.NORMS and op.attr("data_format", "NHWC") in ("NHWC", "NDHWC"):
        outputs = reader.expand(node, formulas.NORMS[kind], inputs)
        return [*outputs, *(literal(np.zeros(0), y.dtype) for y in op.outputs[len(outputs) :])]  # cuDNN's own
    return reader.add(reader.shaped(node, op))


def _is_about_variables(inputs: Sequence[Meaning]) -> bool:
    return any(isinstance(x, int) for x in inputs)


def _is_effect(graph: "FuncGraph", node: tf.Operation) -> bool:
    """Return whether nothing reads what an operation gives, which is there to print or to check something."""
    if node.type in CHECKS:
        return not node.outputs[0].consumers() and all(y is not node.outputs[0] for y in graph.outputs)
    return not node.outputs and not node.type.startswith("LookupTable")  # a written table would be read


def _check(node: tf.Operation, inputs: Sequence[Meaning], *, about_variables: bool) -> None:
    """Raise NotImplementedError if an operation cannot be followed."""
    if node.type in PYTHON_OPERATIONS:
        raise refusal(node, "calls Python, which no device but this process can run; write it with TensorFlow")
    if node.type.startswith("Cudnn"):
        raise refusal(node, "is cuDNN's, which only a GPU has; give the layer use_cudnn=False")
    resource = next((x for x in inputs if isinstance(x, Resource)), None)
    if resource is not None:
        raise refusal(node, f"reads {resource}, which is no tf.Variable; do it where the data are prepared")
    is_free = node.type in {*control.DRAWS, "Empty"} or node.type.startswith("Stateless") or about_variables
    if node.type in preparing.SAMPLERS:
        raise refusal(node, preparing.SAMPLES)
    if is_stateful(node) and not is_free:
        raise refusal(node, "has a state of its own, which is not followed; keep the state in a tf.Variable")

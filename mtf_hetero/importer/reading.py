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
from mtf_hetero._support import facts
from mtf_hetero.importer import (
    broadcasts,
    control,
    formulas,
    lists,
    moments,
    normalization,
    preparing,
    refusals,
    rows,
    streams,
    variables,
)
from mtf_hetero.importer.islands import Islands, Place
from mtf_hetero.importer.nodes import STRINGS, RefusedError, constant_array, is_stateful, known_shape
from mtf_hetero.importer.preparing import Preparation, Resource
from mtf_hetero.importer.program import Meaning, Program, Value, literal
from mtf_hetero.importer.reader import Reader
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
      NotImplementedError: operations that are not followed, all by name and the user's line.
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
    preparation.settle(program.results)
    refused = [*refusals.lost(reader.effects), *refusals.find_refused_results(graph, program.results)]
    if refused:
        program.results = refusals.list_sources(
            [*program.results, *reader.effects]
        )  # which may be refused for strings too
    program.observed = [tensor for tensor in observed if _is_on_devices(meaning.get(id(tensor)))]
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
    refused += refusals.find_needed_strings(program.operations)
    refusals.check(refusals.sort(refused, reader.places))
    return program


def _captured(outer: tf.Tensor, numbers: Mapping[int, int]) -> Meaning:
    """Return what a tensor from outside of the function means in it."""
    if id(outer) in numbers:
        return numbers[id(outer)]
    if outer.dtype in (tf.resource, tf.variant):
        return Resource(outer)
    return literal(outer.numpy(), outer.dtype)


def _is_on_devices(x: Meaning) -> bool:
    """Return whether devices have a tensor as an array of its shape."""
    if not isinstance(x, Value) or x.elements is not None or x.refused is not None or x.rows is not None:
        return False
    return x.dtype not in (tf.string, tf.resource, tf.variant)


def _count_examples(concrete: "ConcreteFunction") -> int:
    """Return the number of tensors in the first argument that has some: images and their classes, say."""
    arguments, _ = concrete.structured_input_signature
    leaves = (tf.nest.flatten(argument, expand_composites=True) for argument in arguments)
    return next(filter(None, (sum(isinstance(x, tf.TensorSpec) for x in each) for each in leaves)), 0)


def _read(
    preparation: Preparation | None,
    islands: Islands,
    reader: Reader,
    graph: "FuncGraph",
    node: tf.Operation,
    inputs: list[Meaning],
) -> Sequence[Meaning]:
    """Read an operation; returns what its results mean.

    Raises:
      NotImplementedError: it is refused.
    """
    kind = node.type
    if kind == "Const":
        return [literal(constant_array(node), node.outputs[0].dtype)]
    is_fixed = kind == "EnsureShape" and isinstance(inputs[0], Value) and inputs[0].refused is not None
    if kind in facts.RENAMING and not is_fixed:
        return inputs
    rule = control.control_rule(graph, kind)
    if rule is not None and kind not in facts.CONDITIONS | facts.LOOPS:
        return rule(reader, graph, node, inputs)
    if rule is None and not _is_about_variables(inputs) and _is_effect(graph, node):
        reader.program.effects.append(node)
        return [] if not node.outputs else inputs[:1]
    place = Place(graph, node, inputs, reader.now, reader.path, reader.inside)
    if rule is None:
        return _find_meaning(
            islands,
            reader,
            place,
            lambda: _follow_operation(None if reader.inside else preparation, islands, reader, place),
        )
    if preparation is not None:
        preparation.settle(inputs)
    return _find_meaning(islands, reader, place, lambda: rule(reader, graph, node, inputs))


def _find_meaning(
    islands: Islands, reader: Reader, place: Place, follow: Callable[[], Sequence[Meaning] | NotImplementedError]
) -> Sequence[Meaning]:
    """Return what the results of an operation mean if it is followed, in an island, or as a condition with a guard."""
    found = reader.attempt(follow)
    if isinstance(found, NotImplementedError) and (joined := islands.add(reader, place, found)) is not None:
        return joined
    if isinstance(found, NotImplementedError) and place.node.type in facts.CONDITIONS:
        reader.guarded.add(place.node)
        found = reader.attempt(follow)
    if isinstance(found, NotImplementedError):
        raise found
    islands.remember(place, found)
    return found


def _follow_operation(
    preparation: Preparation | None, islands: Islands, reader: Reader, place: Place
) -> Sequence[Meaning] | NotImplementedError:
    """Read an operation for the devices, or else for this process; returns what its results mean, or why not."""
    node, inputs = place.node, list(place.inputs)
    if lost := refusals.lost(inputs):
        return refusals.join([*lost, *_own_refusal(node, inputs)])
    if preparation is not None and any(t.dtype == tf.string for t in (*node.inputs, *node.outputs)):
        prepared = preparation.add(node, reader.operation(node, inputs), RefusedError(node, STRINGS))
        if prepared is not None:
            return prepared
    if (followed := rows.follow(reader, node, inputs)) is not None:
        return followed
    found = reader.attempt(lambda: _follow(reader, node, inputs))
    if isinstance(found, NotImplementedError) and preparation is not None:
        found = _follow_here(preparation, islands, reader, place, found)
    if not rows.are_made(node, inputs):
        return found
    if isinstance(found, NotImplementedError):
        found = [Value((), t.dtype, refused=found) for t in node.outputs]
    return rows.note(reader, node, inputs, found)


def _follow_here(
    preparation: Preparation, islands: Islands, reader: Reader, place: Place, refused: NotImplementedError
) -> Sequence[Meaning] | NotImplementedError:
    """Read an operation for this process, or for the devices once this process has fixed the shapes of its inputs."""
    node, inputs = place.node, list(place.inputs)
    makes_list = any(t.dtype == tf.variant for t in node.outputs)
    if not (makes_list and preparation.settle(inputs)):  # a loop on the devices may read a list
        prepared = preparation.add(node, reader.operation(node, inputs), refused)
        if prepared is not None:
            return prepared
        if islands.may_add(reader, place, refused):
            return refused
        preparation.settle(inputs)  # even if it fails, the errors tell more then
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
    refusals.check(_own_refusal(node, inputs))
    if kind not in lists.KEEPING or not isinstance(inputs[0], TensorList):  # its elements may have any shapes
        refusals.check(refusals.open_values(inputs))
    if about_variables:
        return variables.follow(reader, node, inputs)
    if lists.is_about_lists(node, inputs):
        return lists.follow(node, inputs, reader.add)
    if (kept := next((x for x in inputs if isinstance(x, Optional)), None)) is not None:
        if kind != "ZerosLike":
            raise RefusedError(node, "of what a condition keeps is not followed; write the condition with tf.where")
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
    if node.type in facts.CHECKS:
        return not node.outputs[0].consumers() and all(y is not node.outputs[0] for y in graph.outputs)
    return not node.outputs and not node.type.startswith("LookupTable")  # a written table would be read


def _own_refusal(node: tf.Operation, inputs: Sequence[Meaning]) -> list[NotImplementedError]:
    """Return the error for an operation of a kind that is not followed, whatever it reads."""
    if node.type in facts.PYTHON:
        return [RefusedError(node, "calls Python, which no device but this process can run; write it with TensorFlow")]
    if node.type.startswith("Cudnn"):
        return [RefusedError(node, "is cuDNN's, which only a GPU has; give the layer use_cudnn=False")]
    resource = next((x for x in inputs if isinstance(x, Resource)), None)
    if resource is not None:
        return [RefusedError(node, f"reads {resource}, which is no tf.Variable; do it where the data are prepared")]
    if node.type in facts.SAMPLERS:
        return [RefusedError(node, preparing.SAMPLES)]
    is_free = node.type in {*facts.DRAWS, "Empty"} or node.type.startswith("Stateless")
    if is_stateful(node) and not is_free and not _is_about_variables(inputs):
        return [RefusedError(node, "has a state of its own, which is not followed; keep the state in a tf.Variable")]
    return []

"""A traced step, read and emitted: its mtf.Graph, what is fed to it, and what it gives."""

import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import garbage
from mtf_hetero.importer import inference, reader, rules
from mtf_hetero.importer import shapes as shapes_lib
from mtf_hetero.importer.emitter import emit_program
from mtf_hetero.importer.program import Operation, Program


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step as an mtf graph.

    Args:
      program: what was read.
      graph: mtf.Graph.
      mesh: its mtf.Mesh.
      feeds: placeholders.
      variables: {name: tf.Variable of the user}, by names in the mtf graph.
      results: what the step returns, and the values of hosted variables after it.
      updates: assignments of variables.
      axes: {name of a variable: its dimensions}, which later steps on the same variables keep.
      work: {operation: the dimensions of its work}.
    """

    program: Program
    graph: mtf.Graph
    mesh: mtf.Mesh
    feeds: tuple[tf.Tensor, ...]
    variables: Mapping[str, Any]
    results: tuple[mtf.Tensor, ...]
    updates: tuple[mtf.Operation, ...]
    axes: Mapping[str, inference.Axes]
    work: Mapping[Operation, set[mtf.Dimension]]


def read(
    concrete: Any,
    shapes: Sequence[Any],
    like: Step | None = None,
    hosted: Collection[Any] = (),
    paths: Mapping[int, str] = types.MappingProxyType({}),
) -> Program:
    """Read the program of a traced function.

    Args:
      concrete: the ConcreteFunction.
      shapes: of the tensors that are fed, which the function may leave open.
      like: a step whose variables it is to have first, in their order.
      hosted: tf.Variables that stay in this process.
      paths: {id of a tf.Variable: its name}, for those whose own name is not used.
    """
    graph = concrete.graph
    fed = graph.inputs[: len(graph.inputs) - len(list(graph.captures))]
    names = [tensor.op.name for tensor in fed]
    variables = {} if like is None else like.variables
    program = reader.read(concrete, names, variables, hosted, shapes_lib.with_inputs(graph, shapes), paths)
    arguments, _ = concrete.structured_input_signature
    counts = [sum(isinstance(x, tf.TensorSpec) for x in tf.nest.flatten(x, expand_composites=True)) for x in arguments]
    program.examples = next(filter(None, counts), 0)  # of the first argument: images and their classes, say
    return program


@garbage.uncollected()
def build(program: Program, like: Step | None = None) -> Step:
    """Emit a program in TensorFlow's default graph, where variables of the same names are used again.

    Args:
      program: the program.
      like: a step on the same variables, whose dimensions they keep.
    """
    known = {} if like is None else like.axes
    named = [variable.before.name for variable in program.variables]
    fixed = {number: known[name] for number, name in enumerate(named) if name in known}
    names = inference.infer(program, fixed)
    with tf.device("/cpu:0"):
        feeds = tuple(tf.placeholder(value.dtype, value.shape) for value in program.inputs)
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        emitter, made, results, updates = emit_program(program, names, feeds, rules.emit)
    axes = [
        [[(dim.name, dim.size) for dim in axis] for axis in emitter.axes(variable.before)]
        for variable in program.variables
    ]
    assert [variable.name for variable in made] == named
    return Step(
        program,
        emitter.graph,
        emitter.mesh,
        feeds,
        {variable.before.name: variable.variable for variable in program.variables},
        tuple(results),
        tuple(updates),
        dict(zip(named, axes, strict=True)),
        emitter.computed,
    )

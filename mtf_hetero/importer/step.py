"""A traced step, read and emitted: its mtf.Graph, what is fed to it, and what it gives."""

import dataclasses
from collections.abc import Mapping

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import garbage
from mtf_hetero.importer import inference, rules
from mtf_hetero.importer.emitter import Emitter, plain, written_variables
from mtf_hetero.importer.program import Operation, Program


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step as an mtf graph.

    Args:
      program: what was read.
      graph: mtf.Graph.
      mesh: its mtf.Mesh.
      feeds: placeholders.
      fed: mtf.Tensors of them.
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
    fed: tuple[mtf.Tensor, ...]
    variables: Mapping[str, tf.Variable]
    results: tuple[mtf.Tensor, ...]
    updates: tuple[mtf.Operation, ...]
    axes: Mapping[str, inference.Axes]
    work: Mapping[Operation, set[mtf.Dimension]]


@garbage.without_collection()
def build(program: Program, like: Step | None = None) -> Step:
    """Emit a program in TensorFlow's default graph, where variables of the same names are used again."""
    names = inference.infer(program, {} if like is None else like.axes)
    emitter = Emitter(program, names, mtf.Mesh(mtf.Graph(), "mesh"), rules.emit)
    with tf.device("/cpu:0"):
        feeds = tuple(tf.placeholder(value.dtype, value.shape) for value in program.inputs)
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        fed = tuple(emitter.feed(value, feed) for value, feed in zip(program.inputs, feeds, strict=True))
        trainable = [v for v in program.variables if v.variable.trainable]
        trained = {v for v in trainable if v.after is not v.before} or set(trainable)  # a test writes none
        variables = [emitter.variable(v.before, trainable=v in trained) for v in program.variables]
        for op in program.operations:
            emitter.emit(op)
        results = [emitter.laid(value, emitter.axes(value)) for value in program.fetches]
        updates = [mtf.assign(variables[number], tensor) for number, tensor in written_variables(emitter, program)]
    assert [variable.name for variable in variables] == [variable.before.name for variable in program.variables]
    return Step(
        program,
        emitter.graph,
        emitter.mesh,
        feeds,
        fed,
        {variable.before.name: variable.variable for variable in program.variables},
        tuple(results),
        tuple(updates),
        {variable.before.name: plain(emitter.axes(variable.before)) for variable in program.variables},
        emitter.computed,
    )

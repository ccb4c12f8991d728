"""A function of TensorFlow inside an mtf graph of the user's: its operations are inserted, and so is its gradient.

TensorFlow itself differentiates the function: outputs and gradients are one traced function of the inputs and of the
gradients of the outputs. `mtf.gradients` meets one operation, whose gradient inserts the rest of that function.
"""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._compat import eagerly, mtf, tf
from mtf_hetero._support import garbage
from mtf_hetero.importer import inference, reading, rules
from mtf_hetero.importer.emitter import Axes, Emitter, flat, plain, with_dims, written_variables
from mtf_hetero.importer.program import Program, Value, Variable, within

if TYPE_CHECKING:
    from mtf_hetero._compat import ConcreteFunction

Make = Callable[[Variable, Axes], mtf.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A function, read for one kind of inputs.

    Args:
      forward: its ConcreteFunction.
      program: what was read; its results are the outputs, then the gradients that exist.
      outputs: number of outputs.
      seeds: {number of an output: the feed that is its gradient}; None: the program has no gradients.
      gradients: {number of an input, or reference of a tf.Variable: its gradient}.
    """

    forward: "ConcreteFunction"
    program: Program
    outputs: int
    seeds: Mapping[int, Value] | None = None
    gradients: Mapping[Hashable, Value] = dataclasses.field(default_factory=dict)

    @property
    def has_state(self) -> bool:
        """Return whether two runs of the program differ."""
        return any(op.is_stateful for op in within(self.program.operations))


@garbage.without_collection()
def read(forward: "ConcreteFunction", variables: Mapping[str, tf.Variable]) -> Source:
    """Read a function.

    Raises:
      NotImplementedError: operations that are not followed, all by name and the user's line.
    """
    with eagerly():
        program = reading.read(forward, variables, names=[f"input{i}" for i in range(len(_inputs(forward)))])
    return Source(forward, program, len(program.results))


@garbage.without_collection()
def differentiate(
    forward: "ConcreteFunction", variables: Mapping[str, tf.Variable], is_trained: Callable[[tf.Variable], bool]
) -> Source:
    """Read a function together with the gradients of its inputs, and of the variables that are trained.

    Args:
      forward: its ConcreteFunction.
      variables: {name: tf.Variable} that have names.
      is_trained: returns whether a tf.Variable is trained.

    Raises:
      NotImplementedError: operations that are not followed, all by name and the user's line.
    """
    outputs = tf.nest.flatten(forward.structured_outputs, expand_composites=True)
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in _inputs(forward)]
    seeded = [i for i, y in enumerate(outputs) if y.dtype.is_floating]
    seeds = [tf.TensorSpec(outputs[i].shape, outputs[i].dtype) for i in seeded]
    watched = [v for v in forward.variables if v.dtype.is_floating and is_trained(v)]
    keys = [*(i for i, x in enumerate(specs) if x.dtype.is_floating), *(v.ref() for v in watched)]

    def both(xs: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor | None]]:
        sources = [*(x for x in xs if x.dtype.is_floating), *watched]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            ys = tf.nest.flatten(forward(*xs), expand_composites=True)
        gradients = tape.gradient([ys[i] for i in seeded], sources, output_gradients=dys)
        return ys, [None if g is None else tf.convert_to_tensor(g) for g in gradients]

    with eagerly():
        concrete = tf.compat.v2.function(both, autograph=False).get_concrete_function(specs, seeds)
        names = [f"input{i}" for i in range(len(specs))] + [f"gradient{i}" for i in seeded]
        program = reading.read(concrete, variables, names=names)
    present = [key for key, g in zip(keys, concrete.structured_outputs[1], strict=True) if g is not None]
    return Source(
        forward,
        program,
        len(outputs),
        dict(zip(seeded, program.feeds[len(specs) :], strict=True)),
        dict(zip(present, program.results[len(outputs) :], strict=True)),
    )


def _inputs(concrete: "ConcreteFunction") -> list[tf.Tensor]:
    graph = concrete.graph
    return graph.inputs[: len(graph.inputs) - len(list(graph.captures))]


class InsertedOperation(mtf.CustomGradientOperation):
    """The outputs of a function, as they are; its gradient is the function's."""

    def __init__(
        self,
        sources: Sequence[mtf.Tensor],
        outputs: Sequence[mtf.Tensor],
        gradient: Callable[[Sequence[mtf.Tensor | None]], list[mtf.Tensor | None]],
        name: str,
    ) -> None:
        super().__init__([], list(sources), list(outputs), gradient, [], name)

    def gradient(self, grad_ys: Sequence[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
        return [*self._grad_fn(grad_ys), *[None] * len(self.outputs)]


class Inserted:
    """A function in a graph, as far as it was needed.

    Args:
      source: the function.
      mesh: mtf.Mesh of the graph.
      inputs: an mtf.Tensor and its axes for each input; several dimensions may be one axis.
      make: from a variable of the program and its axes to its mtf.Tensor, which may have more dimensions, of size 1.
      known: {name of a variable: its dimensions}, where they are known.

    Attributes:
      axes: {name of a variable: its dimensions}.
      tensors: {number of an input, or reference of a tf.Variable: its mtf.Tensor}.
      step: outputs and gradients, once the gradients were asked for.
      moved: {reference of a tf.Variable: its new value}, once the updates were asked for.
    """

    def __init__(
        self,
        source: Source,
        mesh: mtf.Mesh,
        inputs: Sequence[tuple[mtf.Tensor, Axes]],
        make: Make,
        known: Mapping[str, inference.Axes],
    ) -> None:
        self.source, program = source, source.program
        alike = [(seed, program.results[i]) for i, seed in (source.seeds or {}).items()]
        names = inference.infer(program, known, _distinct([axes for _, axes in inputs]), alike)
        self._emitter = Emitter(program, names, mesh, rules.emit)
        self.axes = {v.before.name: plain(self._emitter.axes(v.before)) for v in program.variables}
        self.tensors: dict[Hashable, mtf.Tensor] = {}
        self.step: Differentiated | None = None
        self.moved: dict[Hashable, mtf.Tensor] = {}
        self._values: dict[Hashable, Value] = {}
        for i, (tensor, _) in enumerate(inputs):
            self._put(i, program.feeds[i], tensor)
        for v in program.variables:
            self._put(v.variable.ref(), v.before, make(v, self._emitter.axes(v.before)))

    def _put(self, key: Hashable, value: Value, tensor: mtf.Tensor) -> None:
        axes = self._emitter.axes(value)
        self.tensors[key], self._values[key] = tensor, value
        self._emitter.put(value, with_dims(tensor, flat(axes)), axes)

    def emit(self, values: Sequence[Value]) -> list[tuple[mtf.Tensor, Axes]]:
        """Return the tensors and the axes of values, with the operations that they need in the program's order."""
        for op in self.source.program.list_ancestors(values):
            self._emitter.emit(op)
        axes = [self._emitter.axes(value) for value in values]
        return [(self._emitter.laid(v, a), a) for v, a in zip(values, axes, strict=True)]

    def updates(self) -> list[tuple[Variable, mtf.Tensor]]:
        """Return each variable that the function writes, and its new value."""
        program = self.source.program
        self.emit([v.after for v in program.variables if v.after is not v.before])
        found = [(program.variables[number], tensor) for number, tensor in written_variables(self._emitter, program)]
        self.moved = {v.variable.ref(): tensor for v, tensor in found}
        return found

    def gradients(self, seeds: Mapping[int, tuple[mtf.Tensor, Axes]]) -> dict[Hashable, mtf.Tensor]:
        """Return the gradients of inputs and variables, from a tensor and its axes for each output that has one."""
        for i, (tensor, axes) in seeds.items():
            self._emitter.put((self.source.seeds or {})[i], tensor, axes)
        self.emit(list(self.source.gradients.values()))
        gradients = {}
        for key, value in self.source.gradients.items():
            axes = self._emitter.axes(self._values[key])
            gradients[key] = with_dims(self._emitter.laid(value, axes), self.tensors[key].shape.dims)
        return gradients


@dataclasses.dataclass(frozen=True, eq=False)
class Differentiated:
    """The values of a function and of its gradients in a graph.

    Args:
      source: the function with gradients.
      values: {value of the program: its mtf.Tensor}: feeds, variables before, results, and variables after.
    """

    source: Source
    values: Mapping[Value, mtf.Tensor]


def insert(
    source: Source,
    differentiated: Callable[[], Source],
    inputs: Sequence[tuple[mtf.Tensor, Axes]],
    make: Make,
    known: Mapping[str, inference.Axes],
    name: str,
) -> tuple[list[tuple[mtf.Tensor, Axes]], Inserted]:
    """Insert a function into the graph of its inputs; returns a tensor and its axes for each output, and the rest.

    Args:
      source: the function.
      differentiated: returns the same with gradients; it is called when they are asked for, if `source` has none.
      inputs: as of Inserted.
      make: as of Inserted.
      known: as of Inserted.
      name: the operation's name.
    """
    mesh = inputs[0][0].mesh
    inserted = Inserted(source, mesh, inputs, make, known)
    outputs = inserted.emit(source.program.results[: source.outputs])
    tensors = {key: tensor for key, tensor in inserted.tensors.items() if tensor.dtype.is_floating}

    def gradient(dys: Sequence[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
        of = inserted
        if source.seeds is None:
            again = differentiated()
            of = Inserted(again, mesh, inputs, lambda v, _: inserted.tensors[v.variable.ref()], inserted.axes)
        found = of.gradients(
            {
                i: (mtf.zeros(mesh, y.shape, y.dtype) if dy is None else dy, of_y)
                for i, (dy, (y, of_y)) in enumerate(zip(dys, outputs, strict=True))
                if y.dtype.is_floating
            }
        )
        inserted.step = _record(of, inserted, outputs, dys, found)
        return [found.get(key) for key in tensors]

    made = InsertedOperation(list(tensors.values()), [y for y, _ in outputs], gradient, name).outputs
    return [(y, of_y) for y, (_, of_y) in zip(made, outputs, strict=True)], inserted


def _record(
    of: Inserted,
    inserted: Inserted,
    outputs: Sequence[tuple[mtf.Tensor, Axes]],
    dys: Sequence[mtf.Tensor | None],
    gradients: Mapping[Hashable, mtf.Tensor],
) -> Differentiated:
    """Return what was inserted as values of the program with gradients.

    Args:
      of: the program with gradients.
      inserted: the program whose outputs, inputs and variables are in the graph.
      outputs: the outputs.
      dys: their gradients.
      gradients: {number of an input, or reference of a tf.Variable: its gradient}.
    """
    source, program = of.source, of.source.program
    values = {program.feeds[key]: tensor for key, tensor in inserted.tensors.items() if isinstance(key, int)}
    values |= {v.before: inserted.tensors[v.variable.ref()] for v in program.variables}
    values |= {
        v.after: inserted.moved[v.variable.ref()] for v in program.variables if v.variable.ref() in inserted.moved
    }
    values |= {seed: dy for i, seed in (source.seeds or {}).items() if (dy := dys[i]) is not None}
    values |= {value: gradients[key] for key, value in source.gradients.items() if key in gradients}
    values |= {value: y for value, (y, _) in zip(program.results, outputs, strict=False)}
    return Differentiated(source, values)


def _distinct(inputs: Sequence[Axes]) -> list[inference.Axes]:
    """Return name and size of the dimensions of inputs; of two sizes with one name, the second gets another name."""
    names: dict[str, int] = {}

    def renamed(dim: mtf.Dimension) -> tuple[str, int]:
        numbered = (f"{dim.name}_{number}" if number else dim.name for number in itertools.count())
        name = next(each for each in numbered if names.setdefault(each, dim.size) == dim.size)
        return name, dim.size

    return [[[renamed(dim) for dim in axis if dim.size > 1] for axis in axes] for axes in inputs]

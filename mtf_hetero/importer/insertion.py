"""A function of TensorFlow inside an mtf graph of the user's: its operations are inserted, and so is its gradient.

TensorFlow itself differentiates the function: outputs and gradients are one traced function of the inputs and of the
gradients of the outputs. `mtf.gradients` meets one operation, whose gradient inserts the rest of that function.
"""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import eagerly, mtf, tf
from mtf_hetero._support import garbage
from mtf_hetero.importer import inference, reader, rules
from mtf_hetero.importer.emitter import Axes, Emitter, flat, with_dims, written
from mtf_hetero.importer.program import Program, Value, Variable, within

Make = Callable[[Variable, Axes], mtf.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function, read for one kind of inputs.

    Args:
      forward: its ConcreteFunction.
      program: what was read; its results are the outputs, then the gradients that exist.
      outputs: number of outputs.
      seeds: {number of an output: the feed that is its gradient}; None: the program has no gradients.
      gradients: {number of an input, or reference of a tf.Variable: its gradient}.
    """

    forward: Any
    program: Program
    outputs: int
    seeds: Mapping[int, Value] | None = None
    gradients: Mapping[Hashable, Value] = dataclasses.field(default_factory=dict)

    @property
    def has_state(self) -> bool:
        """Return whether two runs of the program differ."""
        return any(op.is_stateful for op in within(self.program.operations))


@dataclasses.dataclass(frozen=True, eq=False)
class Inserted:
    """A function in a graph.

    Args:
      outputs: a tensor and its axes for each output.
      updates: {number of a variable: its new value}, of those that the function writes.
      axes: {name of a variable: its dimensions}.
    """

    outputs: Sequence[tuple[mtf.Tensor, Axes]]
    updates: Mapping[int, mtf.Tensor]
    axes: Mapping[str, inference.Axes]


@garbage.uncollected()
def read(forward: Any, variables: Mapping[str, Any]) -> Traced:
    """Read a function.

    Args:
      forward: its ConcreteFunction.
      variables: {name: tf.Variable} that have names.

    Raises:
      NotImplementedError: an operation that is not followed, by name and the user's line.
    """
    with eagerly():
        program = reader.read(forward, [f"input{i}" for i in range(len(_inputs(forward)))], variables)
    return Traced(forward, program, len(program.results))


@garbage.uncollected()
def differentiate(forward: Any, variables: Mapping[str, Any], is_trained: Callable[[Any], bool]) -> Traced:
    """Read a function together with the gradients of its inputs, and of the variables that are trained.

    Args:
      forward: its ConcreteFunction.
      variables: {name: tf.Variable} that have names.
      is_trained: returns whether a tf.Variable is trained.

    Raises:
      NotImplementedError: an operation that is not followed, by name and the user's line.
    """
    outputs = tf.nest.flatten(forward.structured_outputs, expand_composites=True)
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in _inputs(forward)]
    seeded = [i for i, y in enumerate(outputs) if y.dtype.is_floating]
    seeds = [tf.TensorSpec(outputs[i].shape, outputs[i].dtype) for i in seeded]
    watched = [v for v in forward.variables if v.dtype.is_floating and is_trained(v)]
    keys = [*(i for i, x in enumerate(specs) if x.dtype.is_floating), *(v.ref() for v in watched)]

    def both(xs: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]) -> Any:
        sources = [*(x for x in xs if x.dtype.is_floating), *watched]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            ys = tf.nest.flatten(forward(*xs), expand_composites=True)
        gradients = tape.gradient([ys[i] for i in seeded], sources, output_gradients=dys)
        return ys, [None if g is None else tf.convert_to_tensor(g) for g in gradients]

    with eagerly():
        concrete = tf.compat.v2.function(both, autograph=False).get_concrete_function(specs, seeds)
        names = [f"input{i}" for i in range(len(specs))] + [f"gradient{i}" for i in seeded]
        program = reader.read(concrete, names, variables)
    present = [key for key, g in zip(keys, concrete.structured_outputs[1], strict=True) if g is not None]
    return Traced(
        forward,
        program,
        len(outputs),
        dict(zip(seeded, program.feeds[len(specs) :], strict=True)),
        dict(zip(present, program.results[len(outputs) :], strict=True)),
    )


def _inputs(concrete: Any) -> list[Any]:
    graph = concrete.graph
    return graph.inputs[: len(graph.inputs) - len(list(graph.captures))]


class InsertedOperation(mtf.CustomGradientOperation):
    """The outputs of a function, as they are; its gradient is the function's.

    Args:
      sources: the tensors that may have a gradient.
      outputs: the outputs.
      gradient: from the gradients of the outputs to those of the sources, None where there is none.
      name: the operation's name.
    """

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


class _Insertion:
    """A traced function in a graph, as far as it was needed.

    Args:
      traced: the function.
      mesh: mtf.Mesh of the graph.
      inputs: an mtf.Tensor and its axes for each input.
      make: as of `insert`.
      known: as of `insert`.
    """

    def __init__(
        self,
        traced: Traced,
        mesh: mtf.Mesh,
        inputs: Sequence[tuple[mtf.Tensor, Axes]],
        make: Make,
        known: Mapping[str, inference.Axes],
    ) -> None:
        self._traced, program = traced, traced.program
        given = _distinct([axes for _, axes in inputs])
        named = [v.before.name for v in program.variables]
        fixed = {number: known[name] for number, name in enumerate(named) if name in known}
        alike = [(seed, program.results[i]) for i, seed in (traced.seeds or {}).items()]
        self.emitter = Emitter(program, inference.infer(program, fixed, given, alike), mesh, rules.emit)
        self.sources: dict[Hashable, mtf.Tensor] = {}  # inputs and variables, as the graph has them
        self._values: dict[Hashable, Value] = {}
        for i, (tensor, _) in enumerate(inputs):
            self._put(i, program.feeds[i], tensor)
        for v in program.variables:
            self._put(v.variable.ref(), v.before, make(v, self.emitter.axes(v.before)))

    def _put(self, key: Hashable, value: Value, tensor: mtf.Tensor) -> None:
        axes = self.emitter.axes(value)
        self.sources[key], self._values[key] = tensor, value
        self.emitter.put(value, with_dims(tensor, flat(axes)), axes)

    def emit(self, values: Sequence[Value]) -> list[tuple[mtf.Tensor, Axes]]:
        """Return the tensors and the axes of values, with the operations that they need in the program's order."""
        for op in self._traced.program.needed(values):
            self.emitter.emit(op)
        axes = [self.emitter.axes(value) for value in values]
        return [(self.emitter.laid(v, a), a) for v, a in zip(values, axes, strict=True)]

    def gradients(self, seeds: Mapping[int, tuple[mtf.Tensor, Axes]]) -> dict[Hashable, mtf.Tensor]:
        """Return the gradients of inputs and variables, from a tensor and its axes for each output that has one."""
        for i, (tensor, axes) in seeds.items():
            self.emitter.put((self._traced.seeds or {})[i], tensor, axes)
        self.emit(list(self._traced.gradients.values()))
        gradients = {}
        for key, value in self._traced.gradients.items():
            axes = self.emitter.axes(self._values[key])
            gradients[key] = with_dims(self.emitter.laid(value, axes), self.sources[key].shape.dims)
        return gradients


def insert(
    traced: Traced,
    differentiated: Callable[[], Traced],
    inputs: Sequence[tuple[mtf.Tensor, Axes]],
    make: Make,
    known: Mapping[str, inference.Axes],
    name: str,
) -> Inserted:
    """Insert a function into the graph of its inputs.

    Args:
      traced: the function.
      differentiated: returns the same with gradients; it is called when they are asked for, if `traced` has none.
      inputs: an mtf.Tensor and its axes for each input; several dimensions may be one axis.
      make: from a variable of the program and its axes to its mtf.Tensor, which may have more dimensions, of size 1.
      known: {name of a variable: its dimensions}, where they are known.
      name: the operation's name.
    """
    program, mesh = traced.program, inputs[0][0].mesh
    insertion = _Insertion(traced, mesh, inputs, make, known)
    axes = {v.before.name: _plain(insertion.emitter.axes(v.before)) for v in program.variables}
    outputs = insertion.emit(program.results[: traced.outputs])
    insertion.emit([v.after for v in program.variables if v.after is not v.before])

    def gradient(dys: Sequence[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
        of = insertion
        if traced.seeds is None:
            of = _Insertion(differentiated(), mesh, inputs, lambda v, _: insertion.sources[v.variable.ref()], axes)
        found = of.gradients(
            {
                i: (mtf.zeros(mesh, y.shape, y.dtype) if dy is None else dy, of_y)
                for i, (dy, (y, of_y)) in enumerate(zip(dys, outputs, strict=True))
                if y.dtype.is_floating
            }
        )
        return [found.get(key) for key in sources]

    sources = {key: tensor for key, tensor in insertion.sources.items() if tensor.dtype.is_floating}
    made = InsertedOperation(list(sources.values()), [y for y, _ in outputs], gradient, name).outputs
    return Inserted(
        [(y, of_y) for y, (_, of_y) in zip(made, outputs, strict=True)],
        dict(written(insertion.emitter, program)),
        axes,
    )


def _distinct(inputs: Sequence[Axes]) -> list[inference.Axes]:
    """Return name and size of the dimensions of inputs; of two sizes with one name, the second gets another name."""
    names: dict[str, int] = {}

    def renamed(dim: mtf.Dimension) -> tuple[str, int]:
        numbered = (f"{dim.name}_{number}" if number else dim.name for number in itertools.count())
        name = next(each for each in numbered if names.setdefault(each, dim.size) == dim.size)
        return name, dim.size

    return [[[renamed(dim) for dim in axis if dim.size > 1] for axis in axes] for axes in inputs]


def _plain(axes: Axes) -> inference.Axes:
    return [[(dim.name, dim.size) for dim in axis] for axis in axes]

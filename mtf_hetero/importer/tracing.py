"""Traces a step, for each kind of inputs or for many at once; tf.Variables that it makes are made eagerly."""

import copy
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mtf_hetero._compat import make_variable, tf
from mtf_hetero._support import garbage
from mtf_hetero.importer import reading
from mtf_hetero.importer.program import Program
from mtf_hetero.importer.step import Step
from mtf_hetero.importer.streams import States

if TYPE_CHECKING:
    from mtf_hetero._compat import ConcreteFunction, Function

Specs = Sequence[Any]  # of the arguments: structures with tf.TensorSpecs, and what is no tensor as it is


class Traced:
    """A step, traced once for each kind of inputs.

    Args:
      step: a tf.function, or a function.
      hosted: returns the tf.Variables that stay in this process; each step is fed their values, and gives new ones.
      paths: returns {id of a tf.Variable: its name}, for those whose own name is not used.
      settled: returns tf.Variables whose making has no influence on other code of the step.
      relaxes: whether kinds that differ from an earlier one in sizes alone share a trace, as with the option
        `reduce_retracing` of tf.function; if that cannot be read, each kind has a trace of its own.

    Attributes:
      declared: specifications of the arguments to come, which may leave sizes open; kinds that fit share a trace of
        them. None: they are not known.
      is_staged: whether the batch of the programs to come has another name in each stage.
    """

    def __init__(
        self,
        step: "Callable[..., object] | Function",
        hosted: Callable[[], Sequence[tf.Variable]] = tuple,
        paths: Callable[[], Mapping[int, str]] = dict,
        settled: Callable[[], Collection[tf.Variable]] = tuple,
        *,
        relaxes: bool = False,
    ) -> None:
        self._function: Any = step if hasattr(step, "get_concrete_function") else tf.compat.v2.function(step)
        self._relaxed: Function | None = None
        if relaxes:
            function: Callable[..., object] = self._function.python_function
            self._relaxed = tf.compat.v2.function(function, autograph=False, reduce_retracing=True)
        self.hosted, self._paths, self._settled = hosted, paths, settled
        self._states: States = {}  # of the operations that draw random numbers from one of their own
        self.declared: Specs | None = None
        self.is_staged = False
        self._programs: dict[Hashable, Program] = {}

    def kind(self, inputs: Sequence[object]) -> Hashable:
        """Return what decides how the step is traced: structure, shapes, types, and arguments that are no tensors."""
        leaves = tf.nest.flatten(inputs, expand_composites=True)
        # NumPy's type of texts has the length of the longest one
        keys = [(tf.as_dtype(x.dtype).name, tuple(x.shape)) if is_tensor(x) else ("value", x) for x in leaves]
        structure = tf.nest.map_structure(lambda x: None, inputs)
        return repr(structure), tuple(keys)

    def program(self, inputs: Sequence[object], like: Step | None = None) -> Program:
        """Return the program for a kind of inputs. Call it eagerly.

        Args:
          inputs: the arguments.
          like: a step whose variables it is to have first; None for the first kind.
        """
        key = self.kind(inputs), self.is_staged
        if key not in self._programs:
            self._programs[key] = self._read(inputs, like)
        return self._programs[key]

    def _read(self, inputs: Sequence[object], like: Step | None) -> Program:
        specs = tf.nest.map_structure(_spec, inputs)
        if self._relaxed is not None:
            try:
                if self.declared is not None:
                    self._relaxed, _ = self._trace(self._relaxed, self.declared)  # it serves all kinds that fit
                self._relaxed, concrete = self._trace(self._relaxed, specs)
                return self._program(concrete, inputs, like)
            except (NotImplementedError, TypeError, ValueError):
                if self.declared is None and not self._programs:  # no size is open yet
                    raise
                self._relaxed = None  # the step needs the sizes
        self._function, concrete = self._trace(self._function, specs)
        return self._program(concrete, inputs, like)

    def observing(self, tensors: Sequence[tf.Tensor], inputs: Sequence[object], like: Step | None) -> "Traced":
        """Return the same step for one kind of inputs, with tensors of its trace among its results."""
        other, concrete = copy.copy(self), self.program(inputs).concrete
        key = self.kind(inputs), self.is_staged
        other._programs = {key: self._program(concrete, inputs, like, tensors)}
        return other

    @property
    def drawn(self) -> set[int]:
        """Ids of the tf.Variables that have states of random operations, which TensorFlow keeps elsewhere."""
        return {id(state) for state in self._states.values()}

    def _program(
        self,
        concrete: "ConcreteFunction",
        inputs: Sequence[object],
        like: Step | None,
        observed: Sequence[tf.Tensor] = (),
    ) -> Program:
        options = {"shapes": _shapes(inputs), "hosted": self.hosted(), "paths": self._paths(), "prepares": True}
        options |= {"states": self._states, "observed": observed}
        program = reading.read(concrete, {} if like is None else like.variables, **options)
        program.is_staged = self.is_staged
        return program

    def _trace(self, function: "Function", specs: Specs) -> "tuple[Function, ConcreteFunction]":
        """Trace a function, again if that makes variables: TensorFlow too runs the trace of code that finds them."""
        concrete, made = _trace(function, specs)
        if len(concrete.inputs) - len(concrete.captured_inputs) > len(_shapes(specs)):
            whole = function  # it has an argument whose default is an array: a constant for another function
            function = tf.compat.v2.function(lambda *arguments: whole(*arguments))
            concrete, made = _trace(function, specs)
        settled = {id(variable) for variable in self._settled()}
        if all(id(variable) in settled for variable in made):
            return function, concrete
        function = function._clone(None)
        return function, _trace(function, specs)[0]


def _trace(function: "Function", specs: Specs) -> "tuple[ConcreteFunction, list[tf.Variable]]":
    """Return the ConcreteFunction of a tf.function, and the tf.Variables that it makes."""
    with _Variables() as scope, garbage.without_collection():
        concrete = function.get_concrete_function(*specs)
    return concrete, scope.made()


class _Variables:
    """Makes the tf.Variables of a step eagerly while it is traced. A context manager.

    TensorFlow makes them with conditional initializers in the traced graph, and then always traces the step again
    without: that doubles the time to the first step.
    """

    def __init__(self) -> None:
        self._made: list[weakref.ref[tf.Variable]] = []
        self._scope = tf.compat.v2.variable_creator_scope(self._make)

    def _make(self, make_next: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        value = options.get("initial_value")
        if isinstance(value, tf.Tensor) and not hasattr(value, "numpy"):  # a tensor of the step
            return make_next(**options)
        with tf.init_scope():
            variable = make_variable(**options)
        self._made.append(weakref.ref(variable))
        return variable

    def made(self) -> list[tf.Variable]:
        """Return the variables that were made.

        Raises:
          ValueError: the step has a variable that ended with the trace.
        """
        made = [variable for ref in self._made if (variable := ref()) is not None]
        if len(made) < len(self._made):
            raise ValueError("the step makes a tf.Variable that nothing keeps; make it before the step")
        return made

    def __enter__(self) -> "_Variables":
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)


def is_tensor(x: object) -> bool:
    """Return whether an argument is a tensor, an array or a specification of one."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _shapes(inputs: Sequence[object]) -> list[tf.TensorShape]:
    """Return the shapes of arguments that are tensors, in their order."""
    return [tf.TensorShape(x.shape) for x in tf.nest.flatten(inputs, expand_composites=True) if is_tensor(x)]


def _spec(x: Any) -> object:
    if isinstance(x, tf.TypeSpec):
        return x
    parts = tf.nest.flatten(x, expand_composites=True)
    if len(parts) != 1 or parts[0] is not x:  # a tf.RaggedTensor, for instance
        return tf.type_spec_from_value(x)
    return tf.TensorSpec(x.shape, x.dtype) if is_tensor(x) else x

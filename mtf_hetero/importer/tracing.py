"""Traces a step, for each kind of inputs or for many at once; tf.Variables that it makes are made eagerly."""

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import ResourceVariable, tf
from mtf_hetero._support import garbage
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.program import Program
from mtf_hetero.importer.step import Step


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
    """

    def __init__(
        self,
        step: Callable[..., Any],
        hosted: Callable[[], Collection[Any]] = tuple,
        paths: Callable[[], Mapping[int, str]] = dict,
        settled: Callable[[], Collection[Any]] = tuple,
        *,
        relaxes: bool = False,
    ) -> None:
        self._function: Any = step if hasattr(step, "get_concrete_function") else tf.compat.v2.function(step)
        self._relaxed: Any = relaxes and tf.compat.v2.function(self._function.python_function, autograph=False)
        self._common: dict[Any, list[tf.TensorShape]] = {}  # by all of a kind but the sizes: what all kinds have
        self._hosted, self._paths, self._settled = hosted, paths, settled
        self.declared: Any = None
        self._concrete: dict[Any, Any] = {}
        self._programs: dict[Any, Program] = {}

    def kind(self, inputs: Sequence[Any]) -> Any:
        """Return what decides how the step is traced: structure, shapes, types, and arguments that are no tensors."""
        leaves = tf.nest.flatten(inputs, expand_composites=True)
        keys = [(x.dtype.name, tuple(x.shape)) if is_tensor(x) else ("value", x) for x in leaves]
        structure = tf.nest.map_structure(lambda x: None, inputs)
        return repr(structure), tuple(keys)

    def concrete(self, inputs: Sequence[Any]) -> Any:
        """Return the ConcreteFunction for a kind of inputs, which may be that of other kinds too."""
        self.program(inputs)
        return self._concrete[self.kind(inputs)]

    def program(self, inputs: Sequence[Any], like: Step | None = None) -> Program:
        """Return the program for a kind of inputs. Call it eagerly.

        Args:
          inputs: the arguments.
          like: a step whose variables it is to have first; None for the first kind.
        """
        key = self.kind(inputs)
        if key not in self._programs:
            self._concrete[key], self._programs[key] = self._read(inputs, like)
        return self._programs[key]

    def _read(self, inputs: Sequence[Any], like: Step | None) -> tuple[Any, Program]:
        specs = tf.nest.map_structure(_spec, inputs)
        if (relaxed := self._relax(specs)) is not None:
            try:
                return self._read_trace(self._relaxed, relaxed, inputs, like)
            except (NotImplementedError, TypeError, ValueError):  # it needs the sizes
                self._relaxed = None
        return self._read_trace(self._function, specs, inputs, like)

    def _read_trace(self, function: Any, specs: Any, inputs: Any, like: Step | None) -> tuple[Any, Program]:
        concrete, made = _trace(function, specs)
        settled = {id(variable) for variable in self._settled()}
        if any(id(variable) not in settled for variable in made):
            # TensorFlow too runs the trace after the one that makes variables, by code that finds them made
            again = function._clone(None)
            if function is self._relaxed:
                self._relaxed = again
            else:
                self._function = again
            concrete, _ = _trace(again, specs)
        return concrete, step_lib.read(concrete, _shapes(inputs), like, self._hosted(), self._paths())

    def _relax(self, specs: Any) -> Any:
        """Return specifications that also fit the kinds before this one; None if there are none."""
        if not self._relaxed:
            return None
        if self.declared is not None:
            self._common.setdefault(_form(self.declared), _shapes(self.declared))
        form, shapes = _form(specs), _shapes(specs)
        common = self._common.get(form)
        self._common[form] = shapes
        if common is None:
            return None
        self._common[form] = [a.most_specific_compatible_shape(b) for a, b in zip(common, shapes, strict=True)]
        left = iter(self._common[form])
        return tf.nest.map_structure(lambda x: tf.TensorSpec(next(left), x.dtype) if is_tensor(x) else x, specs)


def _trace(function: Any, specs: Any) -> tuple[Any, list[Any]]:
    """Return the ConcreteFunction of a tf.function, and the tf.Variables that it makes."""
    with _Variables() as scope, garbage.uncollected():
        concrete = function.get_concrete_function(*specs)
    return concrete, scope.made()


class _Variables:
    """Makes the tf.Variables of a step eagerly while it is traced. A context manager.

    TensorFlow makes them with conditional initializers in the traced graph, and then always traces the step again
    without: that doubles the time to the first step.
    """

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []
        self._scope = tf.compat.v2.variable_creator_scope(self._make)

    def _make(self, make_next: Callable[..., Any], **options: Any) -> Any:
        value = options.get("initial_value")
        if isinstance(value, tf.Tensor) and not hasattr(value, "numpy"):  # a tensor of the step
            return make_next(**options)
        with tf.init_scope():
            variable = ResourceVariable(**options)
        self._made.append(weakref.ref(variable))
        return variable

    def made(self) -> list[Any]:
        """Return the variables that were made.

        Raises:
          ValueError: the step has a variable that ended with the trace.
        """
        made = [ref() for ref in self._made]
        if any(variable is None for variable in made):
            raise ValueError("the step makes a tf.Variable that nothing keeps; make it before the step")
        return made

    def __enter__(self) -> "_Variables":
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)


def is_tensor(x: Any) -> bool:
    """Return whether an argument is a tensor, an array or a specification of one."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _form(specs: Any) -> str:
    """Return all that decides how arguments are traced but their sizes."""
    return repr(tf.nest.map_structure(lambda x: (x.dtype.name, x.shape.rank) if is_tensor(x) else x, specs))


def _shapes(inputs: Any) -> list[Any]:
    """Return the shapes of arguments that are tensors, in their order."""
    return [x.shape for x in tf.nest.flatten(inputs, expand_composites=True) if is_tensor(x)]


def _spec(x: Any) -> Any:
    if isinstance(x, tf.TensorSpec) or not is_tensor(x):
        return x
    return tf.TensorSpec(x.shape, x.dtype)

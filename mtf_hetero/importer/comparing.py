"""Compares a step on devices with TensorFlow's own step, from the same state and on the same inputs.

TensorFlow runs the traced function on this host. Both must agree within rounding. How much rounding may change a step
depends on the step: the first update of Adam is the sign of a gradient, which may be noise. So where a difference is
in doubt, TensorFlow takes the step again from values that differ in their last digits, and shows what that changes.
It takes the step as it is written too: TensorFlow's optimizer of graphs adds numbers in another order.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero.importer.nodes import user_line
from mtf_hetero.importer.program import Operation, Program, Value, within

Arrays = list[np.ndarray]

_AGAIN = 3  # steps from other last digits
_NUDGE = 8.0  # times the relative distance of two numbers, by which values differ then
_MOST_NUDGE = 2.0**-9
_NOISE = 30.0  # times what these steps differ by is still rounding: sums in another order round more than their terms
_EPS = {tf.float64: 2.0**-52, tf.float32: 2.0**-23, tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7}  # others: 8 bits


class StepDiffersError(RuntimeError):
    """The first step on the devices is not TensorFlow's."""


@dataclasses.dataclass(frozen=True)
class Side:
    """A step as one side computed it.

    Args:
      results: of the step; None: one is not known.
      after: {name of a variable: its value after the step}, as far as it is known.
      strays: name and value after the step of each variable that does not belong to the step on the devices.
    """

    results: Sequence[np.ndarray | None]
    after: Mapping[str, np.ndarray]
    strays: Sequence[tuple[str, np.ndarray]] = ()


@dataclasses.dataclass(frozen=True)
class Devices:
    """The step on the devices, as a comparison needs it.

    Args:
      program: the step.
      drawn: ids of the tf.Variables that have states of random operations, which TensorFlow keeps elsewhere.
      observe: given tensors of the traced graph, takes the step again, from the values that the tf.Variables have;
        returns the program with those tensors that it has among its results, and the results. None: it cannot.
      on_workers: whether a device is another machine's, from which the variables come over the network.
      on_gpu: whether a device is a GPU, which computes products of float32 from fewer digits: TensorFloat-32 has 10.
    """

    program: Program
    drawn: Collection[int] = ()
    observe: Callable[[Sequence[tf.Tensor]], tuple[Program, Arrays]] | None = None
    on_workers: bool = False
    on_gpu: bool = False


class Holder(Protocol):
    """Holds the variables of a step on devices."""

    def read_values(self) -> Mapping[str, np.ndarray]:
        """Return {name of a variable: value}."""
        ...

    def push(self) -> None:
        """Give the devices the values of the tf.Variables."""
        ...


@dataclasses.dataclass(frozen=True)
class Own:
    """The step as another library traced it, which is run in place of the trace.

    Args:
      name: of the step, in errors.
      take: takes the step on inputs; returns its results. It may read and write more variables than the trace.
      variables: returns these.
    """

    name: str
    take: Callable[..., object]
    variables: Callable[[], Sequence[tf.Variable]]


def read_state(program: Program, holder: Holder) -> dict[str, np.ndarray]:
    """Return the values of all variables of a step, wherever they lie."""
    found = holder.read_values()
    shapes = {v.before.name: tuple(v.variable.shape) for v in program.variables}
    here = {v.before.name: v.variable.numpy() for v in program.hosted}
    return {name: np.array(found[name]).reshape(shape) for name, shape in shapes.items()} | here


class Comparison:
    """Takes a step as TensorFlow does, and compares.

    Args:
      devices: the other side.
      before: {name of a variable: its value before the step}.
      inputs: of the step.
      own: as of Verification.
    """

    def __init__(
        self, devices: Devices, before: Mapping[str, np.ndarray], inputs: Sequence[object], own: Own | None = None
    ) -> None:
        self.devices, self._before, self._structure, self._own = devices, before, inputs, own
        self._inputs = [x for x in tf.nest.flatten(inputs, expand_composites=True) if hasattr(x, "dtype")]
        self._program = devices.program
        every = [*self._program.variables, *self._program.hosted]
        self._variables = [v for v in every if id(v.variable) not in devices.drawn]
        known = {id(v.variable) for v in every}
        self._strays = [v for v in (own.variables() if own else ()) if id(v) not in known]
        self._unknown = _list_random(self._program, devices.drawn)
        # numbers of float64 differ in the digits of float32 if a loss, say, is computed in float32
        read = (value for op in within(self._program.operations) for value in op.inputs)
        self._coarsest = max((self._eps(value.dtype) for value in read), default=0.0)

    def step(self, number: int = 0) -> Side:
        """Take the step as it was traced.

        Args:
          number: 0: from the values themselves; else the last digits are others.
        """
        with self._state(number) as inputs, tf.device("/cpu:0"):
            return self._side(self._program.concrete(*inputs))

    @functools.cached_property
    def _plain(self) -> Side:
        return self.step()

    @functools.cached_property
    def _as_written(self) -> Side:
        with _without_optimizer():
            return self.step()

    def own_step(self) -> Side:
        """Take the step as another library traced it."""
        assert self._own is not None
        with self._state(0), tf.device("/cpu:0"):
            return self._side(self._own.take(*self._structure))

    def _side(self, made: object) -> Side:
        results = [np.asarray(x) for x in tf.nest.flatten(made, expand_composites=True) if x is not None]
        return Side(
            results,
            {v.before.name: v.variable.numpy() for v in self._variables},
            [(v.name, v.numpy()) for v in self._strays],
        )

    def _state(self, number: int) -> "_State":
        values, inputs = dict(self._before), self._inputs
        if number:
            rng = np.random.default_rng(number)
            values = {name: self._nudged(x, rng) for name, x in values.items()}
            inputs = [self._nudged(np.asarray(x), rng) for x in inputs]
        tensors = self._program.concrete.graph.inputs
        fed = [tf.convert_to_tensor(x, tensor.dtype) for x, tensor in zip(inputs, tensors, strict=False)]
        variables = [
            *((v.variable, values[v.before.name]) for v in self._variables),
            *((v, None) for v in self._strays),
        ]
        return _State(variables, fed)

    def _nudged(self, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return numbers whose last digits differ."""
        if array.dtype == object or not tf.as_dtype(array.dtype).is_floating:
            return array
        by = min(_NUDGE * max(self._eps(tf.as_dtype(array.dtype)), self._coarsest), _MOST_NUDGE)
        return (array * (1 + rng.choice([-by, by], array.shape))).astype(array.dtype)

    def _eps(self, dtype: tf.DType) -> float:
        if not (dtype.is_floating or dtype.is_complex):
            return 0.0
        if self.devices.on_gpu and dtype.real_dtype == tf.float32:
            return _EPS[tf.float16]
        return _EPS.get(dtype.real_dtype, 0.25)

    def restore(self, holder: Holder) -> None:
        """Give all variables the values from before the step."""
        with self._state(0):
            holder.push()
        for v in self._program.hosted:
            v.variable.assign(self._before[v.before.name])

    # --- the comparison

    def difference(self, found: Side) -> str | None:
        """Return the largest difference in words, and where both sides part; None: rounding explains all of them."""
        if self._own is None:
            worst = self._worst(found, self._plain)
            return None if worst is None else f"{worst}; {self._parting(worst)}"
        expected = self.own_step()
        moved = [name for (name, after), v in zip(expected.strays, self._strays) if not _is_same(after, v.numpy())]
        worst = self._worst(found, expected)
        if worst is None and not moved:
            return None
        if worst is not None and self._worst(found, self._plain) is not None:
            return f"{worst}; {self._parting(worst)}"
        what = f"{self._own.name} changes {moved[0]!r}, and this step does not" if moved else str(worst)
        return f"{what}; the trace of this step and that of {self._own.name} are not the same program"

    def _worst(self, found: Side, expected: Side) -> "_Pair | None":
        """Return the largest difference that rounding does not explain."""
        pairs = self._pairs(found, expected)
        if all(pair.distance <= pair.bound for pair in pairs):
            return None
        again = [self._as_written, *(self.step(number) for number in range(1, _AGAIN + 1))]
        others = [self._pairs(_like(found, side), self._plain) for side in again]
        bounds = [max(p.bound, *(_NOISE * other.distance for other in o)) for p, *o in zip(pairs, *others, strict=True)]
        wrong = [
            dataclasses.replace(pair, bound=bound)
            for pair, bound in zip(pairs, bounds, strict=True)
            if pair.distance > bound
        ]
        return max(wrong, key=lambda pair: pair.distance / (pair.bound or 1.0), default=None)

    def _pairs(self, found: Side, expected: Side) -> list["_Pair"]:
        """Return the tensors that both sides have."""
        pairs = []
        for number, value in enumerate(self._program.results):
            one, other = found.results[number], expected.results[number]
            if value not in self._unknown and one is not None and other is not None:
                pairs.append(self._pair(f"result {number}", value, one, other, np.zeros_like(other)))
        for v in self._variables:
            name = v.before.name
            if v.after not in self._unknown and name in found.after:
                values = found.after[name], expected.after[name], self._before[name]
                pairs.append(self._pair(f"variable {name!r}", v.after, *values))
        return pairs

    def _pair(self, name: str, value: Value, found: np.ndarray, expected: np.ndarray, before: np.ndarray) -> "_Pair":
        eps = self._eps(tf.as_dtype(expected.dtype))
        change = _distance(before, expected) if before.dtype.kind != "O" else 0.0
        # Half of the digits of a change, and the last ones of the number to which it is added
        bound = math.sqrt(eps) * change + 16 * eps * _distance(np.zeros_like(expected), expected)
        return _Pair(name, value, _distance(found, expected), bound)

    def _parting(self, worst: "_Pair") -> str:
        """Return in words the first operation of the trace at which both sides part."""
        found = "" if self.devices.observe is None else self._find_parting(self.devices.observe)
        if found:
            return f"they part at operation {found}"
        maker = next((op for op in self._program.operations if worst.value in op.outputs), None)
        return "no single operation explains it" + (f"; {maker.type} ({maker.line}) makes it" if maker else "")

    def _find_parting(self, observe: Callable[[Sequence[tf.Tensor]], tuple[Program, Arrays]]) -> str:
        """Return the first operation of the trace at which both sides part, and the user's line; "" if none does."""
        tensors = [
            tensor
            for node in self._program.concrete.graph.get_operations()
            if node.type not in ("Const", "Placeholder")
            for tensor in node.outputs
            if tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex or tensor.dtype.is_bool
        ]
        with self._state(0):
            program, results = observe(tensors)
        observed = program.observed
        found, values = results[-len(observed) :], program.results[-len(observed) :]
        unknown = _list_random(program, self.devices.drawn)
        expected, *others = [self._fetch(observed, number) for number in range(_AGAIN + 1)]
        for number, tensor in enumerate(observed):
            one, other = found[number], expected[number]
            pair = self._pair(tensor.name, values[number], one, other, np.zeros_like(other))
            noise = max(_distance(again[number], other) for again in others)
            if values[number] not in unknown and pair.distance > max(pair.bound, _NOISE * noise):
                return f"{tensor.op.type} {tensor.op.name!r} ({user_line(tensor.op)})"
        return ""

    def _fetch(self, tensors: Sequence[tf.Tensor], number: int) -> Arrays:
        """Return tensors of the traced graph, as TensorFlow computes them."""
        concrete = self._program.concrete
        graph_def = concrete.graph.as_graph_def()
        wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
        feeds = [wrapped.graph.as_graph_element(tensor.name) for tensor in concrete.graph.inputs]
        pruned = wrapped.prune(feeds, [wrapped.graph.as_graph_element(tensor.name) for tensor in tensors])
        with self._state(number) as inputs, tf.device("/cpu:0"):
            return [np.asarray(x) for x in pruned(*inputs, *concrete.captured_inputs)]

    def exceptions(self) -> str:
        """Return in words what was not compared; "" if that is nothing."""
        results = sum(value in self._unknown for value in self._program.results)
        variables = sum(v.after in self._unknown for v in self._variables)
        if not results + variables:
            return ""
        states = {v.before for v in self._program.variables if id(v.variable) in self.devices.drawn}
        states |= self._program.sampled
        drawing = (op for op in self._program.operations if _draws(op) or not states.isdisjoint(op.inputs))
        lines = sorted({op.line for op in drawing})
        return (
            f"; {results} of {len(self._program.results)} results and {variables} of {len(self._variables)} variables "
            f"are not compared: they depend on random numbers from a state of TensorFlow's own ({', '.join(lines)})"
        )


def _list_random(program: Program, drawn: Collection[int]) -> set[Value]:
    """Return the values that depend on random numbers from a state of TensorFlow's own."""
    found = {v.before for v in program.variables if id(v.variable) in drawn} | program.sampled
    for op in program.operations:
        if _draws(op) or not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return found


def _draws(op: Operation) -> bool:
    """Return whether an operation, or one within it, draws random numbers from a state of its own."""
    return any(each.type in facts.DRAWS for each in within([op]))


@dataclasses.dataclass(frozen=True)
class _Pair:
    """A tensor on both sides: the largest distance of two elements, and that which rounding explains at once."""

    name: str
    value: Value
    distance: float
    bound: float

    def __str__(self) -> str:
        return f"{self.name} is off by {self.distance:.3g}, where rounding explains {self.bound:.1g}"


def _like(found: Side, other: Side) -> Side:
    """Return a side without what another one does not know."""
    results = [None if x is None else y for x, y in zip(found.results, other.results, strict=True)]
    return Side(results, {name: array for name, array in other.after.items() if name in found.after})


class _State:
    """The tf.Variables have other values for a while. A context manager, which gives the inputs.

    Args:
      variables: each with its value; None: its present one.
      inputs: of a step.
    """

    def __init__(self, variables: Sequence[tuple[tf.Variable, np.ndarray | None]], inputs: Sequence[tf.Tensor]) -> None:
        self._variables, self._inputs = variables, inputs

    def __enter__(self) -> Sequence[tf.Tensor]:
        self._kept = [variable.numpy() for variable, _ in self._variables]
        for variable, value in self._variables:
            if value is not None:
                variable.assign(value)
        return self._inputs

    def __exit__(self, *_: object) -> None:
        for pair, value in zip(self._variables, self._kept, strict=True):
            pair[0].assign(value)


@contextlib.contextmanager
def _without_optimizer() -> Iterator[None]:
    """TensorFlow runs graphs as they are written."""
    name, options = "disable_meta_optimizer", tf.config.optimizer
    before = options.get_experimental_options().get(name, False)
    options.set_experimental_options({name: True})
    try:
        yield
    finally:
        options.set_experimental_options({name: before})


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return _distance(one, other) == 0


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two elements; infinity if one of them alone is finite."""
    if one.shape != other.shape:
        return math.inf
    if one.size == 0:
        return 0.0
    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(kind), other.astype(kind)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(apart, nan=math.inf, posinf=math.inf).max())

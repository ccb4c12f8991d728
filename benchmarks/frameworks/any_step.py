"""A program's step, run by TensorFlow itself and divided on several layouts: how far they are apart."""

import contextlib
import functools
import gc
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from benchmarks.programs import KerasStep, Made, Program, programs
from mtf_hetero import Layout, placement, tf
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.divided import Divided
from mtf_hetero.importer.program import Operation
from mtf_hetero.importer.program import Program as Read
from mtf_hetero.importer.report import estimate_flops, report
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.planner.planning import find

ONE_DEVICE, BATCH, WEIGHTS, PLANNED = "one device", "batch", "weights", "planned"
LAYOUTS = (ONE_DEVICE, BATCH, WEIGHTS, PLANNED)
STEPS = 5
_SEED = 3
_SPEEDS = (4.0, 2.0, 1.0)
_DEVICES = ("cpu:0", "cpu:1", "cpu:2")
_LINK = Link(1e-6, 1e12)  # over which splits of small tensors are worth it
_LINE = re.compile(r"\.py:\d+")
Arrays = list[np.ndarray]


class AnyStep:
    """Runs programs of the table."""

    def run(self, name: str, layouts: Sequence[str] = LAYOUTS, steps: int = STEPS) -> dict[str, Any]:
        """Run a program's step on each layout.

        Returns:
          The columns of a row; "refused" is the text of a refusal.
        """
        begin = time.perf_counter()
        twin = Twin(programs()[name], steps)
        facts: dict[str, Any] = {"own": twin.own, "tf_seconds": twin.seconds, "layouts": {}}
        try:
            facts["operations"] = len(twin.read().operations)
            for layout in layouts:
                facts["layouts"][layout] = twin.compare(layout)
        except NotImplementedError as error:
            text = " ".join(str(error).split())
            facts |= {"refused": text, "names_line": bool(_LINE.search(text))}
        return {**facts, "seconds": time.perf_counter() - begin}


class Twin:
    """A program's step, traced once, and the values that TensorFlow gives.

    Attributes:
      own: the difference of TensorFlow from itself after each number of its inputs and variables, except whole ones,
        is replaced by the next larger one.
      seconds: that TensorFlow's steps took.
    """

    def __init__(self, program: Program, steps: int) -> None:
        self._steps = steps
        with floats(program.dtype):
            step, self._inputs, self._split = prepare(program)
            self._traced = Traced(step)
            self._concrete = self._traced.program(self._inputs).concrete
        self._variables = list(self._concrete.variables)
        self._start = [v.numpy() for v in self._variables]
        begin = time.perf_counter()
        self._expected = self._run_tensorflow(self._start, self._inputs)
        self.seconds = time.perf_counter() - begin
        if not all(np.isfinite(x).all() for x in self._expected[0] if x.dtype.kind in "fc"):
            raise RuntimeError(f"{program.name}: TensorFlow's own results are not finite; change the program")
        start, inputs = tf.nest.map_structure(_next_larger, [self._start, self._inputs])
        again = self._run_tensorflow(start, inputs)
        self.own = max(_difference(a, b) for a, b in zip(again, self._expected, strict=True))

    def read(self) -> Read:
        """Return the step as it was read. Raises NotImplementedError for what is not followed."""
        return self._traced.program(self._inputs)

    def compare(self, name: str) -> dict[str, Any]:
        """Run the divided step on a layout; returns its differences from TensorFlow, its replicated share, seconds."""
        begin = time.perf_counter()
        try:
            place = self._place(name)
        except ValueError as error:
            if name != WEIGHTS or self._split:
                raise
            return {"not_split": " ".join(str(error).split())}  # the recipe finds no weight to split
        self._reset(self._start)
        results: Arrays = []
        with Divided(self._traced, lambda build, graph: place, self._inputs) as divided:
            for _ in range(self._steps):
                results += _arrays(divided(*self._inputs))
            work, layout = divided.step.work, divided.layout
        after = [v.numpy() for v in self._variables]
        expected_results, expected_after = self._expected
        found = {
            "results": _difference(results, expected_results),
            "variables": _difference(after, expected_after),
            **_replicated(self.read(), work, layout),
            "split": [dim for dim, _ in place.layout.rules],
            "devices": len(place.devices),
            "seconds": time.perf_counter() - begin,
        }
        del divided
        gc.collect()
        return found

    @functools.cached_property
    def _graph(self) -> Any:
        with tf.Graph().as_default():
            return step_lib.build(self.read()).graph

    def _place(self, name: str) -> placement.Placement:
        devices = _DEVICES[:1] if name == ONE_DEVICE else _DEVICES
        layout: Any = "batch"
        if name == PLANNED:
            machines = [Machine(d, speed * 1e9, speed * 1e9) for d, speed in zip(devices, _SPEEDS, strict=True)]
            with tf.Graph().as_default():
                layout = find(self._graph, Machines(tuple(machines), _LINK))
            devices = layout.devices
        elif name == WEIGHTS:
            layout = f"{self._split}:all" if self._split else "filters"
        speeds = list(_SPEEDS) if name in (BATCH, WEIGHTS) else None
        request = placement.load(placement.Request(layout, speeds, devices=devices))
        return placement.place(request, placement.requested_cluster(request), lambda: self._graph)

    def _run_tensorflow(self, start: Arrays, inputs: Any) -> tuple[Arrays, Arrays]:
        """Return the results of all steps and the variables after them."""
        self._reset(start)
        tensors = [tf.constant(x) for x in tf.nest.flatten(inputs)]
        results: Arrays = []
        for _ in range(self._steps):
            results += _arrays(self._concrete(*tf.nest.flatten(tensors)))
        return results, [v.numpy() for v in self._variables]

    def _reset(self, values: Arrays) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)


def _replicated(read: Read, work: Mapping[Operation, Any], layout: Layout) -> dict[str, Any]:
    """Return the share of FLOPs that is replicated: of all operations, and without updates of weights.

    A layout of the batch replicates each update, which reads and makes only tensors of variables' shapes.
    """
    shapes = {(), *(variable.before.shape for variable in read.variables)}
    updates = {op for op in work if shapes.issuperset(_shapes(op))}
    every, of_updates = report(work, layout), report({op: work[op] for op in updates}, layout)
    total = sum(map(estimate_flops, work))
    share_of_updates = of_updates.share * sum(map(estimate_flops, updates)) / max(total, 1)
    rest = report({op: dims for op, dims in work.items() if op not in updates}, layout)
    return {
        "replicated": every.share,
        "replicated_examples": max(0.0, every.share - share_of_updates),
        "largest_replicated": [f"{entry.kind} {entry.line} {entry.share:.1%}" for entry in rest.entries[:3]],
    }


def _shapes(op: Operation) -> set[tuple[int, ...]]:
    """Return the shapes of an operation's tensors that are not known before the step runs."""
    return {value.shape for value in (*op.inputs, *op.outputs) if value.array is None}


@contextlib.contextmanager
def floats(name: str) -> Iterator[None]:
    """Set the type of Keras's numbers."""
    before = keras.config.floatx()
    _use_floats(name)
    try:
        yield
    finally:
        _use_floats(before)


def make(program: Program) -> Made:
    """Make what a program trains, with the seed of all programs."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(_SEED)
    return program.make()


def prepare(program: Program) -> tuple[Callable[..., Any], tuple[Any, ...], str | None]:
    """Return a program's step, its arguments, and the dimension to split."""
    made = make(program)
    if not isinstance(made, KerasStep):
        return made.step, made.inputs, made.split
    data = tf.nest.map_structure(lambda x: _as_floats(x, program.dtype), made.data)
    model = made.model

    def step(data: Any) -> Any:
        return model.train_step(tf.nest.map_structure(lambda x: x, data))  # a copy, which it may change

    return tf.compat.v2.function(step, autograph=False), (data,), made.split


def _use_floats(name: str) -> None:
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)  # Keras keeps the policy that it made for the type before


def _as_floats(x: Any, dtype: str) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(dtype) if x.dtype.kind == "f" else x


def _next_larger(x: Any) -> np.ndarray:
    """Return the next larger numbers; whole ones, such as labels, stay as they are."""
    x = np.asarray(x)
    return np.where(x == np.round(x), x, np.nextafter(x, np.inf, dtype=x.dtype)) if x.dtype.kind == "f" else x


def _arrays(structure: Any) -> Arrays:
    return [np.asarray(x) for x in tf.nest.flatten(structure) if x is not None]


def _difference(found: Arrays, expected: Arrays) -> float:
    """Return the largest difference of a tensor, relative to its largest number, or to 1 if that is less."""
    return max((_one_difference(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


def _one_difference(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return math.inf
    if found.dtype.kind not in "fciu" or not found.size:
        return 0.0 if np.array_equal(found, expected) else math.inf
    wide: Any = "complex128" if found.dtype.kind == "c" else "float64"
    one, other = found.astype(wide), expected.astype(wide)
    if not np.isfinite(one).all() or not np.isfinite(other).all():
        return 0.0 if np.array_equal(one, other, equal_nan=True) else math.inf
    return float(np.abs(one - other).max() / max(1.0, np.abs(other).max()))


def worst(layout: Mapping[str, Any]) -> float:
    """Return the largest difference on a layout."""
    return max(layout["results"], layout["variables"])

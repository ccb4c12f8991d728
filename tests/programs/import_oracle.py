"""The oracle of mtf_hetero.function: TensorFlow itself runs the same tf.function, on the same inputs.

What each step returns and all tf.Variables afterwards are compared, in float64.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import oracle

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.importer import pieces

ONE = {"devices": "cpu:0", "layout": "batch"}
DEVICES = ",".join(oracle.DEVICES) or "cpu:0,cpu:1,cpu:2"
BATCH = {"devices": DEVICES, "layout": "batch", "list_speed": [4, 2, 1]}
STEPS = 5  # of which there are inputs
Made = tuple[Callable[..., Any], list[Any], list[tuple[Any, ...]]]  # step, its variables, inputs of each step


def split(*names: str) -> dict[str, Any]:
    """A layout that splits some dimensions in the proportions 4:2:1."""
    return {**BATCH, "layout": ";".join(f"{name}:all" for name in names)}


def check(
    make: Callable[[], Made], *places: dict[str, Any], tolerance: float = 1e-9, steps: int = 3
) -> list[mtf_hetero.importer.Divided]:
    """Assert that a step gives on each layout what TensorFlow gives.

    Args:
      make: makes the step, its tf.Variables, and the inputs of its steps.
      *places: what `function` is given of devices and layouts.
      tolerance: of numbers, relative to the largest of a tensor, and absolute.
      steps: number of steps.

    Returns:
      The divided steps, closed.
    """
    step, variables, inputs = make()
    start = [v.numpy() for v in variables]
    traced = step if hasattr(step, "get_concrete_function") else tf.compat.v2.function(step)
    traced.get_concrete_function(*inputs[0])  # it may make variables, which start again below
    for variable, array in zip(variables, start, strict=True):
        variable.assign(array)
    expected = [arrays(traced(*x)) for x in inputs[:steps]]
    after = [v.numpy() for v in variables]
    found = []
    for place in places:
        for variable, array in zip(variables, start, strict=True):
            variable.assign(array)
        with mtf_hetero.function(step, inputs[0], **place) as divided:
            for x, values in zip(inputs[:steps], expected, strict=True):
                same(arrays(divided(*x)), values, tolerance)
        same([v.numpy() for v in variables], after, tolerance)
        found.append(divided)
    return found


def check_each_dimension(function: Callable[..., Any], inputs: Sequence[Any], tolerance: float = 1e-9) -> None:
    """Assert that a function gives what TensorFlow gives, on layouts that split each dimension of more than 6 in turn.

    Args:
      function: a function of tensors.
      inputs: its arguments.
      tolerance: as for `check`.
    """
    step = tf.compat.v2.function(function)
    expected = arrays(step(*inputs))
    places, done = [BATCH], set()
    while places:
        place = places.pop()
        with mtf_hetero.function(step, tuple(inputs), **place) as divided:
            same(arrays(divided(*inputs)), expected, tolerance)
        if not done:
            shapes = [op.outputs[0].shape for op in divided.graph.operations if type(op).__name__ == "ImportOperation"]
            done = {dim.name for shape in shapes for dim in shape.dims if dim.size > 6} - {"batch"} or {"batch"}
            places += [split(dim) for dim in sorted(done - {"batch"})]


def arrays(structure: Any) -> list[np.ndarray]:
    """The tensors of a structure as arrays."""
    return [np.asarray(x) for x in tf.nest.flatten(structure, expand_composites=True) if x is not None]


def same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float) -> None:
    """Assert that arrays are equal within a tolerance, and of one type."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        if one.dtype.kind in "fc":
            scale = max(1.0, float(np.abs(other).max(initial=0.0)))
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(one, other)


def examples(*shape: int, count: int = 14) -> list[tuple[Any, ...]]:
    """Numbers of a shape and their classes, of each step."""
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((count, *shape)), rng.integers(0, 5, count).astype("int32")) for _ in range(STEPS)]


def rows() -> list[tuple[Any, ...]]:
    """Rows of numbers and their classes, of each step."""
    return examples(12)


def images() -> list[tuple[Any, ...]]:
    """Images and their classes, of each step."""
    return examples(8, 8, 3)


def ids(*, count: int = 14, length: int = 6) -> list[tuple[Any, ...]]:
    """Sequences of ids and their classes, of each step."""
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, 11, (count, length)).astype("int32"), rng.integers(0, 5, count).astype("int32"))
        for _ in range(STEPS)
    ]


def begins_of_old(op, large):
    """Return where a slice begins as it was once read, with a fault: an axis backwards counts as that axis."""
    first, *others = pieces.strided_ranges(op, large)
    is_part = first.is_kept and not first.is_new and first.step == 1
    return first.begin if is_part and all(each.size == each.extent for each in others) else None

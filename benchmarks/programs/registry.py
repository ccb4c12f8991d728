"""The table of programs: training steps of the kinds that TensorFlow users write, each small, on random data.

    @program("vision", source="keras.io examples/vision/mnist_convnet.py")
    def mnist_convnet() -> Made:
        ...
        return KerasStep(model, (images, labels))

A program is called once, with Keras set to its dtype and with fixed seeds.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import keras as typed_keras

keras: Any = typed_keras  # whose types exclude schedules, results of operations and more
BATCH = 14  # examples of each program: 8, 4 and 2 of three devices


@dataclasses.dataclass(frozen=True)
class KerasStep:
    """The training step of a compiled keras.Model.

    Args:
      model: the model.
      data: one batch as `model.train_step` takes it; its floating-point arrays get the program's dtype.
      split: the dimension of a weight that the third layout splits; None: the recipe "filters" chooses.
    """

    model: Any
    data: Any
    split: str | None = None


@dataclasses.dataclass(frozen=True)
class Loop:
    """A step without `fit`; its state is its tf.Variables.

    Args:
      step: a tf.function, or a Python function of tensors.
      inputs: its arguments, arrays.
      split: as of KerasStep.
    """

    step: Callable[..., Any]
    inputs: tuple[Any, ...]
    split: str | None = None


Made = KerasStep | Loop


@dataclasses.dataclass(frozen=True)
class Program:
    """An entry of the table.

    Args:
      kind: the first part of its name, such as "vision".
      name: the second part.
      source: the public program whose layers and step it has.
      dtype: of its numbers.
      tolerance: the largest difference that counts as exact.
      reason: for a dtype or a tolerance that is not the usual one.
      make: makes its step.
    """

    kind: str
    name: str
    source: str
    dtype: str
    tolerance: float
    reason: str
    make: Callable[[], Made]


_PROGRAMS: dict[str, Program] = {}
EXACT = 1e-9


def program(
    kind: str, *, source: str, dtype: str = "float64", tolerance: float = EXACT, reason: str = ""
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Register a function that makes a step; its name is the program's.

    Args:
      kind: the first part of the program's name.
      source: the public program whose layers and step it has.
      dtype: "float64", or "float32" if an operation has no other.
      tolerance: the largest difference that counts as exact, relative to the largest number of a tensor.
      reason: for another dtype or tolerance.

    Raises:
      ValueError: a name that is taken, or a dtype or tolerance without a reason.
    """
    if (dtype, tolerance) != ("float64", EXACT) and not reason:
        raise ValueError(f"dtype is {dtype} and tolerance {tolerance:g} without a reason; give reason=")

    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        name = getattr(make, "__name__", "")
        if f"{kind}/{name}" in _PROGRAMS:
            raise ValueError(f"program {kind}/{name} is registered twice; rename one")
        _PROGRAMS[f"{kind}/{name}"] = Program(kind, name, source, dtype, tolerance, reason, make)
        return make

    return register


def programs() -> Mapping[str, Program]:
    """Return {"kind/name": program} of all modules of this package."""
    package = importlib.import_module(__package__ or "benchmarks.programs")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return MappingProxyType(_PROGRAMS)

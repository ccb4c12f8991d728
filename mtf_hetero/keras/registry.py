"""What builds a layer of which class, or what an activation function is: the table that `register` fills."""

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
_FUNCTIONS: dict[Any, Function] = {}
_ELEMENTWISE: dict[Function, bool | Callable[[Any], bool]] = {}
_OF_FLATTENED: set[Function] = set()


def register(
    *kinds: Any, elementwise: bool | Callable[[Any], bool] = False, flattened: bool = False
) -> Callable[[Function], Function]:
    """Decorator: the function builds layers of these classes, or applies these activation functions.

    It is called with a `Call`, then with what the layer was called with, each Keras tensor an mtf.Tensor, and returns
    an mtf.Tensor, or several. Only the class itself is meant: a subclass may compute something else.

    Args:
      *kinds: subclasses of keras.Layer; functions that are given as activations; or full names of either.
      elementwise: whether the result has the dimensions of the first argument, and no value of it depends on another;
        or a function that says it of a layer.
      flattened: whether the function takes a `Flattened` too.

    Example:
      >>> @mtf_hetero.keras.register(Scale)  # whose call returns inputs * self.factors
      ... def scale(call, x):
      ...     return x * call.variable(call.layer.factors, x.shape.dims[-1:])
    """

    def add(function: Function) -> Function:
        _FUNCTIONS.update(dict.fromkeys(kinds, function))
        _ELEMENTWISE[function] = elementwise
        if flattened:
            _OF_FLATTENED.add(function)
        return function

    return add


def name_of(kind: Any) -> str:
    """The full name of a class or function, "keras.src.layers.core.dense.Dense"."""
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def find(kind: Any) -> Function | None:
    """The function that is registered for a class or function, if there is one."""
    try:
        found = _FUNCTIONS.get(kind)
    except TypeError:  # what cannot be hashed is not there
        found = None
    return found or _FUNCTIONS.get(name_of(kind))


def is_elementwise(function: Function, layer: Any) -> bool:
    """Whether a registered function does to each element the same, where it builds a layer."""
    answer = _ELEMENTWISE.get(function, False)
    return answer(layer) if callable(answer) else answer


def takes_flattened(function: Function) -> bool:
    """Whether a registered function takes a `Flattened`."""
    return function in _OF_FLATTENED

"""Conversions of a mesh shape, layout rules, shares and sizes, from any form that a program may give, to pairs."""

import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable


@runtime_checkable
class _Rules(Protocol):
    """An mtf.LayoutRules, which has no public accessor."""

    _pairs: Iterable[tuple[str, str]]


T = TypeVar("T", bound=float)
# "rows:2;cols:3", an mtf.Shape, or (mesh axis, processors) pairs
MeshShapeLike: TypeAlias = str | Iterable[tuple[str, int]]
# "batch:rows;filters:cols", an mtf.LayoutRules, or (tensor dimension, mesh axis) pairs
RulesLike: TypeAlias = str | _Rules | Mapping[str, str] | Iterable[tuple[str, str]]
# {mesh axis or tensor dimension: numbers}, or pairs
WeightsLike: TypeAlias = Mapping[str, Sequence[T]] | Iterable[tuple[str, Sequence[T]]]


def _pairs(text: str, *, name: str) -> list[tuple[str, str]]:
    """Parse "a:x;b:y" (any of , . ; and white space between the pairs, as in mtf)."""
    pairs = [tuple(item.split(":")) for item in re.sub("[,.;]", " ", text).split()]
    for pair in pairs:
        if len(pair) != 2 or not all(pair):
            raise ValueError(
                f"{name} {text!r}: {':'.join(pair)!r} is not a pair; "
                "write name:value pairs with one of , . ; or a space between them"
            )
    return [(name, value) for name, value in pairs]


def convert_to_mesh_shape(x: MeshShapeLike) -> tuple[tuple[str, int], ...]:
    """Convert "all:3", an mtf.Shape or (name, size) pairs to a tuple of (mesh axis, number of processors)."""
    if isinstance(x, str):
        texts = _pairs(x, name="mesh shape")
        for name, size in texts:
            if not (size.isascii() and size.isdigit()):
                raise ValueError(f"mesh shape {x!r}: the size of axis {name!r} must be a whole number, got {size!r}")
        x = [(name, int(size)) for name, size in texts]
    pairs = list(x)
    for name, size in pairs:
        if not isinstance(size, numbers.Integral) or int(size) < 1:
            raise ValueError(f"mesh axis {name!r} has {size} processors; it needs at least one")
    axes = tuple((str(name), int(size)) for name, size in pairs)
    if len({name for name, _ in axes}) != len(axes):
        raise ValueError(f"mesh shape {axes} names an axis twice; give each axis a name of its own")
    return axes


def convert_to_rules(x: RulesLike) -> tuple[tuple[str, str], ...]:
    """Convert "filters:all;batch:rows", an mtf.LayoutRules or (dimension, axis) pairs to a sorted tuple of pairs."""
    pairs: Iterable[tuple[object, object]]
    if isinstance(x, str):
        pairs = _pairs(x, name="layout")
    elif isinstance(x, Mapping):
        pairs = x.items()
    else:
        pairs = x._pairs if isinstance(x, _Rules) else x
    return tuple(sorted({(str(dim), str(axis)) for dim, axis in pairs}))


def convert_to_weights(x: WeightsLike[T] | None) -> tuple[tuple[str, tuple[T, ...]], ...]:
    """Convert {name: numbers} or pairs to a sorted tuple of pairs."""
    items = list(x.items() if isinstance(x, Mapping) else (x or ()))
    for name, values in items:
        if isinstance(values, (str, numbers.Number)):
            raise ValueError(f"the value of {name!r} is {values!r}; give a list with one number per processor")
    return tuple(sorted((str(name), tuple(values)) for name, values in items))

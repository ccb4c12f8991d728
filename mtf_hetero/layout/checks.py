"""Checks of a layout's own fields, before it meets a graph."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero._support import names
from mtf_hetero.layout import partition

_NO_SHARE = "remove a processor that should do nothing, or give the Layout sizes with a zero for this processor"


def check(
    counts: Mapping[str, int],
    axes: Mapping[str, int],
    text: str,
    *,
    rules: Sequence[tuple[str, str]],
    shares: Sequence[tuple[str, Sequence[float]]],
    sizes: Sequence[tuple[str, Sequence[int]]],
    slots: Sequence[tuple[str, Sequence[int]]],
) -> None:
    """Raise ValueError if a rule, share, slot or size of a Layout names something unknown, or is no such number.

    Args:
      counts: {mesh axis: number of processors}.
      axes: {dimension: index of the axis over which it is split}.
      text: the mesh, for messages.
      rules: the field of the Layout, as are the others.
      shares: likewise.
      sizes: likewise.
      slots: likewise.
    """
    names.check_axes(rules, tuple(counts), text, math.prod(counts.values()))
    for axis, of_axis in shares:
        _check_axis("shares name", axis, counts, text)
        if len(of_axis) != counts[axis]:
            raise ValueError(
                f"shares of mesh axis {axis!r} are {list(of_axis)}: {_count_numbers(of_axis)} for {counts[axis]} "
                "processors; give one per processor"
            )
        partition.check_shares(of_axis, name=f"shares of mesh axis {axis!r}", remedy=_NO_SHARE)
    for axis, of_axis in slots:
        _check_axis("slots name", axis, counts, text)
        if not _are_whole(of_axis, 1) or sum(of_axis) != counts[axis]:
            raise ValueError(
                f"slots of mesh axis {axis!r} are {list(of_axis)}, but the axis has {counts[axis]} processors; give "
                "the number of slots of each device, one at least, which add up to the processors"
            )
    for dim, of_dim in sizes:
        if dim not in axes:
            raise ValueError(
                f"sizes name dimension {dim!r}, which no rule splits over the mesh {text}; add a rule "
                f"{dim}:AXIS or remove the sizes; the rules split {names.listing(dim, axes)}"
            )
        axis = tuple(counts)[axes[dim]]
        if len(of_dim) != counts[axis]:
            raise ValueError(
                f"sizes of dimension {dim!r} are {list(of_dim)}: {_count_numbers(of_dim)} for the {counts[axis]} "
                f"processors of mesh axis {axis!r}; give one per processor"
            )
        if not _are_whole(of_dim, 0) or not any(of_dim):
            raise ValueError(
                f"sizes of dimension {dim!r} are {list(of_dim)}; each must be zero or a positive whole number, and "
                "at least one must be positive; use zero for a processor that should have no part of the dimension"
            )


def _check_axis(name: str, axis: str, axes: Iterable[str], text: str) -> None:
    if axis not in axes:
        raise ValueError(names.absent_axis(name, axis, tuple(axes), text))


def _are_whole(values: Sequence[int], least: int) -> bool:
    """Return whether all values are whole numbers from `least` on."""
    kinds = set(map(type, values))  # of thousands of processors, too
    are_integers = all(issubclass(kind, numbers.Integral) and not issubclass(kind, bool) for kind in kinds)
    return are_integers and min(values, default=least) >= least


def _count_numbers(values: Sequence[float]) -> str:
    return f"{len(values)} number{'s' * (len(values) != 1)}"

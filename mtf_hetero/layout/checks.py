"""Checks of a layout's own fields, before it meets a graph."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from mtf_hetero._support import names
from mtf_hetero.layout import partition

_NO_SHARE = "remove a processor that should do nothing, or give the Layout sizes with a zero for this processor"


class _Layout(Protocol):
    """A Layout, as far as its fields are checked."""

    @property
    def mesh_shape(self) -> tuple[tuple[str, int], ...]: ...

    @property
    def rules(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def shares(self) -> tuple[tuple[str, tuple[float, ...]], ...]: ...

    @property
    def sizes(self) -> tuple[tuple[str, tuple[int, ...]], ...]: ...

    @property
    def slots(self) -> tuple[tuple[str, tuple[int, ...]], ...]: ...

    @property
    def mesh_text(self) -> str: ...


def check(layout: _Layout, axes: Mapping[str, int]) -> None:
    """Raise ValueError if a rule, share, slot or size names something unknown, or is no such number.

    Args:
      layout: its fields.
      axes: {dimension: index of the axis over which it is split}.
    """
    counts, text = dict(layout.mesh_shape), layout.mesh_text
    names.check_axes(layout.rules, tuple(counts), text, math.prod(counts.values()))
    for axis, shares in layout.shares:
        _check_axis("shares name", axis, counts, text)
        if len(shares) != counts[axis]:
            raise ValueError(
                f"shares of mesh axis {axis!r} are {list(shares)}: {_count_numbers(shares)} for {counts[axis]} "
                "processors; give one per processor"
            )
        partition.check_shares(shares, name=f"shares of mesh axis {axis!r}", remedy=_NO_SHARE)
    for axis, slots in layout.slots:
        _check_axis("slots name", axis, counts, text)
        if not _are_whole(slots, 1) or sum(slots) != counts[axis]:
            raise ValueError(
                f"slots of mesh axis {axis!r} are {list(slots)}, but the axis has {counts[axis]} processors; give the "
                "number of slots of each device, one at least, which add up to the processors"
            )
    for dim, sizes in layout.sizes:
        if dim not in axes:
            raise ValueError(
                f"sizes name dimension {dim!r}, which no rule splits over the mesh {text}; add a rule "
                f"{dim}:AXIS or remove the sizes; the rules split {names.listing(dim, axes)}"
            )
        axis = tuple(counts)[axes[dim]]
        if len(sizes) != counts[axis]:
            raise ValueError(
                f"sizes of dimension {dim!r} are {list(sizes)}: {_count_numbers(sizes)} for the {counts[axis]} "
                f"processors of mesh axis {axis!r}; give one per processor"
            )
        if not _are_whole(sizes, 0) or not any(sizes):
            raise ValueError(
                f"sizes of dimension {dim!r} are {list(sizes)}; each must be zero or a positive whole number, and "
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

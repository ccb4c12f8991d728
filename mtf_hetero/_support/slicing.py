"""Slices x[...]: which elements of each axis a StridedSlice has, as TensorFlow reads its arguments. Pure."""

import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence

MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
_NONE: Mapping[str, int] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Range:
    """Elements of one axis: begin, begin + step, and so on.

    Args:
      begin: number of the first element, counted from the first one of the axis.
      size: number of elements.
      step: from one element to the next one; 1 if there are fewer than two.
      extent: size of the axis; None: the axis is a new one of size 1.
      is_kept: whether the result has the axis.
    """

    begin: int
    size: int
    step: int
    extent: int | None
    is_kept: bool = True

    @property
    def is_new(self) -> bool:
        """Return whether the result alone has the axis."""
        return self.extent is None

    @property
    def is_full(self) -> bool:
        """Return whether the result has all elements of an axis, in their order."""
        return self.is_kept and self.size == self.extent and self.step == 1


def list_ranges(
    shape: Sequence[int], corners: Iterable[Sequence[int]], masks: Mapping[str, int] = _NONE
) -> list[Range]:
    """Return the range of each axis of a slice, new axes included, in their order.

    Args:
      shape: of the tensor that is sliced; not that of the slice, where an operation is the gradient.
      corners: begins, ends and steps, each with one number for each part of x[...].
      masks: {name: the parts for which it holds, as bits}; the names are those of MASKS.

    Example:
      >>> list_ranges([16], ([-24], [8], [1]))  # x[-24:8] of 16 elements
      [Range(begin=0, size=8, step=1, extent=16, is_kept=True)]
    """
    parts = list(zip(*corners, strict=True))
    has = {name: [bool(masks.get(name, 0) >> number & 1) for number in range(len(parts))] for name in MASKS}
    named = sum(not (dots or new) for dots, new in zip(has["ellipsis_mask"], has["new_axis_mask"], strict=True))
    left, found = list(shape), []
    for number, (begin, end, step) in enumerate(parts):
        is_open_at, is_endless, is_ellipsis, is_new, is_number = (has[name][number] for name in MASKS)
        if is_ellipsis:
            found += [_full(left.pop(0)) for _ in range(len(shape) - named)]
        elif is_new:
            found.append(Range(0, 1, 1, None))
        elif is_number:
            extent = left.pop(0)
            found.append(Range(int(begin) + (extent if begin < 0 else 0), 1, 1, extent, is_kept=False))
        else:
            one = slice(None if is_open_at else int(begin), None if is_endless else int(end), int(step))
            found.append(_cut(one, left.pop(0)))
    return [*found, *map(_full, left)]


def _full(extent: int) -> Range:
    return Range(0, extent, 1, extent)


def _cut(one: slice, extent: int) -> Range:
    numbers = range(*one.indices(extent))
    return Range(numbers.start if numbers else 0, len(numbers), numbers.step if len(numbers) > 1 else 1, extent)

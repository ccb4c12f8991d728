"""Layout: which tensor dimension is split over which mesh axis, and into which sizes. Pure Python, no TensorFlow.

A layout is what Mesh-TensorFlow calls a mesh shape and layout rules, and one thing more: how large each slice is.
`shares` gives one weight per coordinate of a mesh axis, and every dimension on that axis is divided in proportion;
`sizes` gives the exact sizes of one dimension and wins over the shares; a size of zero leaves a processor out of it.
"""

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from mtf_hetero.layout import checks, partition
from mtf_hetero.layout.convert import (
    MeshShapeLike,
    RulesLike,
    WeightsLike,
    convert_to_mesh_shape,
    convert_to_rules,
    convert_to_weights,
)
from mtf_hetero.layout.errors import UnevenShapeError


class Dim(Protocol):
    """A tensor dimension: an mtf.Dimension, or whatever else has its name and size."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...


class _Division:
    """The division of a dimension.

    Args:
      axis: index of the mesh axis; None for a dimension that is whole on every processor.
      sizes: of its slices.
    """

    def __init__(self, axis: int | None, sizes: tuple[int, ...]) -> None:
        self.axis, self.sizes = axis, sizes
        self.bounds = (0, *itertools.accumulate(sizes))
        self.slices = tuple(zip(self.bounds, sizes))  # where each begins, and its size


@functools.lru_cache(maxsize=2**14)
def _divide(axis: int, total: int, weights: tuple[float, ...]) -> _Division:
    """Return how a dimension is divided, kept: a planner makes thousands of layouts that divide alike."""
    return _Division(axis, partition.split_among_positive(total, weights))


@dataclasses.dataclass(frozen=True)
class Layout:
    """The places of a graph's tensors on a mesh of processors.

    Args:
      mesh_shape: mesh axes and their sizes, "rows:2;cols:3" or pairs.
      rules: which tensor dimension is split over which mesh axis, "batch:rows;filters:cols" or pairs.
      shares: {mesh axis: one positive weight per coordinate}. An absent axis is divided evenly.
      sizes: {tensor dimension: exact size of each slice}. Wins over the shares. Where the dimension occurs with
        another extent (a pooled height, say), it is divided in proportion to these sizes. A size may be zero: that
        processor has an empty slice of every tensor with the dimension, and takes no part in what is computed of it.
      slots: {mesh axis: one number per device along the axis}. So many processors, one after another, are slots of that
        device: places in time, which share its variables and compute in turn. An absent axis has a device for each.

    Raises:
      ValueError: a rule, share, slot or size that names something unknown or has the wrong count, a share that is not
        positive, or sizes that are negative or all zero.

    Example:
      >>> layout = Layout("all:3", "filters:all", shares={"all": [70, 25, 5]})
      >>> layout.split("filters", 60)
      (42, 15, 3)
      >>> Layout("all:3", "filters:all", sizes={"filters": [45, 0, 15]}).split("filters", 20)
      (15, 0, 5)
      >>> Layout("all:6", "batch:all", slots={"all": [4, 2]}).places  # the device of each processor
      (0, 0, 0, 0, 1, 1)
    """

    mesh_shape: tuple[tuple[str, int], ...]
    rules: tuple[tuple[str, str], ...]
    shares: tuple[tuple[str, tuple[float, ...]], ...] = ()
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    slots: tuple[tuple[str, tuple[int, ...]], ...] = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            mesh_shape: MeshShapeLike,
            rules: RulesLike,
            shares: WeightsLike[float] | None = (),
            sizes: WeightsLike[int] | None = (),
            slots: WeightsLike[int] | None = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        set_field = functools.partial(object.__setattr__, self)
        set_field("mesh_shape", convert_to_mesh_shape(self.mesh_shape))
        set_field("rules", convert_to_rules(self.rules))
        set_field("shares", convert_to_weights(self.shares))
        set_field("sizes", convert_to_weights(self.sizes))
        set_field("slots", convert_to_weights(self.slots))
        mesh = dict(self.mesh_shape), self._dim_to_axis, self.mesh_text  # raises where a dimension has two axes
        checks.check(*mesh, rules=self.rules, shares=self.shares, sizes=self.sizes, slots=self.slots)

    @functools.cached_property
    def _axis_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.mesh_shape)

    @property
    def mesh_text(self) -> str:
        """The mesh shape as a string, "rows:2;cols:3"."""
        return ";".join(f"{name}:{size}" for name, size in self.mesh_shape)

    @functools.cached_property
    def size(self) -> int:
        """Number of processors."""
        return math.prod(size for _, size in self.mesh_shape)

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """The number of each processor's device, in the order of the processors."""
        slots = dict(self.slots)
        along = [
            [device for device, count in enumerate(slots.get(axis, (1,) * size)) for _ in range(count)]
            for axis, size in self.mesh_shape
        ]
        numbers: dict[tuple[int, ...], int] = {}
        return tuple(numbers.setdefault(place, len(numbers)) for place in itertools.product(*along))

    @property
    def device_count(self) -> int:
        """Number of devices."""
        slots = dict(self.slots)
        return math.prod(len(slots[axis]) if axis in slots else size for axis, size in self.mesh_shape)

    def without_slots(self) -> "Layout":
        """Return the layout with exact sizes in which each device has what its slots have together."""
        if not self.slots:
            return self
        slots, found = dict(self.slots), {}
        for name, sizes in self.sizes:
            left = iter(sizes)
            counts = slots.get(dict(self.rules)[name], (1,) * len(sizes))
            found[name] = [sum(itertools.islice(left, count)) for count in counts]
        mesh_shape = [(axis, len(slots[axis]) if axis in slots else size) for axis, size in self.mesh_shape]
        return Layout(mesh_shape, self.rules, (), found)

    @functools.cached_property
    def _dim_to_axis(self) -> dict[str, int]:
        dim_to_axis: dict[str, int] = {}
        for dim, axis in self.rules:
            if axis in self._axis_names:  # as in mtf, a rule for an absent axis has no effect
                if dim in dim_to_axis:
                    raise ValueError(
                        f"layout rules split dimension {dim!r} over more than one axis of the mesh {self.mesh_text}; "
                        "keep one of these rules"
                    )
                dim_to_axis[dim] = self._axis_names.index(axis)
        return dim_to_axis

    @functools.cached_property
    def _least(self) -> dict[str, int]:
        """{dimension: how many units it needs to be split}, one for each processor that is not to have none."""
        counts = {dim: self.mesh_shape[axis][1] for dim, axis in self._dim_to_axis.items()}
        return counts | {dim: sum(size > 0 for size in sizes) for dim, sizes in self.sizes}

    def axis_of(self, dim: str | Dim) -> int | None:
        """Index of the mesh axis over which a dimension is split, or None. One too small for its axis is not split.

        Too small is one with fewer units than its axis has processors; where exact sizes of the dimension leave some
        processors out, than those that they do not.

        Args:
          dim: a dimension, or the name of those that are large enough.
        """
        if isinstance(dim, str):
            return self._dim_to_axis.get(dim)
        axis = self._dim_to_axis.get(dim.name)
        return None if axis is None or dim.size < self._least[dim.name] else axis

    def splits(self, *shapes: Iterable[Dim]) -> bool:
        """Return whether a dimension of some shapes is split."""
        return any(self.axis_of(dim) is not None for shape in shapes for dim in shape)

    def axis_name_of(self, dim: str | Dim) -> str | None:
        """Name of the mesh axis over which a dimension is split, or None; as `axis_of`."""
        axis = self.axis_of(dim)
        return None if axis is None else self._axis_names[axis]

    def is_kept_whole(self, dim: Dim) -> bool:
        """Return whether a rule would split the dimension, but it is too small, as of `axis_of`."""
        return self.axis_of(dim) is None and self.axis_of(dim.name) is not None

    def weights(self, axis_name: str) -> tuple[float, ...]:
        """Relative part of each coordinate of a mesh axis: its shares, or else the mean of the exact sizes on it.

        Of a coordinate to which all of these give nothing it is zero.
        """
        return self._weights[axis_name]

    @functools.cached_property
    def _weights(self) -> dict[str, tuple[float, ...]]:
        return {name: self._weigh(name) for name in self._axis_names}

    def _weigh(self, axis_name: str) -> tuple[float, ...]:
        count = dict(self.mesh_shape)[axis_name]
        sized = [(sizes, sum(sizes)) for dim, sizes in self.sizes if self.axis_name_of(dim) == axis_name]
        means = tuple(math.fsum(sizes[i] / total for sizes, total in sized) for i in range(count)) if sized else None
        return dict(self.shares).get(axis_name) or means or (1.0,) * count

    def weights_within(self, axes: Iterable[int]) -> list[float]:
        """Return the relative weight of each processor among those that differ in these mesh axes alone."""
        weights: list[float] = [1.0]
        for index in sorted(axes):
            shares = self.weights(self.mesh_shape[index][0])
            weights = [weight * share for weight in weights for share in shares]
        return weights

    def coordinates(self, pnum: int) -> tuple[int, ...]:
        """Mesh coordinates of a processor: the last axis varies fastest, as in mtf."""
        return self._coordinates[pnum]

    @functools.cached_property
    def _coordinates(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(range(size) for _, size in self.mesh_shape)))

    @functools.cached_property
    def _along(self) -> list[tuple[int, ...]]:
        return list(zip(*self._coordinates, strict=True))  # of each mesh axis, each processor's coordinate

    def pnum(self, coordinates: Sequence[int]) -> int:
        """Return the processor at these mesh coordinates; inverse of `coordinates`."""
        pnum = 0
        for (_, size), coordinate in zip(self.mesh_shape, coordinates, strict=True):
            pnum = pnum * size + coordinate
        return pnum

    def split(self, dim_name: str, dim_size: int) -> tuple[int, ...]:
        """Sizes of the slices of a dimension, one per coordinate of its mesh axis; (dim_size,) if it is not split.

        A dimension that is too small, as of `axis_of`, is not: each processor has all of it.
        """
        return self._division(dim_name, dim_size).sizes

    def bounds(self, dim_name: str, dim_size: int) -> tuple[int, ...]:
        """Return where the slices of a dimension begin, then its size: (0, 42, 57, 60) for sizes (42, 15, 3)."""
        return self._division(dim_name, dim_size).bounds

    def holders(self, dim: Dim, begin: int, end: int, pnum: int) -> list[tuple[int, int, int, int]]:
        """Return the slices of a split dimension that an interval overlaps, for a processor that asks.

        Returns:
          (coordinate, where in its slice the overlap begins, units, how many coordinates it stands for: 1), in order.

        Example:
          >>> layout = Layout("all:3", "filters:all", {"all": [70, 25, 5]})  # slices begin at 0, 42 and 57
          >>> layout.holders(mtf.Dimension("filters", 60), 40, 50, pnum=0)
          [(0, 40, 2, 1), (1, 0, 8, 1)]
        """
        bounds = self.bounds(dim.name, dim.size)
        slices = []
        for coordinate in range(bisect.bisect_right(bounds, begin) - 1, len(bounds) - 1):
            low, high = max(begin, bounds[coordinate]), min(end, bounds[coordinate + 1])
            if low >= end:
                break
            if low < high:
                slices.append((coordinate, low - bounds[coordinate], high - low, 1))
        return slices

    def _division(self, dim_name: str, dim_size: int) -> _Division:
        """Return the division of a dimension from a cache, which a lowering asks a hundred thousand times."""
        key = dim_name, dim_size
        if key not in self._divisions:
            self._divisions[key] = self._divide(dim_name, dim_size)
        return self._divisions[key]

    @functools.cached_property
    def _divisions(self) -> dict[tuple[str, int], _Division]:
        return {}

    def _divide(self, dim_name: str, dim_size: int) -> _Division:
        axis = self.axis_of(dim_name)
        if axis is None or dim_size < self._least[dim_name]:
            return _Division(None, (dim_size,))
        axis_name, count = self.mesh_shape[axis]
        weights = self._sizes_by_name.get(dim_name) or dict(self.shares).get(axis_name) or (1,) * count
        return _divide(axis, dim_size, tuple(weights))

    @functools.cached_property
    def _sizes_by_name(self) -> dict[str, tuple[int, ...]]:
        return dict(self.sizes)

    def sizes_among(self, dims: Iterable[str]) -> frozenset[tuple[str, int, tuple[int, ...]]]:
        """(dimension, axis, exact sizes) of those of some dimensions that have any."""
        return frozenset(
            (dim, self._dim_to_axis[dim], self._sizes_by_name[dim]) for dim in dims if dim in self._sizes_by_name
        )

    @functools.cached_property
    def emptied(self) -> frozenset[str]:
        """The dimensions of whose exact sizes one is zero."""
        return frozenset(dim for dim, sizes in self.sizes if 0 in sizes)

    def slices(self, shape: Iterable[Dim], pnum: int) -> Iterator[tuple[int, int]]:
        """Yield where a processor's slice of a tensor begins, and its size, per dimension."""
        coordinates = self._coordinates[pnum]
        for dim in shape:
            division = self._division(dim.name, dim.size)
            yield division.slices[0 if division.axis is None else coordinates[division.axis]]

    def check(self, shape: Iterable[Dim]) -> None:
        """Raise ValueError unless a tensor of this shape can be laid out.

        Two dimensions of one tensor cannot be split over the same mesh axis.
        """
        dims_by_axis: dict[str, list[str]] = {}
        for dim in shape:
            axis = self.axis_name_of(dim)
            if axis is not None:
                dims_by_axis.setdefault(axis, []).append(repr(dim.name))
        for axis, names in dims_by_axis.items():
            if len(names) > 1:
                raise ValueError(
                    f"a tensor has dimensions {', '.join(names)}, and the layout splits all of them over mesh axis "
                    f"{axis!r}; split at most one of them over this axis"
                )

    def slice_shape(self, shape: Iterable[Dim], pnum: int | None = None) -> list[int]:
        """Shape of a processor's slice of a tensor.

        Args:
          shape: the tensor's dimensions, each with `name` and `size` (an mtf.Shape).
          pnum: the processor. Without it, the shape that all processors have.

        Raises:
          UnevenShapeError: no processor was named and the slices differ.
        """
        if pnum is not None:
            return [size for _, size in self.slices(shape, pnum)]
        for dim in shape:
            if len(set(self.split(dim.name, dim.size))) > 1:
                raise UnevenShapeError(
                    f"dimension {dim.name!r} of size {dim.size} is split unevenly over mesh axis "
                    f"{self.axis_name_of(dim.name)!r}, into {self.split(dim.name, dim.size)}; "
                    "give the number of a processor"
                )
        return self.slice_shape(shape, 0)

    def slice_shapes(self, shape: Iterable[Dim]) -> list[tuple[int, ...]]:
        """Shapes of all processors' slices of a tensor, in their order."""
        columns = []
        for dim in shape:
            division = self._division(dim.name, dim.size)
            axis, sizes = division.axis, division.sizes
            columns.append(sizes * self.size if axis is None else [sizes[at] for at in self._along[axis]])
        return list(zip(*columns, strict=True)) if columns else [()] * self.size

    def slice_begin(self, shape: Iterable[Dim], pnum: int) -> list[int]:
        """Return where a processor's slice of a tensor begins, per dimension."""
        return [begin for begin, _ in self.slices(shape, pnum)]

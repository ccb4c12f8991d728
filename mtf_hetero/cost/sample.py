"""Price a few processors that stand for many.

Like processors have like slices and send alike. The like coordinates of a mesh axis make a group. Its first coordinate
stands for itself, one from its middle for any of them, and one more for the rest.

A processor that is shown computes and reads what a real one does. It sends as much as each target reads, times the
targets, over the sources. That is exact if all of a group are alike. It is an estimate if sizes of a group differ by
one, and at the ends of a group that exchanges halos.
"""

import dataclasses
import functools
import itertools
from collections.abc import Collection, Hashable, Iterable, Sequence

from mtf_hetero.cost.machines import Machines, device_kinds
from mtf_hetero.layout import Dim, Layout

EXACT = 8  # devices, each of which is priced
_LEAST = 5  # in a group of which some stand for others


@dataclasses.dataclass(frozen=True)
class Crowd:
    """Coordinates of a mesh axis, or processors, and those that stand for all of them.

    Args:
      shown: those that stand, in ascending order.
      stands: for each coordinate, the place in `shown` of the one that stands for it.
      senders: for each one shown, the place of the one that sends what others read of it.
      kinds: for each coordinate, the number of its group.
    """

    shown: tuple[int, ...]
    stands: tuple[int, ...]
    senders: tuple[int, ...]
    kinds: tuple[int, ...]

    @property
    def is_sample(self) -> bool:
        """Return whether one stands for others."""
        return len(self.shown) < len(self.stands)

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """The number for which each one shown stands."""
        counts = [0] * len(self.shown)
        for place in self.stands:
            counts[place] += 1
        return tuple(counts)

    @functools.cached_property
    def members(self) -> tuple[int, ...]:
        """The number for which each one shown sends."""
        members = [0] * len(self.shown)
        for place, count in enumerate(self.counts):
            members[self.senders[place]] += count
        return tuple(members)

    @functools.cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The coordinates of each group."""
        groups: dict[int, list[int]] = {}
        for coordinate, kind in enumerate(self.kinds):
            groups.setdefault(kind, []).append(coordinate)
        return tuple(map(tuple, groups.values()))


def unsampled(count: int) -> Crowd:
    """Return a crowd of so many, of which each stands for itself."""
    numbers = tuple(range(count))
    return Crowd(numbers, numbers, numbers, numbers)


def crowd_by_kind(kinds: Sequence[Hashable]) -> Crowd:
    """Return the crowd of coordinates by their kinds: equal kinds are alike.

    Example:
      >>> crowd_by_kind(["V100"] * 6 + ["cpu"]).shown, crowd_by_kind(["V100"] * 6 + ["cpu"]).counts
      ((0, 1, 3, 6), (1, 4, 1, 1))
    """
    groups: dict[Hashable, list[int]] = {}
    for coordinate, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(coordinate)
    stands_for, sends_for = {}, {}
    for members in groups.values():
        first, rest, middle = members[0], members[1:2], members[len(members) // 2]
        for coordinate in members:
            is_own = len(members) < _LEAST or coordinate in (first, middle)
            stands_for[coordinate] = coordinate if is_own else rest[0]
            sends_for[stands_for[coordinate]] = stands_for[coordinate] if is_own else middle
    shown = sorted(set(stands_for.values()))
    place = {coordinate: number for number, coordinate in enumerate(shown)}
    numbers = {kind: number for number, kind in enumerate(groups)}
    return Crowd(
        tuple(shown),
        tuple(place[stands_for[coordinate]] for coordinate in range(len(kinds))),
        tuple(place[sends_for[coordinate]] for coordinate in shown),
        tuple(numbers[kind] for kind in kinds),
    )


@functools.lru_cache(maxsize=2**6)
def mesh_crowd(crowds: tuple[Crowd, ...]) -> Crowd:
    """Return the processors of a mesh by the coordinates of its axes."""
    if len(crowds) == 1:
        return crowds[0]

    def number(of_axes: Iterable[Sequence[int]], counts: Sequence[int]) -> tuple[int, ...]:
        numbers = []
        for places in itertools.product(*of_axes):
            number = 0
            for place, count in zip(places, counts, strict=True):
                number = number * count + place
            numbers.append(number)
        return tuple(numbers)

    every, few = [len(crowd.stands) for crowd in crowds], [len(crowd.shown) for crowd in crowds]
    kinds = [max(crowd.kinds) + 1 for crowd in crowds]
    return Crowd(
        number((crowd.shown for crowd in crowds), every),
        number((crowd.stands for crowd in crowds), few),
        number((crowd.senders for crowd in crowds), few),
        number((crowd.kinds for crowd in crowds), kinds),
    )


def crowds_by_kind(
    machines: Machines, mesh_shape: Sequence[tuple[str, int]], subsets: Iterable[Collection[int]]
) -> tuple[Crowd, ...]:
    """Return a crowd for each mesh axis; of few devices, each stands for itself.

    Args:
      machines: one device per processor.
      mesh_shape: (axis, count) of each mesh axis.
      subsets: numbers of devices among which something may be split: they are no longer like the others.
    """
    if len(machines.devices) <= EXACT:
        return tuple(unsampled(count) for _, count in mesh_shape)
    kinds = device_kinds(machines, subsets)
    if len(mesh_shape) == 1:
        return (crowd_by_kind(kinds),)
    whole = Layout(mesh_shape, ())
    of_axes: list[list[list[Hashable]]] = [[[] for _ in range(count)] for _, count in mesh_shape]
    for pnum, kind in enumerate(kinds):
        for axis, coordinate in enumerate(whole.coordinates(pnum)):
            of_axes[axis][coordinate].append(kind)
    return tuple(crowd_by_kind(list(map(tuple, of_axis))) for of_axis in of_axes)


def crowds_for(machines: Machines, layout: Layout, subsets: Iterable[Collection[int]] = ()) -> tuple[Crowd, ...]:
    """Return crowds as `crowds_by_kind` does, for one layout with exact sizes.

    A device stands for others only if their sizes differ by one unit at most. Otherwise each stands for itself. On a
    mesh of one axis, the devices that have something of a dimension are subsets too.
    """
    if len(layout.mesh_shape) > 1:
        subsets = ()
    else:
        having = {tuple(map(bool, sizes)) for _, sizes in layout.sizes}
        subsets = [*subsets, *(frozenset(n for n, has in enumerate(of_all) if has) for of_all in having)]
    crowds = crowds_by_kind(machines, layout.mesh_shape, subsets)
    for axis, sizes in {(layout.axis_of(name), sizes) for name, sizes in layout.sizes}:
        for group in crowds[axis or 0].groups:
            of_group = [sizes[coordinate] for coordinate in group]
            if max(of_group) > min(of_group) + 1:
                return tuple(unsampled(count) for _, count in layout.mesh_shape)
    return crowds


@dataclasses.dataclass(frozen=True)
class Sample(Layout):
    """A layout whose processors are those that stand for all; its sizes are those of all coordinates.

    Args:
      crowds: one per mesh axis.
    """

    crowds: tuple[Crowd, ...] = ()

    @functools.cached_property
    def crowd(self) -> Crowd:
        """The processors of the mesh."""
        return mesh_crowd(self.crowds)

    @functools.cached_property
    def size(self) -> int:
        """The number of processors that stand for all."""
        return len(self.crowd.shown)

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """A device for each processor that stands for all: those of many devices have no slots."""
        return tuple(range(self.size))

    @property
    def shown_shape(self) -> list[tuple[str, int]]:
        """Each mesh axis, with the number of its coordinates that stand for all."""
        return [(name, len(crowd.shown)) for (name, _), crowd in zip(self.mesh_shape, self.crowds, strict=True)]

    @functools.cached_property
    def _coordinates(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(crowd.shown for crowd in self.crowds)))

    def pnum(self, coordinates: Sequence[int]) -> int:
        """Return the processor that stands for the one at these mesh coordinates."""
        pnum = 0
        for crowd, coordinate in zip(self.crowds, coordinates, strict=True):
            pnum = pnum * len(crowd.shown) + crowd.stands[coordinate]
        return pnum

    def weights_within(self, axes: Iterable[int]) -> list[float]:
        """Return the relative weight of each processor among those that differ in these mesh axes alone."""
        weights: list[float] = [1.0]
        for index in sorted(axes):
            shares = self.weights(self.mesh_shape[index][0])
            weights = [weight * shares[coordinate] for weight in weights for coordinate in self.crowds[index].shown]
        return weights

    def holders(self, dim: Dim, begin: int, end: int, pnum: int) -> list[tuple[int, int, int, int]]:
        """Return holders as a Layout does; coordinates with the same box for which one stands count together."""
        axis = self.axis_of(dim)
        assert axis is not None
        bounds = self.bounds(dim.name, dim.size)
        return _holders(bounds, self.crowds[axis].stands, begin, end, self.coordinates(pnum)[axis])


# A search makes thousands of layouts, most of whose dimensions have the same bounds
@functools.lru_cache(maxsize=2**14)
def _holders(
    bounds: tuple[int, ...], stands: tuple[int, ...], begin: int, end: int, own: int
) -> list[tuple[int, int, int, int]]:
    found: dict[tuple[int, int, int], tuple[int, int]] = {}  # {(place, begin in slice, units): (coordinate, count)}
    for coordinate, (low, high) in enumerate(itertools.pairwise(bounds)):
        first, last = max(begin, low), min(end, high)
        if first < last:
            key = -1 if coordinate == own else stands[coordinate], first - low, last - first
            known = found.get(key, (coordinate, 0))
            found[key] = known[0], known[1] + 1
    return [(coordinate, key[1], key[2], count) for key, (coordinate, count) in found.items()]

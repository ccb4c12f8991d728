"""Many processors, a few of which stand for all: a layout that is laid out, sketched and priced for those alone.

Like processors have like slices and send alike. Of each mesh axis, the coordinates that are alike make a group: its
first one stands for itself, one from its middle for any of them, and one more for the rest, of whom the others read.

What one of them computes, and what it reads of how many others, is that of a real one; what it sends follows: as much
as each target reads, times the targets, over the sources. That is exact where all of a group are alike. It is not where
sizes of a group differ by one, or at the ends of a group that exchanges halos or pieces of slices that nearly fit:
there the one from the middle is taken for all.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Sequence

from mtf_hetero.layout import Dim, Layout

_LEAST = 5  # in a group of which some stand for others


@dataclasses.dataclass(frozen=True)
class Crowd:
    """The coordinates of a mesh axis, or devices, and those that stand for all of them.

    Args:
      shown: those that stand, in ascending order.
      stands: of each coordinate, the place among `shown` of the one that stands for it.
      senders: of each that is shown, the place of the one that sends what others read of it.
      kinds: of each coordinate, the number of its group.
    """

    shown: tuple[int, ...]
    stands: tuple[int, ...]
    senders: tuple[int, ...]
    kinds: tuple[int, ...]

    @property
    def is_sample(self) -> bool:
        """Whether one stands for others."""
        return len(self.shown) < len(self.stands)

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """For how many each that is shown stands."""
        counts = [0] * len(self.shown)
        for place in self.stands:
            counts[place] += 1
        return tuple(counts)

    @functools.cached_property
    def members(self) -> tuple[int, ...]:
        """For how many each that is shown sends."""
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


def everyone(count: int) -> Crowd:
    """So many, of whom each stands for itself."""
    numbers = tuple(range(count))
    return Crowd(numbers, numbers, numbers, numbers)


def crowd_of(kinds: Sequence[Hashable]) -> Crowd:
    """Those that stand for all of some coordinates.

    Args:
      kinds: of each coordinate; those of equal kinds are alike.

    Example:
      >>> crowd_of(["V100"] * 6 + ["cpu"]).shown, crowd_of(["V100"] * 6 + ["cpu"]).counts
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


def product_of(crowds: Sequence[Crowd]) -> Crowd:
    """The processors of a mesh, of whose axes these are the coordinates."""
    if len(crowds) == 1:
        return crowds[0]

    def numbers_of(of_axes: Iterable[Sequence[int]], counts: Sequence[int]) -> tuple[int, ...]:
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
        numbers_of((crowd.shown for crowd in crowds), every),
        numbers_of((crowd.stands for crowd in crowds), few),
        numbers_of((crowd.senders for crowd in crowds), few),
        numbers_of((crowd.kinds for crowd in crowds), kinds),
    )


@dataclasses.dataclass(frozen=True)
class Sample(Layout):
    """A layout of which only the processors that stand for all are looked at; see the module.

    Its sizes are those of all coordinates; its processors, their numbers, slices and weights are of those that stand.

    Args:
      crowds: one per mesh axis.
    """

    crowds: tuple[Crowd, ...] = ()

    @functools.cached_property
    def size(self) -> int:
        """Number of processors that stand for all."""
        return math.prod(len(crowd.shown) for crowd in self.crowds)

    @property
    def shown_shape(self) -> list[tuple[str, int]]:
        """(mesh axis, number of its coordinates that stand for all)."""
        return [(name, len(crowd.shown)) for (name, _), crowd in zip(self.mesh_shape, self.crowds, strict=True)]

    @functools.cached_property
    def _coordinates(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(crowd.shown for crowd in self.crowds)))

    def pnum(self, coordinates: Sequence[int]) -> int:
        """The processor that stands for the one at these mesh coordinates."""
        pnum = 0
        for crowd, coordinate in zip(self.crowds, coordinates, strict=True):
            pnum = pnum * len(crowd.shown) + crowd.stands[coordinate]
        return pnum

    def _products(self, factors: Iterable[Sequence[int]]) -> tuple[int, ...]:
        return tuple(math.prod(each) for each in itertools.product(*factors))

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """For how many each processor stands."""
        return self._products(crowd.counts for crowd in self.crowds)

    @functools.cached_property
    def members(self) -> tuple[int, ...]:
        """For how many each processor sends."""
        return self._products(crowd.members for crowd in self.crowds)

    @functools.cached_property
    def senders(self) -> tuple[int, ...]:
        """Of each processor, the one that sends what others read of it."""
        found = []
        for places in itertools.product(*(crowd.senders for crowd in self.crowds)):
            found.append(self.pnum([crowd.shown[place] for crowd, place in zip(self.crowds, places, strict=True)]))
        return tuple(found)

    def weights_within(self, axes: Iterable[int]) -> list[float]:
        """The relative weight of each processor that stands, among those that differ in these mesh axes alone."""
        weights: list[float] = [1.0]
        for index in sorted(axes):
            shares = self.weights(self.mesh_shape[index][0])
            weights = [weight * shares[coordinate] for weight in weights for coordinate in self.crowds[index].shown]
        return weights

    def holders(self, dim: Dim, begin: int, end: int, pnum: int) -> list[tuple[int, int, int, int]]:
        """As of a Layout; coordinates for which one stands are one, where they have the like box."""
        axis = self.axis_of(dim)
        assert axis is not None
        bounds = self.bounds(dim.name, dim.size)
        return _holders(bounds, self.crowds[axis].stands, begin, end, self.coordinates(pnum)[axis])


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

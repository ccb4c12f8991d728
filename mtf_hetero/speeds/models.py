"""The values of `mtf_hetero.speeds`: time models, links, a profile of devices, and the work of a step."""

import bisect
import dataclasses
import itertools
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def _is_number(x: Any) -> bool:
    return isinstance(x, numbers.Real) and not isinstance(x, bool) and math.isfinite(x)


def _is_whole(x: Any) -> bool:
    return isinstance(x, numbers.Integral) and not isinstance(x, bool)


@dataclasses.dataclass(frozen=True)
class TimeModel:
    """Seconds that a device takes for n units of a layer: linear between the measured sizes, exact at each of them.

    Nothing is smoothed, so that a staircase which was measured stays one; a time may fall with n where it was measured
    to fall. Nothing takes no time: t(0) = 0, and t(1) holds what any amount of work costs. Below the first point the
    first segment goes on, between proportion to n and the first time; beyond the last point the last segment goes on,
    and does not fall.

    Args:
      points: (units, median seconds, spread in seconds) per measured size, units increasing. The spread is the
        interquartile range of the repeats.

    Raises:
      ValueError: no points, or sizes, times or spreads that are out of range.

    Example:
      >>> model = TimeModel(((10, 1.0, 0.0), (20, 1.5, 0.0)))
      >>> model(0), model(10), model(15), model(40)
      (0.0, 1.0, 1.25, 2.5)
    """

    points: tuple[tuple[int, float, float], ...]

    def __post_init__(self) -> None:
        points = tuple(tuple(point) for point in self.points)
        if not points:
            raise ValueError("points of a time model are empty; give (units, seconds, spread) of one size or more")
        for point in points:
            if len(point) != 3 or not _is_whole(point[0]) or not all(_is_number(x) for x in point[1:]):
                raise ValueError(
                    f"points of a time model hold {point!r}; give (units, seconds, spread), finite numbers"
                )
            if point[0] < 1 or point[1] <= 0 or point[2] < 0:
                raise ValueError(
                    f"points of a time model hold {point!r}; units must be 1 or more, seconds greater than zero, and "
                    "the spread zero or more"
                )
        if any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
            raise ValueError(f"points of a time model are at {[p[0] for p in points]} units; sort them, each size once")
        object.__setattr__(self, "points", tuple((int(n), float(t), float(s)) for n, t, s in points))

    def __call__(self, n: int) -> float:
        """Seconds for n units.

        Raises:
          ValueError: n is negative.
        """
        if n < 0:
            raise ValueError(f"n is {n}, but a number of units must be zero or more")
        if n == 0:
            return 0.0
        first, last = self.points[0], self.points[-1]
        if len(self.points) == 1:
            return first[1] * n / first[0] if n > first[0] else first[1]
        if n < first[0]:
            line = first[1] - _slope(first, self.points[1]) * (first[0] - n)
            return min(max(line, first[1] * n / first[0]), first[1])
        if n >= last[0]:
            return last[1] + max(_slope(self.points[-2], last), 0.0) * (n - last[0])
        after = bisect.bisect_right(self.points, n, key=lambda point: point[0])
        below, above = self.points[after - 1], self.points[after]
        return below[1] + _slope(below, above) * (n - below[0])

    def settle(self) -> "TimeModel":
        """This model without the falls that are no larger than the spreads of the two points: noise, most likely.

        Points between which it falls so are pooled at their mean, until none is left; a fall that was measured beyond
        doubt stays. A split is chosen from settled models, for it would else follow the noise.

        Example:
          >>> TimeModel(((1, 1.0, 0.1), (2, 3.0, 1.0), (3, 2.0, 0.5))).settle().points
          ((1, 1.0, 0.1), (2, 2.5, 1.0), (3, 2.5, 0.5))
        """
        pools: list[list[tuple[int, float, float]]] = []
        for point in self.points:
            pools.append([point])
            while len(pools) > 1 and _is_noise(pools[-2], pools[-1]):
                last = pools.pop()
                pools[-1] += last
        return TimeModel(tuple((n, _mean(pool), spread) for pool in pools for n, _, spread in pool))

    @property
    def spread(self) -> float:
        """The largest spread of a point, as a fraction of its time."""
        return max(spread / seconds for _, seconds, spread in self.points)


def _mean(pool: Sequence[tuple[int, float, float]]) -> float:
    return math.fsum(seconds for _, seconds, _ in pool) / len(pool)


def _is_noise(before: Sequence[tuple[int, float, float]], after: Sequence[tuple[int, float, float]]) -> bool:
    fall = _mean(before) - _mean(after)
    return 0 < fall <= max(point[2] for point in before) + max(point[2] for point in after)


def _slope(a: tuple[int, float, float], b: tuple[int, float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


@dataclasses.dataclass(frozen=True)
class Link:
    """The way from one device to another.

    Args:
      latency_seconds: of a message, before any byte.
      bytes_per_second: bandwidth.

    Raises:
      ValueError: a latency below zero, or a bandwidth that is not positive.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (_is_number(self.latency_seconds) and self.latency_seconds >= 0):
            raise ValueError(f"latency_seconds of a link is {self.latency_seconds!r}; it must be zero or more")
        if not (_is_number(self.bytes_per_second) and self.bytes_per_second > 0):
            raise ValueError(f"bytes_per_second of a link is {self.bytes_per_second!r}; it must be greater than zero")

    def seconds(self, message_bytes: float) -> float:
        """Seconds for a message."""
        return self.latency_seconds + message_bytes / self.bytes_per_second


@dataclasses.dataclass(frozen=True)
class Layer:
    """A part of a step: forward, backward and update of one layer, as far as it depends on one split dimension.

    Args:
      name: what users know it by, "conv1".
      key: what it is measured under; layers that are alike have the same.
      dim: the split dimension whose size decides the time; None: every processor does all of it.
      units: the extent of that dimension; 1 where there is none.
      reduced_bytes: sizes of the tensors that are then summed over the processors, one message each.
    """

    name: str
    key: str
    dim: str | None
    units: int
    reduced_bytes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step of a graph consists of, under the rules of a layout.

    Args:
      layers: its parts.
      dims: {split dimension: {each name it goes by: largest extent under that name}}.
      fixed_bytes: memory that every processor needs, at the moment when most is needed.
      dim_bytes: {split dimension: memory at that moment which is divided with it}.
    """

    layers: tuple[Layer, ...]
    dims: Mapping[str, Mapping[str, int]]
    fixed_bytes: int = 0
    dim_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def units(self, dim: str) -> int:
        """The extent of a split dimension."""
        return max(self.dims[dim].values())

    def layers_of(self, dim: str | None) -> list[Layer]:
        """The layers that depend on a dimension; with None, those that every processor does whole."""
        return [layer for layer in self.layers if layer.dim == dim]


@dataclasses.dataclass(frozen=True)
class Profile:
    """Measured devices and links.

    Args:
      models: {device: {layer key: TimeModel}}.
      links: {(device, device): Link}, from the first to the second.
      provenance: {what: text}: date, host, versions, devices, repeats.
    """

    models: Mapping[str, Mapping[str, TimeModel]]
    links: Mapping[tuple[str, str], Link] = dataclasses.field(default_factory=dict)
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def model(self, device: str, key: str) -> TimeModel:
        """The time model of a device for a layer.

        Raises:
          ValueError: it was not measured.
        """
        if key not in self.models.get(device, {}):
            raise ValueError(f"the profile has no times of device {device!r} for layer {key!r}; measure it anew")
        return self.models[device][key]

    def link(self, a: str, b: str) -> Link | None:
        """The link between two devices, in whichever direction it was measured; None: unknown, or one device."""
        return None if a == b else self.links.get((a, b)) or self.links.get((b, a))

    def merge(self, other: "Profile") -> "Profile":
        """This profile and another, which wins where both have measured the same."""
        models = {
            device: {**self.models.get(device, {}), **other.models.get(device, {})}
            for device in [*self.models, *(device for device in other.models if device not in self.models)]
        }
        return Profile(models, {**self.links, **other.links}, {**self.provenance, **other.provenance})

    def missing(self, devices: Iterable[str], keys: Sequence[str]) -> list[tuple[str, str]]:
        """(device, layer key) of what was not measured."""
        return [(device, key) for device in devices for key in keys if key not in self.models.get(device, {})]

"""Measures layers on devices at several sizes: which sizes, how often, and when to stop."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtf_hetero import speeds
from mtf_hetero._compat import tf
from mtf_hetero._support import extras
from mtf_hetero.profile.effort import Effort
from mtf_hetero.profile.timing import Point, build_loop
from mtf_hetero.profile.work import Group

_CURVED = 0.1  # deviation from a straight line, as a fraction, at which sizes in between are measured too


def sizes_to_measure(units: int, count: int, granule: int = 1) -> list[int]:
    """Sizes from one granule to the whole, closer together at the small end.

    Args:
      units: the whole.
      count: how many at most, 2 or more.
      granule: all are multiples of it, but for the whole.

    Example:
      >>> sizes_to_measure(60, 6)
      [1, 8, 15, 30, 45, 60]
    """
    parts = [1 / 8, *[(i + 1) / (count - 2) for i in range(count - 3)]] if count > 3 else [0.5] if count == 3 else []
    inner = {granule, *(round(units * part / granule) * granule for part in parts)}
    return sorted({n for n in inner if 0 < n < units} | {units})


def sizes_between(points: Sequence[tuple[int, float]], granule: int = 1) -> list[int]:
    """Sizes in the middle of both segments beside each point that is far from the line between its neighbours."""
    result = set()
    for (a, ta), (b, tb), (c, tc) in zip(points, points[1:], points[2:]):
        line = ta + (tc - ta) * (b - a) / (c - a)
        if abs(tb - line) > _CURVED * max(tb, line):
            result |= {(a + b) // 2 // granule * granule, (b + c) // 2 // granule * granule}
    return sorted(n for n in result - {n for n, _ in points} if n > 0)


class Sweep:
    """A sweep over layers, devices and sizes, all measured in turn and again and again."""

    def __init__(
        self,
        session: tf.Session,
        by_key: Mapping[str, Group],
        effort: Effort,
        multiple_of: Mapping[str, int],
        *,
        progress: bool,
    ) -> None:
        self._session = session
        self._by_key = by_key
        self._effort = effort
        self._multiple_of = multiple_of
        self._progress = progress
        self._iterations: dict[str, tf.Tensor] = {}
        self._points: dict[tuple[str, str], list[Point]] = {}

    def run(self, todo: Sequence[tuple[str, str]]) -> dict[str, dict[str, speeds.TimeModel]]:
        """The time models of (device, layer key) pairs.

        A device's layers follow each other without a pause, so that one under a quota is measured as busy as it will
        be; and all of it is repeated, so that what disturbs one repeat does not decide.
        """
        end = time.monotonic() + self._effort.budget_seconds
        for device, key in todo:
            sizes = sizes_to_measure(self._by_key[key].layer.units, self._effort.sizes, self._granule(key))
            self._points[device, key] = [self._point(device, key, n) for n in sizes]
        total = sum(map(len, self._points.values())) * (1 + self._effort.repeats)
        hide = None if self._progress and todo else True  # None: shown on a terminal
        with extras.progress_bar(total=total, desc="layers", unit="run", disable=hide, leave=False) as bar:
            for point in self._all():
                point.warm_up(self._effort.sample_seconds)
                bar.update()
            self._repeat(1, end, bar)
            self._refine(end, bar)
            self._repeat(self._effort.repeats - 1, end, bar)
            while time.monotonic() < end and any(point.error > self._effort.precision for point in self._all()):
                self._repeat(1, end, bar, above=self._effort.precision)
        models: dict[str, dict[str, speeds.TimeModel]] = {}
        for (device, key), points in self._points.items():
            measured = tuple((p.units, p.seconds, p.spread) for p in sorted(points, key=lambda p: p.units) if p.samples)
            models.setdefault(device, {})[key] = speeds.TimeModel(measured)
        return models

    def _granule(self, key: str) -> int:
        group = self._by_key[key]
        return max((self._multiple_of.get(name, 1) for name in group.names), default=1)

    def _point(self, device: str, key: str, units: int) -> Point:
        if device not in self._iterations:
            with tf.device(device):
                self._iterations[device] = tf.placeholder(tf.int32, [])
        iterations = self._iterations[device]
        loop = build_loop(self._by_key[key], units, device, iterations)
        return Point(key, device, units, self._session.make_callable(loop, [iterations]))

    def _all(self) -> Iterator[Point]:
        return itertools.chain.from_iterable(list(self._points.values()))

    def _repeat(self, times: int, end: float, bar: Any, *, above: float = -1.0) -> None:
        for _ in range(times):
            for point in self._all():
                if not point.samples or (point.error > above and time.monotonic() < end):
                    point.sample()
                    bar.total = max(bar.total, bar.n + 1)
                    bar.update()

    def _refine(self, end: float, bar: Any) -> None:
        """Adds sizes where a time does not lie between its neighbours, as at the steps of a staircase."""
        for (device, key), points in list(self._points.items()):
            granule = self._granule(key)
            between = sizes_between([(p.units, p.seconds) for p in points], granule)[: self._effort.sizes]
            if time.monotonic() > end:
                return
            extra = [self._point(device, key, n) for n in between]
            for point in extra:
                point.warm_up(self._effort.sample_seconds)
                point.sample()
                bar.total += self._effort.repeats + 1
                bar.update(2)
            self._points[device, key] = sorted([*points, *extra], key=lambda p: p.units)


Campaign = Sweep  # its former name

"""Other sizes, or another layout, after some devices have become slower or faster.

The cost model predicts for how long each device is busy in a step: with its slices, and with its messages and updates,
which do not shrink with its share. The measured time over the predicted one is the slowness of a device. With the
slowness of all devices, the model predicts the step with other sizes. The planner searches for another layout with it.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cluster.devices import Device
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.cost.model import Model
from mtf_hetero.layout import Layout
from mtf_hetero.layout.partition import split_among_positive
from mtf_hetero.planner.planning import Planner
from mtf_hetero.planner.refine import EVALUATIONS, Sizes, refine

_CPU, _GPU = (1.5e11, 1e10), (5e12, 3e11)  # operations and bytes a second, if not measured; their proportions matter
_SECONDS_PER_BYTE = 8e-10  # of a message, for a worker's processor
_IDLE = 0.01  # of the busiest device's time; the speed of a device that is busy for less is not known
_BUSY = 0.75  # of the busiest device's time
_NEAR = 1.02  # times as long as the best step, for which the first sizes are kept
_PLAN_GAIN = 0.1  # of a step, for another layout: predictions of two layouts differ by more than those of two sizes


@dataclasses.dataclass(frozen=True)
class Resized:
    """A layout with other sizes, or another one, and what is predicted of it.

    Args:
      layout: with exact sizes, for all devices.
      step: the predicted seconds of a step over those with the present sizes.
      slowness: of each device: for how much longer it is busy with the same work than at the beginning.
    """

    layout: Layout
    step: float
    slowness: tuple[float, ...]


class Resizer:
    """Finds other sizes for a layout of one training step, or another layout.

    Args:
      graph: mtf.Graph of the training step.
      layout: with which the training began.
      devices: one per processor.
      machines: the devices as they were measured; None: they were not.
      replans: whether another layout will do.

    Example:
      >>> resizer = Resizer(graph, layout, cluster.devices)
      >>> resizer.resize(layout, first=[0.5, 0.5], busy_seconds=[0.5, 1.5]).layout
    """

    def __init__(
        self,
        graph: mtf.Graph,
        layout: Layout,
        devices: Sequence[str],
        machines: Machines | None = None,
        *,
        replans: bool = False,
    ) -> None:
        if machines is None:
            machines = Machines(tuple(map(_unmeasured, devices)))
        self._machines = machines.some([machines.names.index(name) for name in devices])
        self._model = Model(graph, self._machines)
        self._layout = self._model.exact(layout)
        self._planner = Planner(graph) if replans else None
        self._expected: tuple[Layout, list[float]] | None = None  # of the last result, until it is measured

    def resize(self, present: Layout, first: Sequence[float], busy_seconds: Sequence[float]) -> Resized:
        """Return the layout for devices of other speeds than at the beginning.

        Args:
          present: the layout in use.
          first: for how many seconds each device was busy in a step at the beginning.
          busy_seconds: likewise, at present.

        Raises:
          ValueError: no sizes fit the memory.
        """
        present = self._model.exact(present)
        slowness = self._slowness(present, busy_seconds)
        if self._expected is not None and self._expected[0] == present:
            slowness = _at_least(self._expected[1], slowness, busy_seconds)
        relative = [now / then for now, then in zip(slowness, self._slowness(self._layout, first), strict=True)]
        machines = corrected(self._machines, slowness)
        model = self._model.on(machines)
        layout = self._fastest(model, [self._layout, present, resized(self._layout, relative)])
        layout = self._planned(machines, model, (1.0 - _PLAN_GAIN) * model.seconds(layout)) or layout
        self._expected = (layout, slowness) if layout != present else None
        return Resized(layout, model.seconds(layout) / model.seconds(present), tuple(relative))

    def _planned(self, machines: Machines, model: Model, seconds: float) -> Layout | None:
        """Return another layout over all devices whose step takes less than so many seconds, if one is found."""
        if self._planner is None:
            return None
        plan = self._planner.find(machines)
        if plan.layout.slots or plan.devices != machines.names or model.seconds(plan.layout) >= seconds:
            return None  # slots keep their sizes, whatever the devices' speeds become
        return plan.layout

    def _slowness(self, layout: Layout, busy_seconds: Sequence[float]) -> list[float]:
        """Return each device's measured seconds over the predicted ones; of a device without work, the others' mean."""
        predicted = self._model.busy_seconds(layout)
        least = _IDLE * max(predicted)
        found = [seconds / each if each > least else 0.0 for seconds, each in zip(busy_seconds, predicted, strict=True)]
        mean = statistics.geometric_mean([each for each in found if each] or [1.0])
        return [each or mean for each in found]

    def _fastest(self, model: Model, layouts: Sequence[Layout]) -> Layout:
        """Return the fastest of some layouts, with sizes as fast as can be; the first one if it is nearly as fast."""

        def seconds_if_it_fits(layout: Layout) -> float:
            return model.seconds(layout) if model.memory_use(layout) <= 1 else math.inf

        best = min(layouts, key=seconds_if_it_fits)
        if math.isinf(seconds_if_it_fits(best)):
            raise ValueError("no sizes for these speeds fit the layout and the memory")
        for axis in range(len(best.mesh_shape)):
            best = _refined(best, axis, seconds_if_it_fits)
        return layouts[0] if seconds_if_it_fits(layouts[0]) <= _NEAR * seconds_if_it_fits(best) else best


def _at_least(expected: Sequence[float], found: Sequence[float], busy_seconds: Sequence[float]) -> list[float]:
    """Return the slowness of devices in a new layout; one that mostly waits there is at least as slow as expected.

    A quota of processor time slows a device down only once it is used up: with less work, the device seems faster.
    """
    least = _BUSY * max(busy_seconds)
    return [
        max(now, then) if seconds < least else now
        for then, now, seconds in zip(expected, found, busy_seconds, strict=True)
    ]


def _unmeasured(name: str) -> Machine:
    device = Device.parse(name)
    if not device.is_cpu:
        return Machine(name, *_GPU)
    return Machine(name, *_CPU, seconds_per_byte=0.0 if device.worker is None else _SECONDS_PER_BYTE)


def _refined(layout: Layout, axis: int, seconds_if_it_fits: Callable[[Layout], float]) -> Layout:
    """Return the layout with the fastest sizes along a mesh axis."""
    mine = {name: sizes for name, sizes in layout.sizes if layout.axis_of(name) == axis}

    def with_sizes(sizes: Sizes) -> Layout:
        return Layout(layout.mesh_shape, layout.rules, (), {**dict(layout.sizes), **sizes}, layout.slots)

    found = refine(
        mine,
        lambda sizes: seconds_if_it_fits(with_sizes(sizes)),
        granules={},
        evaluations=EVALUATIONS // layout.size,
        groups=[(number,) for number in range(layout.mesh_shape[axis][1])],
    )
    return with_sizes(found)


def corrected(machines: Machines, slowness: Sequence[float]) -> Machines:
    """Return machines each of which takes so many times as long for an operation and for a message."""
    devices = tuple(
        dataclasses.replace(
            machine,
            flops_per_second=machine.flops_per_second / slow,
            bytes_per_second=machine.bytes_per_second / slow,
            operation_seconds=machine.operation_seconds * slow,
            seconds_per_byte=machine.seconds_per_byte * slow,
            seconds_per_message=machine.seconds_per_message * slow,
        )
        for machine, slow in zip(machines.devices, slowness, strict=True)
    )
    return dataclasses.replace(machines, devices=devices)


def resized(layout: Layout, factors: Sequence[float]) -> Layout:
    """Return a layout in which a device that is slower by a factor has that much less in proportion to the others.

    A coordinate of several devices, on a mesh of several axes, is as slow as they are in the mean.

    Args:
      layout: with exact sizes. A size of 0 remains 0.
      factors: one per processor.

    Example:
      >>> resized(Layout("all:2", "batch:all", sizes={"batch": [32, 32]}), [1.0, 3.0]).sizes
      (('batch', (48, 16)),)
    """
    slowness: list[list[float]] = []
    for axis, (_, count) in enumerate(layout.mesh_shape):
        of_axis: list[list[float]] = [[] for _ in range(count)]
        for pnum, factor in enumerate(factors):
            of_axis[layout.coordinates(pnum)[axis]].append(factor)
        slowness.append([statistics.geometric_mean(of_coordinate) for of_coordinate in of_axis])
    sizes: dict[str, tuple[int, ...]] = {}
    for name, exact in layout.sizes:
        axis = layout.axis_of(name)
        assert axis is not None
        weights = [size / slow for size, slow in zip(exact, slowness[axis], strict=True)]
        sizes[name] = split_among_positive(sum(exact), weights)
    return Layout(layout.mesh_shape, layout.rules, (), sizes, layout.slots)

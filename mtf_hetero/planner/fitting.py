"""Find a plan that fits the devices' memory, by the lowered graph.

The search looks at very many layouts, so it estimates the memory of each before lowering. The few best plans are
lowered, and estimated as `cost.memory` estimates any program. If one is too large, the search is repeated with smaller
limits.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import deadline
from mtf_hetero._support.units import bytes_text
from mtf_hetero.cost import memory
from mtf_hetero.cost.machines import Machines
from mtf_hetero.planner.errors import TooLargeError
from mtf_hetero.planner.finding import Progress, report_nothing
from mtf_hetero.planner.left_out import Search
from mtf_hetero.planner.objective import FASTEST, Objective
from mtf_hetero.planner.outline import name_ranges
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.planning import Planner
from mtf_hetero.planner.search import NoAssignmentError

MOST_DEVICES = 16  # of a plan that is lowered; of more, the search's estimate remains
_ROUNDS = 5  # of searches, each with limits that are smaller by what the last one underestimated
# Times what the sketch of a step needs: a fast layout may need twice that, and one device, whose sketch is best, less.
# To lower each plan took 10 of the 23 seconds of EfficientNetB0's.
_AMPLE, _AMPLE_ALONE = 2.0, 1.2
# Batches that are searched: scaled by the memory that the last one needs, mostly one, where five were needed
_PROBES = 4
_MARGIN = 0.9  # of the memory, for a search whose plan is to fit at once
_ROUNDED = 0.97  # of the batch for that memory: sizes are integers, and no device is filled exactly
_SLACK = 0.98  # of a limit that is asked for again

Build = Callable[[], mtf.Graph]


def estimated(plan: Plan, build: Build) -> Plan:
    """Return the plan with the bytes of tensors on each device, by the lowered graph; for many devices, unchanged.

    Args:
      plan: for the graph.
      build: builds a training step in TensorFlow's default graph, a new one, and returns its mtf.Graph.
    """
    estimates = memory.estimate_layout(build, plan.layout) if len(plan.devices) <= MOST_DEVICES else ()
    if not estimates:
        return plan
    return dataclasses.replace(plan, memory_bytes=tuple(each.peak - each.runtime for each in estimates))


class ShortOfMemoryError(NoAssignmentError):
    """No layout was found that fits the devices' memory.

    Args:
      nearest: the plan whose device most short of memory lacks least.
      machines: all devices.
      batch_size: one that fits, near the largest; 0: a single example does not fit; None: none was found.
    """

    def __init__(self, nearest: Plan, machines: Machines, batch_size: int | None = None) -> None:
        self.nearest, self.batch_size = nearest, batch_size
        needed, texts = dict(zip(nearest.devices, nearest.memory_bytes, strict=True)), {}
        for name, numbers in name_ranges(machines.names):
            bytes_ = max(needed.get(machines.names[number], 0) for number in numbers)
            limit = machines.devices[numbers[0]].memory_bytes
            has = "no limit" if limit is None else bytes_text(limit)
            texts[name] = f"{bytes_text(bytes_)} on {name} ({has})"
        remedies = {
            None: "add devices, or use a smaller batch",
            0: "add devices, or use a smaller network: a batch of 1 does not fit either",
        }
        super().__init__(
            f"no layout of the step fits the devices' memory; the nearest needs about {', '.join(texts.values())}; "
            + remedies.get(batch_size, f"add devices, or use a batch of {batch_size}, which fits")
        )


def checked(plan: Plan, build: Build, machines: Machines) -> Plan:
    """Return the plan, with its memory by the lowered graph if one of its devices may be short of it."""
    return plan if _is_ample(plan, machines.by_name(plan.devices)) else estimated(plan, build)


def _is_ample(plan: Plan, machines: Machines) -> bool:
    """Return whether each device has far more memory than it needs by the sketch of the step.

    The sketch lacks halos and copies for other devices, which one device does not have.
    """
    times = _AMPLE if len(machines.devices) > 1 else _AMPLE_ALONE
    return memory_use(plan, machines) <= 1 / times


def fits(plan: Plan, machines: Machines) -> bool:
    """Return whether each device of a plan has the memory that it needs."""
    return memory_use(plan, machines) <= 1


def memory_use(plan: Plan, machines: Machines) -> float:
    """Return the memory that a plan needs over what there is, on the device that is most short of it."""
    needed = zip(machines.by_name(plan.devices).devices, plan.memory_bytes, strict=True)
    return max(bytes_ / (machine.memory_bytes or math.inf) for machine, bytes_ in needed)


def find_fitting(
    build: Build,
    machines: Machines,
    *,
    planner: Planner | None = None,
    names: Collection[str] | None = None,
    seconds: float = 60.0,
    progress: Progress = report_nothing,
    objective: Objective = FASTEST,
) -> Plan:
    """Return the plan with the least predicted time, or price, that fits the devices' memory, by the lowered graph.

    Args:
      build: as of `estimated`.
      machines: as of `Planner.find`.
      planner: of a graph that it built; None: it is called.
      names: as of `Planner.find`.
      seconds: likewise, of each search.
      progress: likewise.
      objective: likewise.

    Raises:
      ShortOfMemoryError: none was found that fits.
      TooSlowError: as of `Planner.find`.
      ValueError: as of `Planner.find`.
    """
    if planner is None:
        with tf.Graph().as_default():
            planner = Planner(build())
    allowed, tried, nearest = machines, [], None

    def accepts(sketched: Plan) -> bool:
        """Return whether a plan fits, which its sketch does."""
        plan = checked(sketched, build, machines)
        tried.append((sketched, plan))
        return fits(plan, machines)

    for _ in range(_ROUNDS):
        deadline.check()
        tried.clear()
        try:
            planner.find(allowed, names=names, seconds=seconds, progress=progress, accepts=accepts, objective=objective)
        except TooLargeError as error:
            nearest = nearest or error.nearest
            break
        if fits(tried[-1][1], machines):
            return tried[-1][1]
        sketched, nearest = min(tried, key=lambda pair: memory_use(pair[1], machines))
        allowed = _less(allowed, machines, sketched, nearest)
    assert nearest is not None
    if nearest.alone_fits:
        alone = checked(planner.find(machines.by_name(nearest.alone[:1]), objective=objective), build, machines)
        if fits(alone, machines):
            return alone
    raise ShortOfMemoryError(nearest, machines)


def largest_batch(
    build_with: Callable[[int], Build], batch_size: int, machines: Machines, nearest: Plan, *, seconds: float = 60.0
) -> int | None:
    """Return a batch size for which a layout fits, near the largest; 0: one example is too many; None: none was found.

    The search for a batch leaves a tenth of the memory free, and looks at simple layouts, whose memory is predicted
    best. So the first batch usually fits.

    Args:
      build_with: returns the function that builds a step with a batch size, as of `estimated`.
      batch_size: for which none fits.
      machines: as of `Planner.find`.
      nearest: the plan for it that lacks least.
      seconds: limit.
    """
    limits = {machine.name: machine.memory_bytes for machine in machines.devices if machine.memory_bytes is not None}
    probe, sketched, margin = batch_size, nearest, _MARGIN
    with deadline.within(seconds), contextlib.suppress(deadline.OutOfTimeError):
        for _ in range(_PROBES):
            short = machines.with_memory({name: margin * limit for name, limit in limits.items()})
            probe = _scaled(probe, sketched, short)
            build = build_with(probe)
            with tf.Graph().as_default():
                planner = Planner(build())
            try:
                sketched = _simplest(planner, short, seconds)
                plan = checked(sketched, build, machines)
                if fits(plan, machines):
                    return probe
                pairs = zip(sketched.memory_bytes, plan.memory_bytes, strict=True)
                margin = min(margin, _SLACK * min(believed / needed for believed, needed in pairs if needed))
            except TooLargeError as error:
                sketched = error.nearest
            if probe == 1:
                return 0
            deadline.check()
    return None


def _simplest(planner: Planner, machines: Machines, seconds: float) -> Plan:
    """Return the plan that splits all in the likest proportions, by rejecting the fastest one if it is another."""
    asked: list[Plan] = []

    def is_second(plan: Plan) -> bool:
        asked.append(plan)
        return len(asked) > 1

    return planner.find(machines, seconds=seconds, refines=False, accepts=is_second)


def _scaled(batch_size: int, plan: Plan, machines: Machines) -> int:
    """Return a smaller batch size that the devices have the memory for, by a plan for a larger one.

    The memory of a step is a constant, about the parameters on each device, and a multiple of the batch size. Devices
    that split the batch have it together. With slots, each device needs the memory for its own part: the search sizes
    the slots by speed alone, so a device that is short of memory leaves nothing to another one.
    """
    limits = [machine.memory_bytes or math.inf for machine in machines.by_name(plan.devices).devices]
    parameters, pairs = int(plan.provenance["parameters_bytes"]), [*zip(limits, plan.memory_bytes, strict=True)]
    if not plan.layout.slots:
        parameters, pairs = parameters * len(pairs), [(sum(limits), sum(plan.memory_bytes))]
    constants = [min(parameters, needed // 2) for _, needed in pairs]
    fraction = min((limit - own) / (needed - own) for (limit, needed), own in zip(pairs, constants, strict=True))
    return max(1, int(min(batch_size - 1, _ROUNDED * batch_size * fraction)))


def repeated_search(
    planner: Planner, build: Build, machines: Machines, plan: Plan, objective: Objective = FASTEST
) -> Search:
    """Return a search for the devices of a plan, for other figures of the same machines.

    Args:
      planner: that found the plan.
      build: as of `estimated`.
      machines: as of `Planner.find`.
      plan: for them. If all devices have far more memory than their parts need, nothing is lowered.
      objective: as of `Planner.find`.
    """
    if _is_ample(plan, machines):
        find = functools.partial(planner.find, objective=objective)
    else:
        find = functools.partial(find_fitting, build, planner=planner, objective=objective)
    return Search(planner, find, objective)


def _less(allowed: Machines, machines: Machines, sketched: Plan, plan: Plan) -> Machines:
    """Return the limits for the next search, as much smaller as the search underestimated each device."""
    real = {machine.name: machine.memory_bytes for machine in machines.devices}
    limits = {machine.name: machine.memory_bytes for machine in allowed.devices}
    for device, believed, needed in zip(plan.devices, sketched.memory_bytes, plan.memory_bytes, strict=True):
        limit = real[device]
        if limit is not None and needed > limit:
            limits[device] = max(1.0, min(limits[device] or limit, limit * believed / needed * _SLACK))
    return allowed.with_memory({name: limit for name, limit in limits.items() if limit is not None})

"""Find a plan that fits the devices' memory, by the lowered graph.

The search looks at very many layouts, so it estimates the memory of each before lowering. The few best plans are
lowered, and estimated as `cost.memory` estimates any program. If one is too large, the search is repeated with smaller
limits.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import deadline
from mtf_hetero.cost import memory
from mtf_hetero.cost.machines import Machines
from mtf_hetero.planner.left_out import Search
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.planning import Planner, Progress, find, report_nothing
from mtf_hetero.planner.search import NoAssignmentError

MOST_DEVICES = 16  # of a plan that is lowered; of more, the search's estimate remains
_ROUNDS = 5
_AMPLE = 1.5  # times what a step needs
_SURE = 0.5  # of a device's memory: a sketch had 0.64 of the bytes of the lowered step, and more
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


def checked(plan: Plan, build: Build, machines: Machines) -> Plan:
    """Return the plan, with its memory by the lowered graph if a device may be short of it; as of `estimated`."""
    limits = {machine.name: machine.memory_bytes for machine in machines.devices}
    needed = zip(plan.devices, plan.memory_bytes, strict=True)
    is_sure = all((limit := limits.get(name)) is None or bytes_ < _SURE * limit for name, bytes_ in needed)
    return plan if is_sure else estimated(plan, build)


def fits(plan: Plan, machines: Machines) -> bool:
    """Return whether each device of a plan has the memory that it needs."""
    limits = {machine.name: machine.memory_bytes for machine in machines.devices}
    needed = dict(zip(plan.devices, plan.memory_bytes, strict=True))
    return all(limit is None or needed.get(name, 0) <= limit for name, limit in limits.items())


def find_fitting(
    build: Build,
    machines: Machines,
    *,
    names: Collection[str] | None = None,
    seconds: float = 60.0,
    progress: Progress = report_nothing,
) -> Plan:
    """Return the plan with the least predicted time that fits the devices' memory, by the lowered graph.

    Args:
      build: as of `estimated`.
      machines: as of `Planner.find`.
      names: likewise.
      seconds: likewise, of each search.
      progress: likewise.

    Raises:
      search.NoAssignmentError: none was found that fits.
      ValueError: as of `Planner.find`.
    """
    allowed, plan = machines, None
    for _ in range(_ROUNDS):
        deadline.check()
        try:
            with tf.Graph().as_default():
                sketched = find(build(), allowed, names=names, seconds=seconds, progress=progress)
        except NoAssignmentError:
            if plan is None:
                raise
            break
        plan = checked(sketched, build, machines)
        if fits(plan, machines):
            return plan
        allowed = _less(allowed, machines, sketched, plan)
    assert plan is not None
    needs = ", ".join(f"{n / 1e9:.3g} GB on {d}" for d, n in zip(plan.devices, plan.memory_bytes, strict=True))
    raise NoAssignmentError(
        f"no layout was found that fits the devices' memory: the last one needs {needs}; add devices, or use a smaller "
        "batch"
    )


def repeated_search(graph: mtf.Graph, build: Build, machines: Machines, plan: Plan) -> Search:
    """Return a search for the devices of a plan, for other figures of the same machines.

    Args:
      graph: of which the plan was made.
      build: as of `estimated`.
      machines: as of `Planner.find`.
      plan: for them. If all devices have far more memory than the step needs, nothing is lowered.
    """
    needed = _AMPLE * sum(plan.memory_bytes)
    is_short = any(limit is not None and limit < needed for limit in (m.memory_bytes for m in machines.devices))
    return functools.partial(find_fitting, build) if is_short else functools.partial(Planner(graph).find, refines=False)


def _less(allowed: Machines, machines: Machines, sketched: Plan, plan: Plan) -> Machines:
    """Return the limits for the next search, as much smaller as the search underestimated each device."""
    real = {machine.name: machine.memory_bytes for machine in machines.devices}
    limits = {machine.name: machine.memory_bytes for machine in allowed.devices}
    for device, believed, needed in zip(plan.devices, sketched.memory_bytes, plan.memory_bytes, strict=True):
        limit = real[device]
        if limit is not None and needed > limit:
            limits[device] = min(limits[device] or limit, limit * believed / needed * _SLACK)
    return allowed.with_memory({name: limit for name, limit in limits.items() if limit is not None})

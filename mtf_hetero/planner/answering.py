"""Answer which devices to use for a network, in words: the verdict, what it takes for granted, and where it flips."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import deadline
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero._support.units import seconds_text
from mtf_hetero.cost.kinds import EFFICIENCY
from mtf_hetero.cost.links import LINKS, parse_link
from mtf_hetero.cost.machines import Machines
from mtf_hetero.planner import fitting, left_out, show, verdict
from mtf_hetero.planner.errors import TooSlowError
from mtf_hetero.planner.finding import Progress, report_nothing
from mtf_hetero.planner.objective import FASTEST, Objective
from mtf_hetero.planner.plan import LeftOut, Plan
from mtf_hetero.planner.planning import Planner

_LEFT_OUT_SECONDS = 20.0  # limit for the analysis of devices left out, if the search took no longer
_LEAST_SECONDS = 2.0  # for the same plan under other assumptions
Assumptions: TypeAlias = Iterator[tuple[str, Machines]]
_HINT = "explain=True says when the devices that are not used would pay off."


@dataclasses.dataclass(frozen=True)
class Network:
    """A network to plan for, or to measure devices on.

    Args:
      name: what the user calls it.
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      about: the data of a step in words; "": they are not known.
      batch_size: examples of a step; None: it is not known which of its dimensions is the batch.
      build_with: returns a `build` for another batch size; None, as for `batch_size`.
    """

    name: str
    build: fitting.Build
    about: str = ""
    batch_size: int | None = None
    build_with: Callable[[int], fitting.Build] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Planned:
    """A plan, and what there is to say about it.

    Args:
      plan: the Plan, which `mtf_hetero.planner.save` writes to a file.
      machines: all devices that there were.
      text: the verdict, the memory, the assumptions, and a table of layers and devices.
      others: what is known of the devices that are left out.
      graph: the mtf.Graph of the step.
    """

    plan: Plan
    machines: Machines
    text: str
    others: tuple[LeftOut, ...]
    graph: mtf.Graph

    def __str__(self) -> str:
        return self.text


def answer(
    network: Network,
    machines: Machines,
    *,
    explains: bool = False,
    seconds: float = 60.0,
    objective: Objective = FASTEST,
    progress: Progress = report_nothing,
    enter: Callable[[str], None] = lambda phase: None,
    hint: str = _HINT,
) -> Planned:
    """Return the plan of a network for some devices, and the text about it.

    Args:
      network: the network.
      machines: the devices.
      explains: whether to say when devices that are not used would pay off.
      seconds: limit of a search that is short of memory.
      objective: as of `Planner.find`.
      progress: as of `Planner.find`.
      enter: called with what is done next, when it begins: the search, and what follows it.
      hint: a line, if devices are left out and nothing explains why.

    Raises:
      search.NoAssignmentError: no layout fits the devices' memory, or keeps to the limit of the objective.
    """
    begin = time.monotonic()
    with tf.Graph().as_default():
        graph = network.build()
        planner = Planner(graph)
        enter("searching for a layout")
        try:
            options = {"planner": planner, "seconds": seconds, "progress": progress, "objective": objective}
            found = fitting.find_fitting(network.build, machines, **options)
        except fitting.ShortOfMemoryError as error:
            enter("looking for the largest batch that fits")
            if network.build_with is None or network.batch_size is None:
                raise
            largest = fitting.largest_batch(
                network.build_with, network.batch_size, machines, error.nearest, seconds=seconds
            )
            raise fitting.ShortOfMemoryError(error.nearest, machines, largest) from None
        took = time.monotonic() - begin
        others: tuple[LeftOut, ...] = ()
        if explains:  # only if asked: of a large network it takes 20 s or more, longer than the plan itself
            enter("looking for when the devices left out would pay off")
            search = fitting.repeated_search(planner, network.build, machines, found, objective)
            others = left_out.devices_left_out(search, machines, found, seconds=max(_LEFT_OUT_SECONDS, took))
        enter("planning under other assumptions")
        changed = _other_assumptions(machines, found, rates=explains)
        flips = _flips(planner, changed, found, max(_LEAST_SECONDS, took if explains else 0.0), objective)
    lines = [verdict.verdict(found, machines.names, others, verdict.price_text(found, machines))]
    about = [f"For {network.about}."] * bool(network.about)
    if assumed := ", ".join(machines.assumed.values()):
        about.append(f"Assumed: {assumed}.")
    lines += [verdict.wrap(" ".join(about))] * bool(about)
    lines += map(verdict.wrap, flips)
    if not explains and len(found.devices) < len(machines.names):
        lines.append(hint)
    parts = ["\n".join(lines), *[show.table(found)] * (len(found.devices) > 1)]
    return Planned(found, machines, "\n\n".join(parts), others, graph)


def _flips(planner: Planner, assumptions: Assumptions, found: Plan, seconds: float, objective: Objective) -> list[str]:
    """Return sentences on the assumptions with which other devices would be used, as far as there is time to tell."""
    lines: list[str] = []
    try:
        with deadline.within(seconds):
            for words, changed in assumptions:
                try:
                    other = planner.find(changed, refines=False, objective=objective)
                except TooSlowError as error:
                    takes = seconds_text(error.fastest.seconds)
                    lines.append(f"{words}, the fastest layout takes {takes} per step, which is too slow.")
                    continue
                deadline.check()
                if set(other.devices) != set(found.devices):
                    sentence = verdict.sentence(other)
                    lines.append(f"{words}, {sentence[0].lower()}{sentence[1:]}")
    except (OutOfTimeError, fitting.NoAssignmentError):
        pass
    return lines


def _other_assumptions(machines: Machines, found: Plan, *, rates: bool) -> Assumptions:
    """Generate the same devices under other assumptions than those that were made, in words and as figures.

    Args:
      machines: the devices.
      found: the plan for them.
      rates: whether to assume other rates of arithmetic too: each takes as long as the first search.
    """
    is_split = len(found.devices) > 1
    if len(machines.names) == 1:
        return
    if "link" in machines.assumed:
        if is_split:
            yield "Over 1 Gbit/s", dataclasses.replace(machines, link=parse_link("1Gbit/s"))
        if len(found.devices) < len(machines.names):
            yield "Over PCIe 4.0", dataclasses.replace(machines, link=LINKS["pcie4"])
    if rates and "rates" in machines.assumed:
        for part in (0.2, 0.6):
            yield f"If steps reach {round(100 * part)} % of that peak", _at(machines, part / EFFICIENCY)


def _at(machines: Machines, factor: float) -> Machines:
    """Return the devices with other rates of arithmetic."""
    devices = (dataclasses.replace(m, flops_per_second=factor * m.flops_per_second) for m in machines.devices)
    return dataclasses.replace(machines, devices=tuple(devices))

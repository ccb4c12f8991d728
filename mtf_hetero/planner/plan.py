"""A plan: a layout for a graph on some devices, with what it is expected to take, as a value and as a file.

The file is JSON that people can read and change; `Plan.layout` is what runs, the rest is why.
"""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mtf_hetero._support import files, loading
from mtf_hetero._support.schema import Many, Number, Record, Table, Text, shorten
from mtf_hetero.layout import Dim, Layout

if TYPE_CHECKING:
    from mtf_hetero.cost.timeline import Span  # TensorFlow, for which a program that reads a file does not wait

SCHEMA = 1
STAGES = "stages"  # in the provenance, of a step whose batch has another name in each stage
_BATCH_OF_STAGE = re.compile(r"stage[0-9]+/(.*/)?batch")
BANDWIDTH, SPEED = "bandwidth", "speed"  # kinds of thresholds
_SECONDS, _SIZES = Number(least=0), Table(Many(Number(integer=True, least=0), least=1))
_LAYER = Record(
    {
        "name": Text(),
        "split": _SIZES,
        "seconds": Many(_SECONDS, least=1),
        "sent_bytes": Many(Number(least=0), least=1),
        "along": Text(),
        "kind": Text(),
    },
    optional=["along", "kind"],
)
_FILE = Record(
    {
        "schema": Number(integer=True, least=SCHEMA, most=SCHEMA),
        "provenance": Table(Text()),
        "devices": Many(Text(least=1), least=1),
        "mesh_shape": Text(least=1),
        "rules": Table(Text(least=1)),
        "shares": Table(Many(Number(above=0), least=1)),
        "slots": Table(Many(Number(integer=True, least=1), least=1)),
        "sizes": _SIZES,
        "extents": Table(Number(integer=True, least=1)),
        "predicted": Record(
            {
                "seconds": _SECONDS,
                "alone": Record({"device": Text(least=1), "seconds": _SECONDS}),
                "gap": Number(least=0),
                "memory_bytes": Many(Number(least=0), least=1),
                "layers": Many(_LAYER),
            }
        ),
    },
    optional=["slots"],
)


class PlanError(ValueError):
    """A file that is not a plan, or one that does not fit the graph or the devices."""


@dataclasses.dataclass(frozen=True)
class LayerPlan:
    """The plan of a layer.

    Args:
      name: what users know it by, "conv1".
      split: {dimension: sizes} of those of its dimensions that are split.
      seconds: that each device computes for it in a step.
      sent_bytes: that each device sends for it in a step.
      along: the dimension of `split` over which its product, most of its work, is split; "" if it is replicated.
      kind: the role of that dimension in the product, one of roles.KINDS or "other"; "" if it is replicated.
    """

    name: str
    split: Mapping[str, tuple[int, ...]]
    seconds: tuple[float, ...]
    sent_bytes: tuple[int, ...]
    along: str = ""
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class RunnerUp:
    """The fastest layout on other devices than a plan's.

    Args:
      devices: names.
      seconds: of a step, predicted.
      waiting_seconds: that the busiest of these devices waits in a step.
    """

    devices: tuple[str, ...]
    seconds: float
    waiting_seconds: float


@dataclasses.dataclass(frozen=True)
class Threshold:
    """The bandwidth or the speed with which devices that a plan leaves out are worth using.

    Args:
      kind: BANDWIDTH, in gigabits a second that each link has at least, or SPEED, a factor on the devices' rates.
      value: of two digits, with which a plan uses these devices; infinity: the time was too short to find one.
      devices: names of the devices that it then uses, beside those of the plan.
      is_exact: whether the next smaller number of two digits is too small; False: the time was too short to tell.
    """

    kind: str
    value: float
    devices: tuple[str, ...]
    is_exact: bool = True


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A device that a plan leaves out.

    Args:
      name: of the device, or of all of its kind that are left out.
      device: the first one of them.
      alone_seconds: of a step on it alone; None: it is short of memory.
      together: the fastest layout that uses it, and maybe devices of the plan; None without one.
      threshold: from which it pays off; None: unknown, or none.
    """

    name: str
    device: str
    alone_seconds: float | None
    together: RunnerUp | None
    threshold: Threshold | None


def has_stages(names: Iterable[str]) -> bool:
    """Return whether names of dimensions are of an imported step whose batch has another name in each stage."""
    return any(map(_BATCH_OF_STAGE.match, names))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A layout and what is expected of it.

    Args:
      devices: one per processor.
      layout: how the tensors lie on them.
      seconds: of a step, predicted.
      alone: (the fastest device that has the memory, or else the fastest, seconds of a step on it alone, predicted).
      gap: by how much a better plan may cost less, of the costs that the search added up, as a fraction.
      layers: in the graph's order.
      memory_bytes: that each device needs, predicted.
      extents: {split dimension: its largest extent}.
      provenance: {what: text}.
      timeline: what each device does when, for a picture.
      runner_up: the fastest layout on a device that the plan leaves out; None if there is none.
      alone_fits: whether the device of `alone` has the memory.

    A file does not hold the last three, and two plans are equal whether or not these are.
    """

    devices: tuple[str, ...]
    layout: Layout
    seconds: float
    alone: tuple[str, float]
    gap: float
    layers: tuple[LayerPlan, ...]
    memory_bytes: tuple[int, ...]
    extents: Mapping[str, int]
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeline: "tuple[Span, ...]" = dataclasses.field(default=(), compare=False, repr=False)
    runner_up: RunnerUp | None = dataclasses.field(default=None, compare=False)
    alone_fits: bool = dataclasses.field(default=True, compare=False)

    @property
    def parts(self) -> int:
        """The number of parts in which a device computes its examples, one after another; 1 without slots."""
        return max((count for _, slots in self.layout.slots for count in slots), default=1)

    @property
    def is_pipeline(self) -> bool:
        """Return whether devices compute other layers than others do, one part of the batch after another."""
        users = {tuple(map(bool, sizes)) for _, sizes in self.layout.without_slots().sizes}
        return self.parts > 1 and len(users) > 1

    @property
    def has_stages(self) -> bool:
        """Return whether the step's batch has another name in each stage, also if that of the first alone is split."""
        return STAGES in self.provenance or has_stages(name for name, _ in self.layout.rules)

    @property
    def parts_text(self) -> str:
        """Return ", in 4 parts" where devices compute their examples so; "" without parts, and of a pipeline."""
        return f", in {self.parts} parts" if self.parts > 1 and not self.is_pipeline else ""

    def check(self, dims: Iterable[Dim], devices: Iterable[str]) -> None:
        """Raise an error unless the plan is for a graph with these dimensions, and for these devices.

        Raises:
          PlanError: in one line, what differs.
        """
        from mtf_hetero.lowering import names  # with TensorFlow, for which a program that reads a file does not wait

        devices = tuple(devices)
        if devices != self.devices:
            raise PlanError(
                f"the plan is for the devices {', '.join(self.devices)}, but there are {', '.join(devices)}; give the "
                "same with --devices, or plan anew"
            )
        largest: dict[str, int] = {}
        for dim in dims:
            largest[dim.name] = max(largest.get(dim.name, 0), dim.size)
        try:
            names.check(self.layout, largest, largest)
        except ValueError as error:
            raise PlanError(f"the plan does not fit the graph: {error}; plan anew") from error
        for name, extent in self.extents.items():
            if name not in largest:
                raise PlanError(f"the plan splits dimension {name!r}, which the graph does not have; plan anew")
            if largest[name] != extent:
                raise PlanError(
                    f"the plan splits dimension {name!r} of {extent}, but in the graph it has {largest[name]}; build "
                    "the graph as it was planned, or plan anew"
                )


def dumps(plan: Plan) -> str:
    """Return a plan as JSON."""
    value = {
        "schema": SCHEMA,
        "provenance": dict(plan.provenance),
        "devices": list(plan.devices),
        "mesh_shape": plan.layout.mesh_text,
        "rules": dict(plan.layout.rules),
        "shares": {axis: list(shares) for axis, shares in plan.layout.shares},
        "slots": {axis: list(slots) for axis, slots in plan.layout.slots},
        "sizes": {name: list(sizes) for name, sizes in plan.layout.sizes},
        "extents": dict(plan.extents),
        "predicted": {
            "seconds": plan.seconds,
            "alone": {"device": plan.alone[0], "seconds": plan.alone[1]},
            "gap": plan.gap,
            "memory_bytes": list(plan.memory_bytes),
            "layers": [dataclasses.asdict(layer) for layer in plan.layers],
        },
    }
    return json.dumps(value, indent=1) + "\n"


def loads(text: str, *, source: str = "the text") -> Plan:
    """Return a plan from JSON.

    Raises:
      PlanError: in one line, what is wrong with it.
    """
    try:
        return _convert(loading.parse_json(text))
    except ValueError as error:
        raise PlanError(f"{source} is not a plan: {error}; plan anew") from error


def _convert(value: object) -> Plan:
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        found = value.get("schema") if isinstance(value, dict) else None
        raise ValueError(f"it has schema {shorten(found)}, not {SCHEMA}")
    value = _FILE.read(value)
    predicted = value["predicted"]
    alone, layers = predicted["alone"], tuple(LayerPlan(**layer) for layer in predicted["layers"])
    plan = Plan(
        devices=value["devices"],
        layout=Layout(value["mesh_shape"], value["rules"], value["shares"], value["sizes"], value.get("slots", {})),
        seconds=predicted["seconds"],
        alone=(alone["device"], alone["seconds"]),
        gap=predicted["gap"],
        layers=layers,
        memory_bytes=predicted["memory_bytes"],
        extents=value["extents"],
        provenance=value["provenance"],
    )
    _check_consistent(plan)
    return plan


def _check_consistent(plan: Plan) -> None:
    """Raise ValueError if two parts of a plan contradict each other."""
    layout, count = plan.layout, len(plan.devices)
    if count != layout.device_count:
        raise ValueError(f"{count} devices for the mesh {layout.mesh_text}")
    if len(set(plan.devices)) < count:
        raise ValueError("a device is given twice")
    if len(plan.memory_bytes) != count:
        raise ValueError(f"memory_bytes has {len(plan.memory_bytes)} numbers for {count} devices")
    for layer in plan.layers:
        if not len(layer.seconds) == len(layer.sent_bytes) == count:
            raise ValueError(
                f"seconds and sent_bytes of layer {layer.name!r} need one number for each of {count} devices"
            )
    _check_rules(plan)


def _check_rules(plan: Plan) -> None:
    """Raise ValueError if rules, sizes and extents contradict each other."""
    layout = plan.layout
    axes, rules, sizes = dict(layout.mesh_shape), dict(layout.rules), dict(layout.sizes)
    for dim, axis in rules.items():
        if axis not in axes:
            raise ValueError(
                f"a rule splits {dim!r} over axis {axis!r}, which the mesh {layout.mesh_text} does not have"
            )
    for dim, extent in plan.extents.items():
        if dim not in rules:
            raise ValueError(f"extents name {dim!r}, which no rule splits")
        if sum(sizes.get(dim, (extent,))) != extent:
            raise ValueError(f"sizes of {dim!r} are {shorten(sizes[dim])}, whose sum is not its extent, {extent}")


def save(plan: Plan, path: str | os.PathLike) -> None:
    """Write a plan to a file, which is either complete or not there.

    Raises:
      PlanError: the file cannot be written.
    """
    try:
        files.write_text(pathlib.Path(path), dumps(plan))
    except OSError as error:
        raise PlanError(f"plan {str(path)!r} cannot be written: {error.strerror}; name another file") from error


def load(path: str | os.PathLike) -> Plan:
    """Read a plan from a file.

    Raises:
      PlanError: it cannot be read, or is not a plan.
    """
    try:
        text = files.read_text(path)
    except ValueError as error:
        raise PlanError(f"plan {str(path)!r} cannot be read: {error}; name another file") from error
    return loads(text, source=str(path))

"""Devices that need not be here: their figures, and the links between them, from numbers or a file.

    devices:
      - {kind: RTX-3090, count: 2}
      - {kind: GTX-1080}
      - {name: cpu, flops_per_second: 8e11, bytes_per_second: 5e10, memory_bytes: 64e9}
    link: {latency_seconds: 5e-5, bytes_per_second: 1.2e9}

`flops_per_second` and `bytes_per_second` are the rates that a step reaches. `peak_flops_per_second` and
`peak_bytes_per_second` are the peaks of a data sheet, of which a step reaches a part, as of the peaks of a kind. The
kinds are in cost/kinds.py.
"""

import collections
import dataclasses
import itertools
import json
import math
import numbers
import os
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mtf_hetero._support import loading
from mtf_hetero._support.schema import Many, Number, Record, Table, Text
from mtf_hetero.cost.kinds import EFFICIENCY, KINDS, KindName

_PEAKS = MappingProxyType(  # {entry: (the rate of which it is a peak, the part that a step reaches)}
    {
        "peak_flops_per_second": ("flops_per_second", EFFICIENCY),
        "peak_bytes_per_second": ("bytes_per_second", 1.0),
    }
)
_LAUNCH_SECONDS = 1e-5


def is_number(x: object) -> bool:
    """Return whether something is a finite real number, and no bool."""
    return isinstance(x, numbers.Real) and not isinstance(x, bool) and math.isfinite(x)


@dataclasses.dataclass(frozen=True)
class Link:
    """A link from one device to another.

    Args:
      latency_seconds: of a message, before any byte.
      bytes_per_second: bandwidth.

    Raises:
      ValueError: a latency below zero, or a bandwidth that is not positive.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (is_number(self.latency_seconds) and self.latency_seconds >= 0):
            raise ValueError(f"latency_seconds of a link is {self.latency_seconds!r}; it must be zero or more")
        if not (is_number(self.bytes_per_second) and self.bytes_per_second > 0):
            raise ValueError(f"bytes_per_second of a link is {self.bytes_per_second!r}; it must be greater than zero")

    def seconds(self, message_bytes: float) -> float:
        """Return the seconds of a message."""
        return self.latency_seconds + message_bytes / self.bytes_per_second


_LINK = Link(5e-5, 1e9)  # ten gigabits a second


@dataclasses.dataclass(frozen=True)
class Machine:
    """The figures of one device.

    Args:
      name: of the device, as a layout's user gives it.
      flops_per_second: floating-point operations of convolutions and matrix products, as reached.
      bytes_per_second: of its memory, as elementwise operations reach it.
      memory_bytes: limit for tensors; None: no limit.
      operation_seconds: the least cost of an operation.
      seconds_per_byte: of its processor, for a byte that it sends or receives.
      seconds_per_message: of its processor, for a message of any size.
      factors: {kind of operation: its measured seconds, over those by the rates}; absent: 1.
      alone_factor: seconds while the other devices rest, over those by the rates: devices may share a bus.
      granule: the number of output channels of a convolution that it computes at a time: fewer take as long.

    Raises:
      ValueError: a number that is out of range.

    Example:
      >>> Machine("gpu:0", 4e12, 3e11).seconds(8e9, 1e6)
      0.00201
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    memory_bytes: float | None = None
    operation_seconds: float = _LAUNCH_SECONDS
    seconds_per_byte: float = 0.0
    seconds_per_message: float = 0.0
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    alone_factor: float = 1.0
    granule: int = 1

    def __post_init__(self) -> None:
        for field in ("flops_per_second", "bytes_per_second", "memory_bytes", "alone_factor"):
            value = getattr(self, field)
            if value is not None and not (is_number(value) and value > 0):
                raise ValueError(f"{field} of device {self.name!r} is {value!r}; it must be greater than zero")
        if not (is_number(self.granule) and self.granule >= 1 and self.granule == int(self.granule)):
            raise ValueError(
                f"granule of device {self.name!r} is {self.granule!r}; it must be a whole number, 1 or more"
            )
        object.__setattr__(self, "granule", int(self.granule))  # a file has 16.0
        for field in ("operation_seconds", "seconds_per_byte", "seconds_per_message"):
            value = getattr(self, field)
            if not (is_number(value) and value >= 0):
                raise ValueError(f"{field} of device {self.name!r} is {value!r}; it must be zero or more")
        for kind, factor in self.factors.items():
            if not (is_number(factor) and factor >= 0):
                raise ValueError(f"factor {kind!r} of device {self.name!r} is {factor!r}; it must be zero or more")

    def seconds(self, flops: float, moved_bytes: float, kind: str = "") -> float:
        """Return the seconds of an operation: the longer of arithmetic and memory, as measured for its kind."""
        factor = self.factors.get(kind, 1.0)
        if not factor or not (flops or moved_bytes):
            return 0.0
        rated = max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)
        return self.operation_seconds + factor * rated

    def alone(self) -> "Machine":
        """Return the same device while the others rest."""
        return dataclasses.replace(
            self,
            flops_per_second=self.flops_per_second / self.alone_factor,
            bytes_per_second=self.bytes_per_second / self.alone_factor,
            alone_factor=1.0,
        )

    def sending_seconds(self, message_bytes: float) -> float:
        """Return the seconds of its processor for a message that it sends or receives."""
        return self.seconds_per_message + message_bytes * self.seconds_per_byte


@dataclasses.dataclass(frozen=True)
class Machines:
    """The devices of a plan and the links between them.

    Args:
      devices: each with a name of its own.
      link: between two devices that no other entry names.
      links: {(name, name): Link}, either way.
      step_seconds: of a step, beside the devices' work.

    Raises:
      ValueError: no device, two of one name, or a link of an unknown device.
    """

    devices: tuple[Machine, ...]
    link: Link = _LINK
    links: Mapping[tuple[str, str], Link] = dataclasses.field(default_factory=dict)
    step_seconds: float = 0.0

    def __post_init__(self) -> None:
        names = self.names
        if not names:
            raise ValueError("there is no device; give one or more")
        known = set(names)
        if len(known) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"device {twice!r} is given twice; give each device a name of its own")
        for pair in self.links:
            if not known.issuperset(pair):
                first = ", ".join([*names[:20], *["..."] * (len(names) > 20)])
                raise ValueError(f"a link joins {pair[0]!r} and {pair[1]!r}; the devices are {first}")

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' names, in their order."""
        return tuple(machine.name for machine in self.devices)

    def link_between(self, source: int, target: int) -> Link:
        """Return the link from one device to another, by their numbers."""
        a, b = self.devices[source].name, self.devices[target].name
        return self.links.get((a, b)) or self.links.get((b, a)) or self.link

    def only(self, numbers: Sequence[int]) -> "Machines":
        """Return some of the devices, while the others rest: a single one is then faster."""
        some = self.some(numbers)
        return some if len(numbers) > 1 else dataclasses.replace(some, devices=(some.devices[0].alone(),))

    def by_name(self, names: Iterable[str]) -> "Machines":
        """Return the devices of these names, while the others rest."""
        return self.only(list(map(self.names.index, names)))

    def some(self, numbers: Sequence[int]) -> "Machines":
        """Return some of the devices."""
        names = {self.devices[number].name for number in numbers}
        links = {pair: link for pair, link in self.links.items() if set(pair) <= names}
        return dataclasses.replace(self, devices=tuple(self.devices[number] for number in numbers), links=links)

    def with_memory(self, memory_bytes: Mapping[str, float]) -> "Machines":
        """Return the same devices with other limits of memory for some: {name: bytes}."""
        devices = (dataclasses.replace(m, memory_bytes=memory_bytes.get(m.name, m.memory_bytes)) for m in self.devices)
        return dataclasses.replace(self, devices=tuple(devices))


def device_kinds(machines: Machines, subsets: Iterable[Collection[int]]) -> list[Hashable]:
    """Return a key for each device that equal devices share: its figures, and its subsets."""
    named = {name for pair in machines.links for name in pair}
    subsets = [frozenset(subset) for subset in subsets]
    kinds: list[Hashable] = []
    for number, machine in enumerate(machines.devices):
        figures = tuple(
            getattr(machine, f.name) for f in dataclasses.fields(machine) if f.name not in ("name", "factors")
        )
        own = machine.name if machine.name in named else ""
        is_in = tuple(number in subset for subset in subsets)
        kinds.append((figures, tuple(sorted(machine.factors.items())), own, is_in))
    return kinds


MOST_DEVICES = 10_000
_RATE, _SECONDS = Number(least=1, of_text=True), Number(least=0, most=1e6, of_text=True)
_NUMBERS: Mapping[str, Number] = {  # of a Machine
    **dict.fromkeys(("flops_per_second", "bytes_per_second", "memory_bytes"), _RATE),
    "alone_factor": Number(least=1e-3, most=1e3, of_text=True),
    **dict.fromkeys(("operation_seconds", "seconds_per_byte", "seconds_per_message"), _SECONDS),
    "granule": Number(integer=True, least=1, most=1e6, of_text=True),
}
_DEVICE = {
    "name": Text(least=1, of_number=True),
    "kind": KindName(),
    "count": Number(integer=True, least=1, most=MOST_DEVICES),
    **_NUMBERS,
    **dict.fromkeys(_PEAKS, _RATE),
    "factors": Table(Number(least=0, most=1e6, of_text=True), "an object, {kind of operation: factor}"),
}
_LINK_FIELDS = {"latency_seconds": _SECONDS, "bytes_per_second": _RATE}
_ENDS = {"from": Text(least=1, of_number=True), "to": Text(least=1, of_number=True)}
SCHEMA = Record(
    {
        "devices": Many(
            Record(_DEVICE, _DEVICE),
            least=1,
            most=MOST_DEVICES,
            description=f"a list of 1 to {MOST_DEVICES} devices, such as [{{kind: V100, count: 2}}]",
        ),
        "link": Record(_LINK_FIELDS),
        "links": Many(Record({**_ENDS, **_LINK_FIELDS})),
        "step_seconds": _SECONDS,
    },
    optional=["link", "links", "step_seconds"],
)


def load(path: str | os.PathLike) -> Machines:
    """Read devices from a YAML or JSON file, in the form of the module's docstring.

    Raises:
      ValueError: in one line, what is wrong with it.
    """
    try:
        return convert_to_machines(loading.load(path, yaml_for="plan"))
    except ValueError as error:
        raise ValueError(
            f"devices file {str(path)!r} cannot be read: {error}; correct it, or name another file"
        ) from error


def convert_to_machines(value: object) -> Machines:
    """Convert to devices from {"devices": [...], "link": {...}, "links": [...]}, as a file holds them.

    Raises:
      ValueError: an entry that is missing, unknown or out of range.
    """
    value = SCHEMA.read(value)
    entries = value["devices"]
    if (total := sum(entry.get("count", 1) for entry in entries)) > MOST_DEVICES:
        raise ValueError(f"devices are {total} in all, counted; at most {MOST_DEVICES} can be planned for")
    devices = list(itertools.chain.from_iterable(itertools.starmap(_devices, enumerate(entries))))
    named, taken, counts = [], {}, collections.Counter(name for name, _ in devices)
    for name, fields in devices:
        number = taken[name] = taken.get(name, -1) + 1
        named.append(Machine(name if counts[name] == 1 else f"{name}:{number}", **fields))
    links: dict[tuple[str, str], Link] = {}
    for entry in value.get("links", ()):
        ends = entry["from"], entry["to"]
        if ends in links or ends[0] == ends[1]:
            raise ValueError(
                f"links join {ends[0]!r} and {ends[1]!r} twice, or a device and itself; give each link once"
            )
        links[ends] = _link(entry)
    link = _link(value["link"]) if "link" in value else _LINK
    return Machines(tuple(named), link, links, value.get("step_seconds", 0.0))


Entry = Mapping[str, Any]  # of a file


def _devices(number: int, entry: Entry) -> list[tuple[str, dict[str, Any]]]:
    fields: dict[str, Any] = {}
    if "kind" in entry:
        kind = KINDS[entry["kind"]]
        fields = {
            "flops_per_second": EFFICIENCY * kind.flops_per_second,
            "bytes_per_second": kind.bytes_per_second,
            "memory_bytes": kind.memory_bytes,
        }
    fields |= _reached(entry, f"devices[{number}]")
    fields |= {name: entry[name] for name in (*_NUMBERS, "factors") if name in entry}
    if missing := [name for name in ("flops_per_second", "bytes_per_second") if name not in fields]:
        raise ValueError(f"devices[{number}] has no {missing[0]}; give it, or peak_{missing[0]}, or a kind")
    name = entry.get("name", entry.get("kind", "device"))
    return [(name, fields)] * entry.get("count", 1)


def _reached(entry: Entry, device: str) -> dict[str, float]:
    """Return what a step reaches of the peaks that an entry has.

    Raises:
      ValueError: the entry has both, or says that a step reaches the peak of its kind.
    """
    reached = {}
    for peak, (name, part) in _PEAKS.items():
        if peak in entry and name in entry:
            raise ValueError(f"{device} has {peak} and {name}, of which a step reaches all; give one of the two")
        if peak in entry:
            reached[name] = part * entry[peak]
        elif name in entry and part < 1 and "kind" in entry:
            most = getattr(KINDS[entry["kind"]], name)
            if entry[name] >= most:
                raise ValueError(
                    f"{device}.{name} is {entry[name]:g}, and the peak of a {entry['kind']} is {most:g}: {name} is "
                    f"what a step reaches; call a datasheet's figure {peak}"
                )
    return reached


def _link(entry: Entry) -> Link:
    return Link(entry["latency_seconds"], entry["bytes_per_second"])


def dumps(machines: Machines) -> str:
    """Return devices as JSON, which `load` reads from a file."""
    devices = [
        {name: entry for name, entry in dataclasses.asdict(machine).items() if entry not in (None, {})}
        for machine in machines.devices
    ]
    links = [{"from": a, "to": b, **dataclasses.asdict(link)} for (a, b), link in machines.links.items()]
    value = {"devices": devices, "link": dataclasses.asdict(machines.link), "links": links}
    return json.dumps({**value, "step_seconds": machines.step_seconds}, indent=1) + "\n"

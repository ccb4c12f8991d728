"""Devices from a file, or from words: "2 x RTX 3090 at 0.22, GTX 1080 Ti at 0.08".

    devices:
      - RTX 3090
      - {kind: GTX-1080-Ti, count: 2, price_per_hour: 0.08}
      - {name: cpu, flops_per_second: 8e11, bytes_per_second: 5e10, memory_bytes: 64e9}
    link: 10Gbit/s

`flops_per_second` and `bytes_per_second` are the rates that a step reaches. `peak_flops_per_second` and
`peak_bytes_per_second` are the peaks of a data sheet, of which a step reaches a part, as of the peaks of a kind. The
kinds are in cost/kinds.py, and words for links in cost/links.py. Devices with the same `machine` are in one machine:
`inner_link` is between them, and `link` between machines.
"""

import collections
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from mtf_hetero._support import loading
from mtf_hetero._support.schema import Many, Number, OrWords, Record, Table, Text
from mtf_hetero.cost.kinds import EFFICIENCY, KINDS, KindName
from mtf_hetero.cost.links import LINK_FIELDS, LINK_VALUE, LINKS, RATE, SECONDS, Link
from mtf_hetero.cost.machines import FACTORS, LINK, Machine, Machines

_PEAKS = MappingProxyType(  # {entry: (the rate of which it is a peak, the part that a step reaches)}
    {
        "peak_flops_per_second": ("flops_per_second", EFFICIENCY),
        "peak_bytes_per_second": ("bytes_per_second", 1.0),
    }
)
Entry: TypeAlias = dict[str, Any]  # of a file
_INNER = "pcie4"  # between devices of one machine, if nobody names another link
_WORDS = re.compile(
    r"(?:(?P<name>[^=]+)=)?\s*(?:(?P<count>\d+)\s*[x*]\s*)?(?P<kind>.+?)(?:\s+at\s+(?P<price_per_hour>.+))?",
    re.IGNORECASE,
)

MOST_DEVICES = 10_000
_NUMBERS: Mapping[str, Number] = {  # of a Machine
    **dict.fromkeys(("flops_per_second", "bytes_per_second", "memory_bytes"), RATE),
    "alone_factor": Number(least=1e-3, most=1e3, of_text=True),
    **dict.fromkeys(("operation_seconds", "seconds_per_byte", "seconds_per_message"), SECONDS),
    "granule": Number(integer=True, least=1, most=1e6, of_text=True),
    "price_per_hour": Number(least=0, of_text=True),
}
_DEVICE = {
    "name": Text(least=1, of_number=True),
    "kind": KindName(),
    "machine": Text(least=1, of_number=True),
    "count": Number(integer=True, least=1, most=MOST_DEVICES),
    **_NUMBERS,
    **dict.fromkeys(_PEAKS, RATE),
    **dict.fromkeys(FACTORS, Table(Number(least=0, most=1e6, of_text=True), "an object, {kind of operation: factor}")),
}
_ENDS = {"from": Text(least=1, of_number=True), "to": Text(least=1, of_number=True)}


def _entry(words: str) -> Entry:
    """Return what "gpu:0=2 x RTX 3090 at 0.22" says, as the entry of a file."""
    match = _WORDS.fullmatch(words.strip())
    if match is None:
        return {"kind": words}
    entry = {name: text.strip() for name, text in match.groupdict().items() if text}
    return entry | {"count": int(entry["count"])} if "count" in entry else entry


SCHEMA = Record(
    {
        "devices": Many(
            OrWords(Record(_DEVICE, _DEVICE), _entry, "2 x RTX 3090"),
            least=1,
            most=MOST_DEVICES,
            description=f"a list of 1 to {MOST_DEVICES} devices, such as [{{kind: V100, count: 2}}]",
        ),
        "link": LINK_VALUE,
        "inner_link": LINK_VALUE,
        "links": Many(Record({**_ENDS, **LINK_FIELDS})),
        "step_seconds": SECONDS,
    },
    optional=["link", "inner_link", "links", "step_seconds"],
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
    links = _inner_links(value, [machine.name for machine in named])
    seen: set[tuple[str, str]] = set()
    for entry in value.get("links", ()):
        ends = entry["from"], entry["to"]
        if ends in seen or ends[0] == ends[1]:
            raise ValueError(
                f"links join {ends[0]!r} and {ends[1]!r} twice, or a device and itself; give each link once"
            )
        seen.add(ends)
        links.pop(ends[::-1], None)
        links[ends] = Link(**{field: entry[field] for field in LINK_FIELDS})
    link = Link(**value["link"]) if "link" in value else LINK
    return Machines(tuple(named), link, links, value.get("step_seconds", 0.0), _assumptions(value, named, links))


def parse_devices(text: str, link: str | Link | None = None, inner_link: str | Link | None = None) -> Machines:
    """Return devices that a user names in words.

    Args:
      text: kinds with commas between them, "2 x RTX 3090, GTX 1080 Ti"; a semicolon begins another machine. A device
        may have a name, "gpu:0=RTX 3090", and a price per hour, "RTX 3090 at 0.22".
      link: between devices, or between machines; or its words, as of `links.parse_link`; None: 10 Gbit/s.
      inner_link: between the devices of a machine; None: PCIe 4.0 with 16 lanes.

    Raises:
      ValueError: a kind or a link that is not known, with the nearest names.

    Example:
      >>> parse_devices("2 x RTX 3090, GTX 1080 Ti", "pcie4").names
      ('RTX-3090:0', 'RTX-3090:1', 'GTX-1080-Ti')
    """
    groups = [[_entry(part) for part in group.split(",") if part.strip()] for group in text.split(";")]
    if len(groups) > 1:
        groups = [[{**entry, "machine": str(number)} for entry in group] for number, group in enumerate(groups)]
    given = {"link": link, "inner_link": inner_link}
    value = {name: dataclasses.asdict(x) if isinstance(x, Link) else x for name, x in given.items() if x is not None}
    return convert_to_machines({"devices": list(itertools.chain(*groups)), **value})


def _inner_links(value: Entry, names: Sequence[str]) -> dict[tuple[str, str], Link]:
    """Return the links between the devices of each machine that the file groups."""
    groups = [entry.get("machine") for entry in value["devices"] for _ in range(entry.get("count", 1))]
    if all(group is None for group in groups):
        return {}
    link = Link(**value["inner_link"]) if "inner_link" in value else LINKS[_INNER]
    pairs = itertools.combinations(zip(names, groups, strict=True), 2)
    return {(a, b): link for (a, one), (b, other) in pairs if one is not None and one == other}


def _assumptions(value: Entry, devices: Sequence[Machine], links: Mapping[tuple[str, str], Link]) -> Mapping[str, str]:
    """Return in words what the file does not say, as of `Machines.assumed`."""
    found = {}
    if "link" not in value and len(links) < len(devices) * (len(devices) - 1) // 2:
        found["link"] = f"10 Gbit/s between {'machines' if links else 'devices'}"
    if "inner_link" not in value and any("machine" in entry for entry in value["devices"]):
        found["inner_link"] = "PCIe 4.0 within a machine"
    if any("flops_per_second" not in entry for entry in value["devices"]):
        found["rates"] = f"steps reach {round(100 * EFFICIENCY)} % of the peak arithmetic"
    return found


def _devices(number: int, entry: Entry) -> list[tuple[str, Entry]]:
    fields: Entry = {}
    if "kind" in entry:
        kind = KINDS[entry["kind"]]
        fields = {
            "flops_per_second": EFFICIENCY * kind.flops_per_second,
            "bytes_per_second": kind.bytes_per_second,
            "memory_bytes": kind.memory_bytes,
        }
    fields |= _reached(entry, f"devices[{number}]")
    fields |= {name: entry[name] for name in (*_NUMBERS, *FACTORS) if name in entry}
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


def dumps(machines: Machines) -> str:
    """Return devices as JSON, which `load` reads from a file."""
    devices = [
        {name: entry for name, entry in dataclasses.asdict(machine).items() if entry not in (None, {})}
        for machine in machines.devices
    ]
    links = [{"from": a, "to": b, **dataclasses.asdict(link)} for (a, b), link in machines.links.items()]
    value = {"devices": devices, "link": dataclasses.asdict(machines.link), "links": links}
    return json.dumps({**value, "step_seconds": machines.step_seconds}, indent=1) + "\n"

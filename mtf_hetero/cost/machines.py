"""Devices that need not be here: their figures, and the links between them."""

import dataclasses
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from mtf_hetero.cost.links import Link, is_number

_LAUNCH_SECONDS = 1e-5
FACTORS = ("factors", "moved_factors")  # fields of a Machine: tables of kinds of operations
_SECONDS_PER_HOUR = 3600
LINK = Link(5e-5, 1e9)  # ten gigabits a second, if nobody names another one


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
      moved_factors: {kind of product: the time of the bytes that it moves, over that by the rate}. It adds to the time
        of arithmetic, on which the factor of the kind then is: small parts of a batch read the same weights. Absent:
        the longer of the two times counts.
      alone_factor: seconds while the other devices rest, over those by the rates: devices may share a bus.
      granule: the number of output channels of a convolution that it computes at a time: fewer take as long.
      price_per_hour: in any currency; None: unknown.

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
    moved_factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    alone_factor: float = 1.0
    granule: int = 1
    price_per_hour: float | None = None

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
        least_zero = ["operation_seconds", "seconds_per_byte", "seconds_per_message"]
        for field in [*least_zero, *["price_per_hour"] * (self.price_per_hour is not None)]:
            value = getattr(self, field)
            if not (is_number(value) and value >= 0):
                raise ValueError(f"{field} of device {self.name!r} is {value!r}; it must be zero or more")
        for kind, factor in (*self.factors.items(), *self.moved_factors.items()):
            if not (is_number(factor) and factor >= 0):
                raise ValueError(f"factor {kind!r} of device {self.name!r} is {factor!r}; it must be zero or more")

    def seconds(self, flops: float, moved_bytes: float, kind: str = "") -> float:
        """Return the seconds of an operation, of arithmetic and of memory, as measured for its kind."""
        factor, moved_factor = self.factors.get(kind, 1.0), self.moved_factors.get(kind)
        if not (factor or moved_factor) or not (flops or moved_bytes):
            return 0.0
        computing, moving = flops / self.flops_per_second, moved_bytes / self.bytes_per_second
        if moved_factor is None:
            return self.operation_seconds + factor * max(computing, moving)
        return self.operation_seconds + factor * computing + moved_factor * moving

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
      assumed: {"link", "inner_link" or "rates": in words what nobody said of it, and is taken for granted}.

    Raises:
      ValueError: no device, two of one name, or a link of an unknown device.
    """

    devices: tuple[Machine, ...]
    link: Link = LINK
    links: Mapping[tuple[str, str], Link] = dataclasses.field(default_factory=dict)
    step_seconds: float = 0.0
    assumed: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

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

    def price(self, seconds: float) -> float | None:
        """Return the price of all devices for some seconds; None: a device has no price."""
        prices = [machine.price_per_hour for machine in self.devices]
        known = [price for price in prices if price is not None]
        return math.fsum(known) * seconds / _SECONDS_PER_HOUR if len(known) == len(prices) else None

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

    def with_memory(self, memory_bytes: Mapping[str, float] | None) -> "Machines":
        """Return the same devices with other limits of memory for some, {name: bytes}; None: without any limit."""
        own = {m.name: m.memory_bytes for m in self.devices}
        limits = dict.fromkeys(own) if memory_bytes is None else {**own, **memory_bytes}
        devices = (dataclasses.replace(m, memory_bytes=limits[m.name]) for m in self.devices)
        return dataclasses.replace(self, devices=tuple(devices))


def device_kinds(machines: Machines, subsets: Iterable[Collection[int]]) -> list[Hashable]:
    """Return a key for each device that equal devices share: its figures without the price, and its subsets."""
    named = {name for pair in machines.links for name in pair}
    subsets = [frozenset(subset) for subset in subsets]
    kinds: list[Hashable] = []
    for number, machine in enumerate(machines.devices):
        others = ("name", "price_per_hour", *FACTORS)
        figures = tuple(getattr(machine, f.name) for f in dataclasses.fields(machine) if f.name not in others)
        factors = tuple(tuple(sorted(getattr(machine, name).items())) for name in FACTORS)
        own = machine.name if machine.name in named else ""
        is_in = tuple(number in subset for subset in subsets)
        kinds.append((figures, factors, own, is_in))
    return kinds

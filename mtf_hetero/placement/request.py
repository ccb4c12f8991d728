"""The devices, layout and limits that a user asks for, as one checked value.

No TensorFlow, so that a mistake is reported at once.
"""

import dataclasses
import math
import numbers
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mtf_hetero._support.numbers import AUTO
from mtf_hetero.cluster.devices import MOST_CPUS, Device
from mtf_hetero.cluster.probe import PORTS, may_change
from mtf_hetero.layout.convert import convert_to_mesh_shape
from mtf_hetero.placement.given import Numbers
from mtf_hetero.planner import plan as plan_lib

if TYPE_CHECKING:
    from mtf_hetero.cluster import Cluster, LocalCluster
    from mtf_hetero.layout import Layout
    from mtf_hetero.planner.plan import Plan

LayoutLike: TypeAlias = "str | os.PathLike[str] | Layout | Plan"
WorkersLike: TypeAlias = "str | Sequence[str] | Cluster | LocalCluster | None"
SpeedLike: TypeAlias = str | Sequence[float] | None
SlotsLike: TypeAlias = int | str | Sequence[int] | None
MemoryLike: TypeAlias = float | str | Sequence[float] | None  # gigabytes
AXIS = "all"  # the mesh axis, if the user names none
EVEN = "even"
HYBRID = "hybrid"
STAGES = "stages"
_ENTER = "write `with LocalCluster([1, 0.5]) as workers:`"


@dataclasses.dataclass(frozen=True)
class Request:
    """The devices, the layout and the limits that a user asks for.

    Args:
      layout: AUTO; the name of a recipe; rules such as "conv1/filters:all"; a Layout; a Plan, or the path of its file.
      list_speed: one number per device, [70, 25, 5] or "70,25,5"; of several mesh axes, "rows:2,1;cols:3,1"; AUTO:
        measured, and split only if that wins; None: an even split.
      mesh_shape: mesh axes and their sizes, "rows:2;cols:2"; None: one axis, "all", over all devices.
      devices: "gpu:0", "worker:1/cpu:0", one per processor, in a sequence or a text with commas; None: those of a plan;
        else all GPUs, or "cpu:0" without a GPU; with workers, all their devices.
      workers: "host:port" of each, in a sequence or a text with commas; "@hosts.txt": a file with one per line; a
        Cluster or an entered LocalCluster: its workers; None: those that the environment names, if any.
      port: of this process, to which workers connect; None: any free one.
      local_cluster: cores of each worker to start on this machine, "1.0,0.5"; None: none is started.
      memory_limit: gigabytes that each device may use, [16, 8, 8] or "16,8,8"; None: what TensorFlow reports.
      measure_seconds: time limit for measuring, planning and trials; None: as of `auto.choose`.
      slots: of each device, 4 or [4, 2] or "4,2": it computes so many parts of its part one after another, which keeps
        less in memory at a time; None: one.
      dense_shares: of the hybrid recipe, "2,1"; None: as `list_speed`.
      are_flags: whether the user gave these as flags of a program, so that an error names "--layout".

    Raises:
      ValueError: a wrong value, or two values of which one excludes the other.

    Example:
      >>> Request(layout="batch", list_speed=[70, 25, 5]).shares
      {'all': (70.0, 25.0, 5.0)}
    """

    layout: LayoutLike = AUTO
    list_speed: SpeedLike | Numbers = None
    mesh_shape: str | None = None
    devices: Any = None
    workers: Any = None
    port: int | None = None
    local_cluster: str | None = None
    memory_limit: "MemoryLike | Numbers" = None
    measure_seconds: float | None = None
    dense_shares: str | Numbers | None = None
    slots: "SlotsLike | Numbers" = None
    are_flags: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.layout, os.PathLike):
            object.__setattr__(self, "layout", os.fspath(self.layout))
        if self.workers is not None and self.local_cluster is not None:
            raise ValueError(
                f"{self.quote('workers')} and {self.name('local_cluster')} {self.local_cluster!r}; give one of the two"
            )
        for name, example in (("devices", "gpu:0"), ("workers", "10.0.0.7:2222")):
            object.__setattr__(self, name, self._convert_to_names(name, example))
        if self.devices is not None:
            object.__setattr__(self, "devices", self._convert_to_devices())
            if self.are_flags:  # a program may give a Cluster, and use some of its workers
                self._check_workers()
        self._check_port()
        object.__setattr__(self, "list_speed", self._convert_to_speeds())
        for name in ("dense_shares", "memory_limit"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Numbers):
                values = given.split(",") if isinstance(given, str) else given
                values = values if isinstance(values, Sequence) else [values]
                object.__setattr__(self, name, Numbers({AXIS: self._numbers(name, values)}, given))
        object.__setattr__(self, "slots", self._convert_to_slots())
        self._check_speeds()
        self._check_measured()
        self._check_slots()

    # --- values

    @property
    def is_file(self) -> bool:
        """Return whether the layout is the path of a plan."""
        return isinstance(self.layout, str) and self.layout.endswith(".json")

    @property
    def has_all_sizes(self) -> bool:
        """Return whether the layout is a Layout or a Plan, which has the sizes of all slices."""
        return self.is_file or not isinstance(self.layout, str)

    @property
    def has_stages(self) -> bool:
        """Return whether the batch of an imported step is to have a name in each stage: the layout has them, or may."""
        if isinstance(self.layout, plan_lib.Plan):
            return self.layout.has_stages
        names = [name for name, _ in getattr(self.layout, "rules", ())] or re.split(r"[\s;:,]+", str(self.layout))
        return names in ([STAGES], [AUTO]) or plan_lib.has_stages(names)

    @property
    def is_measured(self) -> bool:
        """Return whether devices are measured before the step is placed."""
        return AUTO in (self.layout, self.list_speed)

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """The mesh axes that the user named, with their sizes."""
        return convert_to_mesh_shape(self.mesh_shape or "")

    @property
    def shares(self) -> Mapping[str, tuple[float, ...]]:
        """{mesh axis: shares} of `list_speed`."""
        return self.list_speed.of_axis if isinstance(self.list_speed, Numbers) else {}

    @property
    def options(self) -> dict[str, tuple[float, ...]]:
        """The keyword arguments for the recipe."""
        return {"dense_shares": self.dense_shares.single} if isinstance(self.dense_shares, Numbers) else {}

    def slots_on(self, devices: Sequence[str]) -> tuple[int, ...] | None:
        """Return the number of slots of each device; None: no more than one.

        Raises:
          ValueError: these are numbers for more or fewer devices.
        """
        if not isinstance(self.slots, Numbers):
            return None
        slots = tuple(map(int, self.slots.single))
        if len(slots) not in (1, len(devices)):
            raise ValueError(f"{self.quote('slots')}; give one number, or one for each of the {len(devices)} devices")
        return slots * len(devices) if len(slots) == 1 else slots

    def memory_bytes(self, devices: Sequence[str]) -> dict[str, int]:
        """Return {device: bytes that it may use}; empty without a limit."""
        if not isinstance(self.memory_limit, Numbers):
            return {}
        limits = self.memory_limit.single
        if len(limits) != len(devices) or not all(math.isfinite(limit) and limit > 0 for limit in limits):
            raise ValueError(
                f"{self.quote('memory_limit')}; write the gigabytes of each of the {len(devices)} devices, such as "
                "16,8,8"
            )
        return {device: round(limit * 1e9) for device, limit in zip(devices, limits, strict=True)}

    def only(self, numbers: Sequence[int]) -> "Request":
        """Return the request for some of its devices, by their numbers; each keeps its speed.

        A layout that has all sizes, or a mesh of several axes, fits the devices only as a whole. The layout is then
        planned.
        """
        changes: dict[str, Any] = dict.fromkeys(("list_speed", "mesh_shape", "dense_shares"))
        kept = ["memory_limit"]
        if isinstance(self.slots, Numbers) and len(self.slots.single) > 1:
            kept.append("slots")
        if self.has_all_sizes or len(self.axes) > 1:
            changes["layout"] = AUTO
        else:
            kept += ["list_speed", "dense_shares"]
            changes["mesh_shape"] = f"{self.axes[0][0]}:{len(numbers)}" if self.axes else None
        for field in kept:
            value = getattr(self, field)
            changes[field] = value.only(numbers) if isinstance(value, Numbers) else value
        return dataclasses.replace(self, **changes)

    def with_more(self) -> "Request":
        """Return the request for more devices, of which only some have a speed or a limit: all are measured.

        A layout that has all sizes, stages, or a mesh, is of no use for them. The layout is then planned.
        """
        changes: dict[str, None] = dict.fromkeys(("devices", "mesh_shape", "dense_shares", "memory_limit"))
        is_planned = self.has_all_sizes or self.layout == STAGES or self.mesh_shape is not None
        has_numbers = isinstance(self.slots, Numbers) and len(self.slots.single) > 1
        if is_planned or has_numbers or self.list_speed is not None:
            changes["slots"] = None  # measured devices have none
        if is_planned:
            return dataclasses.replace(self, layout=AUTO, list_speed=None, **changes)
        return dataclasses.replace(self, list_speed=None if self.list_speed is None else AUTO, **changes)

    # --- words

    def name(self, field: str) -> str:
        """Return what the user calls a field."""
        return f"--{field}" if self.are_flags else field

    def quote(self, field: str) -> str:
        """Return what the user gave for a field, as a message begins."""
        return f"{self.name(field)} is {getattr(self, field)!r}"

    def setting(self, field: str, value: str) -> str:
        """Return how the user would give a field a value."""
        return f"{self.name(field)}={value}" if self.are_flags else f"{field}={value!r}"

    # --- checks

    def _convert_to_names(self, field: str, example: str) -> tuple[str, ...] | None:
        value = getattr(self, field)
        if value is None:
            return None
        if field == "workers" and hasattr(value, "workers"):
            if not value.workers:
                remedy = _ENTER if hasattr(value, "fractions") else "leave it out, and name its devices"
                raise ValueError(f"{self.name(field)} is a {type(value).__name__} without workers; {remedy}")
            value = value.workers
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
            remedy = f"; to start some on this machine, {_ENTER}" if field == "workers" else ""
            raise ValueError(f'{self.quote(field)}; name each one, as in ["{example}"]{remedy}')
        return tuple(name.strip() for name in value)

    def _convert_to_devices(self) -> tuple[str, ...]:
        """Return the devices, each as "cpu:0", "gpu:0" or "worker:1/gpu:0"."""
        if not any(self.devices):
            raise ValueError(f"{self.name('devices')} is empty; name one device per processor, or leave it out")
        devices = tuple(self._convert_to_device(text) for text in self.devices)
        for device in devices:
            if devices.count(device) > 1:
                raise ValueError(
                    f"{self.name('devices')} names {device!r} twice; name each device once, and give "
                    f"{self.name('slots')} for several parts on one"
                )
        return devices

    def _convert_to_device(self, text: str) -> str:
        try:
            device = Device.parse(text)
        except ValueError:
            device = Device()
        if device.kind not in ("CPU", "GPU") or device.index is None:
            raise ValueError(
                f"{self.name('devices')} names {text!r}; write cpu:N or gpu:N, with commas between them, and "
                "worker:N/gpu:N of a worker"
            )
        if device.is_cpu and device.index >= MOST_CPUS:
            last = f"cpu:{MOST_CPUS - 1}"
            raise ValueError(f"{self.name('devices')} names {text!r}; logical CPU devices are cpu:0 to {last}")
        return device.short_name

    def _check_workers(self) -> None:
        """Raise ValueError if no device of a worker is named; of workers that may change, nothing is known yet."""
        if self.workers and may_change(self.workers[0]):
            return
        named = {device.task for device in map(Device.parse, self.devices) if device.job == "worker"}
        cores = None if self.local_cluster is None else self.local_cluster.split(",")
        for field, given in (("workers", self.workers), ("local_cluster", cores)):
            for number, worker in enumerate(given or ()):
                if worker and number not in named:
                    raise ValueError(
                        f"{self.name(field)} has worker {number}, {worker}, of which {self.name('devices')} names no "
                        f"device; name one, such as worker:{number}/cpu:0, or leave the worker out"
                    )

    def _check_port(self) -> None:
        if self.port is None:
            return
        if not self.workers:
            raise ValueError(f"{self.quote('port')} without {self.name('workers')}, which connect to it; remove it")
        if not isinstance(self.port, int) or isinstance(self.port, bool) or self.port not in PORTS:
            raise ValueError(f"{self.quote('port')}; it must be from 1 to 65535")

    def _check_speeds(self) -> None:
        """Raise ValueError if speeds are no numbers, or the layout ignores them."""
        if self.dense_shares is not None and self.layout != HYBRID:
            only = self.setting("layout", HYBRID)
            raise ValueError(f"{self.quote('dense_shares')}, which only {only} uses; remove it, or give that layout")
        why = "it chooses all sizes" if self.layout == AUTO else ""
        if self.has_all_sizes:
            why = f"a {'plan' if self.is_file else type(self.layout).__name__} has all sizes"
        for field in ("list_speed", "mesh_shape"):
            if getattr(self, field) is not None and why:
                given = f"{self.name('layout')} {self.layout!r}"
                raise ValueError(f"{self.quote(field)} and {given}: {why}; remove {self.name(field)}")
        if self.list_speed is not None and self.layout == EVEN:
            raise ValueError(
                f"{self.quote('list_speed')} and {self.name('layout')} {EVEN!r}, which uses no speeds; give another "
                "layout"
            )
        if self.list_speed == AUTO and self.layout == STAGES:
            raise ValueError(
                f"{self.quote('list_speed')} and {self.name('layout')} {STAGES!r}, which places layers and measures "
                "nothing; give one number per device, as in 70,25,5"
            )
        if self.list_speed == AUTO and self.mesh_shape is not None:
            raise ValueError(
                f"{self.quote('list_speed')} and {self.name('mesh_shape')} {self.mesh_shape!r}; measured speeds split "
                f"over one axis; remove {self.name('mesh_shape')}"
            )

    def _check_measured(self) -> None:
        """Raise ValueError if a limit is wrong, or nothing is measured that it would limit."""
        seconds = self.measure_seconds
        is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < float(seconds) < math.inf):
            raise ValueError(f"{self.quote('measure_seconds')}; it must be a positive number")
        for field in ("memory_limit", "measure_seconds"):
            if getattr(self, field) is not None and not self.is_measured:
                raise ValueError(
                    f"{self.quote(field)}, which only {self.setting('layout', AUTO)} and "
                    f"{self.setting('list_speed', AUTO)} use; remove it, or let the devices be measured"
                )

    def _convert_to_slots(self) -> "Numbers | None":
        if self.slots is None or isinstance(self.slots, Numbers):
            return self.slots
        values = self.slots.split(",") if isinstance(self.slots, str) else self.slots
        try:
            slots = tuple(map(int, values)) if isinstance(values, Sequence) else (int(values),)
        except (TypeError, ValueError):
            slots = ()
        if not slots or min(slots) < 1:
            raise ValueError(f"{self.quote('slots')}; give the number of slots of each device, such as 4 or 4,2")
        return Numbers({AXIS: slots}, self.slots)

    def _check_slots(self) -> None:
        """Raise ValueError if slots are no numbers, or the layout cannot have any."""
        if self.slots is None:
            return
        if self.is_measured:
            raise ValueError(
                f"{self.quote('slots')}, but {AUTO} chooses devices, sizes and slots itself; give "
                f"{self.setting('layout', 'batch')} and speeds"
            )
        if self.has_all_sizes:
            raise ValueError(
                f"{self.quote('slots')} and {self.quote('layout')}, which has all sizes; remove one of them"
            )
        if self.mesh_shape is not None:
            raise ValueError(
                f"{self.quote('slots')} and {self.quote('mesh_shape')}; slots need one axis; remove one of them"
            )

    def _convert_to_speeds(self) -> Numbers | str | None:
        speeds = self.list_speed
        first, _ = (*self.axes, (AXIS, 1))[0]
        if speeds is None or isinstance(speeds, Numbers):
            return speeds
        if not isinstance(speeds, str):
            try:
                return Numbers({first: tuple(float(speed) for speed in speeds)}, speeds)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{self.quote('list_speed')}; give one number per device, as in [70, 25, 5], or {AUTO!r}"
                ) from None
        if speeds == AUTO:
            return AUTO
        of_axis: dict[str, tuple[float, ...]] = {}
        for part in speeds.split(";"):
            axis, colon, numbers_of_axis = part.rpartition(":")
            axis = axis.strip() if colon else first
            if axis in of_axis:
                raise ValueError(
                    f"{self.quote('list_speed')}: it names axis {axis!r} twice; write AXIS:70,25,5;AXIS:2,1"
                )
            of_axis[axis] = self._numbers("list_speed", numbers_of_axis.split(","))
        return Numbers(of_axis, speeds)

    def _numbers(self, field: str, values: Sequence[str | float]) -> tuple[float, ...]:
        found = []
        for part in values:
            try:
                found.append(float(part))
            except (TypeError, ValueError):
                raise ValueError(
                    f"{self.quote(field)}: {part!r} is not a number; give one per processor, as in 70,25,5"
                ) from None
        return tuple(found)

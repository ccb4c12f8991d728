"""Names of devices: the one place that reads and writes them. No TensorFlow.

A name may leave out any of its parts, down to "". What it leaves out is of the process that trains: its job and task,
and there CPU 0. So "" is the first CPU of that process, "gpu:1" its second GPU, and "/job:worker/task:2" the first CPU
of that worker. TensorFlow calls this process "localhost" where it is alone and "chief" in a cluster (`complete`).

TensorFlow's own placement is another matter: it may run an operation whose name leaves parts out where its variable
is, or on a GPU. Who asks for that (`traffic`, `memory`) settles it before it completes a name.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence

ALONE, CHIEF = "localhost", "chief"  # jobs of the training process
WORKER = "worker"  # the job of all workers
MOST_CPUS = 128  # logical CPUs of a process: one with a wrong number is refused before TensorFlow makes them all
_FULL_NAME = re.compile(r"/job:\w+(?:/replica:0)?/task:\d+/device:\w+:\d+")
_PARTS = re.compile(
    r"job:(?P<job>\w+)|(?P<short_job>worker):(?P<short_task>\d+)|replica:\d+|task:(?P<task>\d+)|"
    r"device:(?P<kind>\w+)(?::(?P<index>\d+|\*))?|(?P<short_kind>cpu|gpu):(?P<short_index>\d+)",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Device:
    """A device; None stands for a part that its name leaves out.

    Args:
      job: "worker", "chief" or "localhost", mostly.
      task: index in the job.
      kind: "CPU" or "GPU", mostly.
      index: among those of the kind in the process.

    Example:
      >>> Device.parse("worker:1/gpu:0")
      Device(job='worker', task=1, kind='GPU', index=0)
      >>> Device.parse("worker:1/gpu:0").name, Device.parse("/job:worker/task:1/device:GPU:0").short_name
      ('/job:worker/task:1/device:GPU:0', 'worker:1/gpu:0')
      >>> Device.parse("").within(Device.parse("/job:chief/task:0")).name
      '/job:chief/task:0/device:CPU:0'
    """

    job: str | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None

    @staticmethod
    def parse(text: str) -> "Device":
        """Read a name in a user's or TensorFlow's form: "gpu:0", "worker:1/gpu:0", "/job:worker/replica:0/task:1".

        Raises:
          ValueError: it is no name of a device.
        """
        return _parse(text)

    def within(self, rest: "Device") -> "Device":
        """Return the full device: missing parts are those of another one, or else task 0, CPU, index 0."""
        return Device(
            self.job or rest.job or ALONE,
            rest.task or 0 if self.task is None else self.task,
            self.kind or rest.kind or "CPU",
            rest.index or 0 if self.index is None else self.index,
        )

    @property
    def name(self) -> str:
        """The name in TensorFlow's form: "/job:worker/task:1/device:GPU:0"."""
        parts = (("job", self.job), ("task", self.task), ("device", self._place or None))
        return "".join(f"/{key}:{value}" for key, value in parts if value is not None)

    @property
    def short_name(self) -> str:
        """The name in a user's form: "worker:1/gpu:0", and "gpu:0" of the process that trains."""
        place = self._place.lower()
        return place if self.job in (None, ALONE, CHIEF) else f"{self.job}:{self.task or 0}/{place}"

    @property
    def worker(self) -> int | None:
        """The index of the worker that has the device; None: another process has it."""
        return (self.task or 0) if self.job == WORKER else None

    @property
    def _place(self) -> str:
        return ":".join(str(part) for part in (self.kind, self.index) if part is not None)

    @property
    def process(self) -> str:
        """The process of the device, "/job:worker/task:1"."""
        return Device(self.job, self.task).name

    @property
    def is_cpu(self) -> bool:
        """Return whether it is a CPU, which is the default of a name without a kind."""
        return self.kind in (None, "CPU")

    @property
    def host(self) -> "Device":
        """The first CPU of the process of the device."""
        return dataclasses.replace(self, kind="CPU", index=0)


@functools.cache
def _parse(text: str) -> Device:
    parts: dict[str, str] = {}
    for part in filter(None, text.strip().split("/")):
        match = _PARTS.fullmatch(part)
        fields = {} if match is None else {key: value for key, value in match.groupdict().items() if value is not None}
        fields = {
            key.removeprefix("short_"): value.lower() if "short" in key else value for key, value in fields.items()
        }
        if match is None or fields.keys() & parts.keys():
            raise ValueError(f"device {text!r} is not known; write cpu:N, gpu:N or, of a worker, worker:N/gpu:N")
        parts |= fields
    job, kind = parts.get("job"), parts.get("kind")
    task, index = (None if parts.get(key) in (None, "*") else int(parts[key]) for key in ("task", "index"))
    return Device(job, task, kind and kind.upper(), index)


def complete(names: Iterable[str]) -> dict[str, Device]:
    """Return {name: the full device} of all devices of one run. A missing job is that of the training process.

    Example:
      >>> [device.name for device in complete(["", "/job:worker/task:0/device:GPU:0"]).values()]
      ['/job:chief/task:0/device:CPU:0', '/job:worker/task:0/device:GPU:0']
    """
    devices = {name: Device.parse(name) for name in names}
    alone = all(device.job in (None, ALONE) for device in devices.values())
    rest = Device(ALONE if alone else CHIEF)
    return {name: device.within(rest) for name, device in devices.items()}


def shorten(text: str) -> str:
    """Return a text with the user's names of devices.

    Example:
      >>> shorten("/job:worker/task:1/device:GPU:0 and /job:chief/task:0/device:CPU:1")
      'worker:1/gpu:0 and cpu:1'
    """
    return _FULL_NAME.sub(lambda match: Device.parse(match[0]).short_name, text)


def cpu_count(devices: Iterable[Device]) -> int:
    """Return the number of logical CPU devices that a process needs to have these."""
    return 1 + max((device.index or 0 for device in devices if device.is_cpu), default=0)


def local_device(text: str, gpus: int) -> Device:
    """Return the device of this process that a text names, "gpu:0".

    Raises:
      ValueError: it is not known, or not there.
    """
    device = Device.parse(text)
    if device.kind not in ("CPU", "GPU") or device != Device(kind=device.kind, index=device.index or 0):
        raise ValueError(f"device {text!r} is not known; write cpu:N, gpu:N or, of a worker, worker:N/gpu:N")
    if device.kind == "GPU" and not gpus:
        from mtf_hetero.cluster.gpus import why_no_gpu  # it asks TensorFlow

        raise ValueError(
            f"device {text!r} does not exist: TensorFlow finds no GPU; {why_no_gpu()}; or name another device, such as "
            "cpu:0"
        )
    if device.kind == "GPU" and (device.index or 0) >= gpus:
        present = ", ".join(f"gpu:{i}" for i in range(gpus))
        raise ValueError(f"device {text!r} does not exist: TensorFlow finds {present}; name an existing device")
    return device


def listed_devices(names: Sequence[str]) -> list[Device]:
    """Return the CPUs and GPUs among the devices that a session lists, GPUs first, without their process.

    Example:
      >>> [device.short_name for device in listed_devices(["/job:server/task:0/device:CPU:0", "/device:GPU:0"])]
      ['gpu:0', 'cpu:0']
    """
    devices = {Device(kind=device.kind, index=device.index) for device in map(Device.parse, names)}
    usable = [device for device in devices if device.kind in ("CPU", "GPU")]
    return sorted(usable, key=lambda device: (device.kind != "GPU", device.index))

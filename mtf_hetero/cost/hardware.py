"""The hardware of devices: names under which measurements are kept, and the size of the memory."""

import collections
import dataclasses
import os
import pathlib
import platform
import re
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import status_devices, tf
from mtf_hetero._support import cores
from mtf_hetero.cluster import Cluster, granted
from mtf_hetero.cluster.devices import Device, complete
from mtf_hetero.cluster.probe import split_address


def representatives(devices: Sequence[str]) -> dict[str, str]:
    """Map each device to the first one that is the same hardware: all logical CPUs of a process are one CPU.

    Example:
      >>> representatives(["gpu:0", "cpu:0", "cpu:1"])
      {'gpu:0': 'gpu:0', 'cpu:0': 'cpu:0', 'cpu:1': 'cpu:0'}
    """
    first: dict[Device, str] = {}
    return {
        name: first.setdefault(device.host if device.is_cpu else device, name)
        for name, device in complete(devices).items()
    }


def descriptions(cluster: Cluster) -> dict[str, str]:
    """Return {device: text} by which another run recognises it; of a worker, only the address is known."""
    return {name: _description(device, cluster) for name, device in complete(cluster.devices).items()}


def _description(device: Device, cluster: Cluster) -> str:
    place = Device(kind=device.kind, index=0 if device.is_cpu else device.index).short_name
    if device.worker is not None:
        return f"{place} of {cluster.workers[device.worker]}"
    if device.is_cpu:
        return f"{cpu_name()} with {len(cores.usable_cores())} cores of {platform.node()}"
    return f"{place} {local_gpu(device.index or 0).name} of {platform.node()}"


def cpu_name(read: granted.Read = granted.read_here) -> str:
    """Return the name of a machine's processor."""
    match = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    if match:
        return match[1].strip()
    return platform.processor() or platform.machine() if read is granted.read_here else "CPU"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU, as far as TensorFlow knows it.

    Args:
      name: of its kind.
      compute_capability: "9.0", or None.
      memory_bytes: that TensorFlow may use, or None.
    """

    name: str = "GPU"
    compute_capability: str | None = None
    memory_bytes: int | None = None


def local_gpu(index: int) -> Gpu:
    """Return a GPU of this process, without its memory."""
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[index]) if index < len(gpus) else {}
    capability = ".".join(map(str, details.get("compute_capability", ())))
    return Gpu(details.get("device_name", "GPU"), capability or None)


def worker_gpus(status: bytes) -> list[Gpu]:
    """Return the GPUs of a worker, from its answer (`probe.Answer`)."""
    gpus = []
    for device in status_devices(status):
        if device.device_type == "GPU":
            texts = dict(re.findall(r"(name|compute capability): ([^,]+)", device.physical_device_desc))
            capability = texts.get("compute capability")
            gpus.append(Gpu(texts.get("name", "GPU"), capability, device.memory_limit or None))
    return gpus


def sharing(cluster: Cluster) -> dict[str, int]:
    """Return {CPU: the number of the cluster's CPUs on its host}, which share the memory of the host."""
    hosts = {
        name: "" if device.worker is None else split_address(cluster.workers[device.worker])[0]
        for name, device in complete(cluster.devices).items()
        if device.is_cpu
    }
    counts = collections.Counter(hosts.values())
    return {name: counts[host] for name, host in hosts.items()}


def memory_limits(cluster: Cluster, session: tf.Session) -> dict[str, int | None]:
    """Return {device: bytes}: of a GPU as TensorFlow reports it, of a CPU its part of the memory of its host.

    None: the size is unknown.

    Args:
      cluster: the devices.
      session: of the cluster, in the default graph.
    """
    listed = {device.name: device.memory_limit_bytes for device in session.list_devices()}
    completed = complete([*cluster.devices, *listed])
    reported = {completed[name]: limit for name, limit in listed.items()}
    devices = {name: completed[name] for name in cluster.devices}
    limits = {name: reported.get(device) or None for name, device in devices.items()}
    parts, first, sizes = sharing(cluster), representatives(cluster.devices), {}
    for name in dict.fromkeys(first[name] for name in parts):
        read = granted.read_here if devices[name].worker is None else granted.reader(name, session)
        sizes[name] = granted.memory_bytes(read)
    for name, count in parts.items():
        size = sizes[first[name]]
        limits[name] = None if size is None else size // count
    return limits


def cache_directory(environment: Mapping[str, str]) -> pathlib.Path:
    """Return the directory of measurements: mtf_hetero under XDG_CACHE_HOME, or else under ~/.cache."""
    home = environment.get("XDG_CACHE_HOME") or ""
    return (pathlib.Path(home) if os.path.isabs(home) else pathlib.Path.home() / ".cache") / "mtf_hetero"

"""The hardware of devices: names under which measurements are kept, and the size of the memory."""

import collections
import os
import pathlib
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mtf_hetero._compat import tf
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
    return f"{place} {gpu_details(device.index or 0).get('device_name', 'GPU')} of {platform.node()}"


def cpu_name() -> str:
    """Return the name of this machine's processor."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def gpu_details(index: int) -> dict[str, Any]:
    """Return what TensorFlow says of a GPU: its "device_name" and "compute_capability", as far as it knows them."""
    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[index]) if index < len(gpus) else {}


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
    hosts = {
        name: "" if device.worker is None else split_address(cluster.workers[device.worker])[0]
        for name, device in devices.items()
        if device.is_cpu
    }
    sharing, first, sizes = collections.Counter(hosts.values()), representatives(cluster.devices), {}
    for name in dict.fromkeys(first[name] for name in hosts):
        read = granted.read_here if devices[name].worker is None else granted.reader(name, session)
        sizes[name] = granted.memory_bytes(read)
    for name, host in hosts.items():
        size = sizes[first[name]]
        limits[name] = None if size is None else size // sharing[host]
    return limits


def cache_directory(environment: Mapping[str, str]) -> pathlib.Path:
    """Return the directory of measurements: mtf_hetero under XDG_CACHE_HOME, or else under ~/.cache."""
    home = environment.get("XDG_CACHE_HOME") or ""
    return (pathlib.Path(home) if os.path.isabs(home) else pathlib.Path.home() / ".cache") / "mtf_hetero"

"""What devices are: names under which measurements are kept, and how much memory they have."""

import os
import pathlib
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.cluster import Cluster

_DEVICE = re.compile(
    r"(?:/job:(?P<job>\w+))?(?:/replica:\d+)?(?:/task:(?P<task>\d+))?/?(?:device:)?(?P<kind>\w+):(?P<index>\d+)",
    re.IGNORECASE,
)


def _parse(device: str) -> tuple[str | None, int, str, int]:
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise ValueError(f"device is {device!r}; write it as cpu:0, gpu:0 or /job:worker/task:0/device:GPU:0")
    job = match["job"]
    return None if job == "localhost" else job, int(match["task"] or 0), match["kind"].lower(), int(match["index"])


def representatives(devices: Sequence[str]) -> dict[str, str]:
    """{device: the first of the devices that is the same hardware}: all logical CPUs of a process are one CPU.

    Example:
      >>> representatives(["gpu:0", "cpu:0", "cpu:1"])
      {'gpu:0': 'gpu:0', 'cpu:0': 'cpu:0', 'cpu:1': 'cpu:0'}
    """
    first: dict[Any, str] = {}
    result = {}
    for device in devices:
        job, task, kind, index = _parse(device)
        result[device] = first.setdefault((job, task, kind, 0 if kind == "cpu" else index), device)
    return result


def descriptions(cluster: Cluster) -> dict[str, str]:
    """{device: what it is}, by which it is known again in another run. Of a worker, only its address is known."""
    result = {}
    for device in cluster.devices:
        job, task, kind, index = _parse(device)
        if job == "worker":
            result[device] = f"{kind}:{0 if kind == 'cpu' else index} of {cluster.workers[task]}"
        elif kind == "cpu":
            result[device] = f"{_cpu_name()} with {_cores()} cores of {platform.node()}"
        else:
            result[device] = f"{kind}:{index} {_gpu_name(index)} of {platform.node()}"
    return result


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _gpu_name(index: int) -> str:
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[index]) if index < len(gpus) else {}
    return details.get("device_name", "GPU")


def memory_limits(cluster: Cluster, session: Any) -> dict[str, int | None]:
    """{device: bytes} that TensorFlow reports of GPUs; of this machine's CPU its memory, shared by the devices on it.

    Of a worker's CPU it is not known: None.
    """
    reported = {_parse(found.name): found.memory_limit_bytes for found in session.list_devices()}
    parsed = {device: _parse(device) for device in cluster.devices}
    own = sum(job != "worker" and kind == "cpu" for job, _, kind, _ in parsed.values())
    result: dict[str, int | None] = {}
    for device, (job, task, kind, index) in parsed.items():
        if kind != "cpu":
            result[device] = reported.get((job, task, kind, index)) or None
        elif job != "worker" and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            result[device] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // own
        else:
            result[device] = None
    return result


def cache_directory(environment: Mapping[str, str]) -> pathlib.Path:
    """Where measurements are kept: mtf_hetero under XDG_CACHE_HOME, or else under ~/.cache."""
    home = environment.get("XDG_CACHE_HOME") or ""
    return (pathlib.Path(home) if os.path.isabs(home) else pathlib.Path.home() / ".cache") / "mtf_hetero"

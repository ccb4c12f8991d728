"""Lists the devices of this machine, or of workers, and the names that --devices has for them.

    mtf-hetero devices
    mtf-hetero devices --workers=10.0.0.7:2222,10.0.0.8:2222
    mtf-hetero devices --json

It also says which TensorFlow is installed, why it finds no GPU if it finds none, and what mtf-hetero plan assumes of
a device of this kind. Nothing is measured.

Exit codes: 0, 2 for a wrong flag or a worker that does not answer (one line says which), 130 after Ctrl-C.
"""

import argparse
import json
import os
import platform
import re
import textwrap
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, NotRequired, TypedDict

import mtf_hetero
from mtf_hetero._support import command_line, cores, tables
from mtf_hetero._support.units import bytes_text
from mtf_hetero.cluster.probe import convert_to_workers

if TYPE_CHECKING:
    from mtf_hetero.cluster import Cluster, granted
    from mtf_hetero.cost.hardware import Gpu

PROGRAM = "mtf-hetero devices"
_WIDTH = 80
_SECONDS = 5.0  # within which a worker must answer
_HOW_TO_NAME = (
    "--devices={names} is all of them. cpu:0,cpu:1,... are logical devices of one CPU, for trying things out."
)
_HOW_TO_SPLIT = (
    "By default each device gets an equal part. --list_speed=auto measures the devices on the model; "
    "--list_speed={speeds} says how fast they are."
)


class _Rates(TypedDict):
    """A kind of the planner, and what a step is assumed to reach on it."""

    name: str
    flops_per_second: float
    bytes_per_second: float


class _Device(TypedDict):
    """A device, as JSON has it. `memory_bytes` is None where it is unknown; `address` is that of its worker."""

    device: str
    hardware: str
    memory_bytes: float | None
    address: NotRequired[str]
    cores: NotRequired[int | None]
    usable_cores: NotRequired[int]
    quota_cores: NotRequired[float | None]
    compute_capability: NotRequired[str]
    kind: NotRequired[_Rates]


class _Description(TypedDict):
    """The output of the program."""

    host: str
    system: str
    versions: dict[str, str | None]
    devices: list[_Device]
    no_gpu: str | None


def _describe(workers: Sequence[str]) -> _Description:
    """Return the complete description, for JSON."""
    from mtf_hetero._compat import tf
    from mtf_hetero.cluster import Cluster
    from mtf_hetero.cluster.gpus import cuda_version, why_no_gpu

    if workers:
        devices, no_gpu = _worker_devices(Cluster.from_workers(workers)), None
    else:
        devices = _local_devices(Cluster.local())
        no_gpu = None if any(device["device"].startswith("gpu") for device in devices) else why_no_gpu()
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "cuda": cuda_version(),
            "mesh-tensorflow": metadata.version("mesh-tensorflow"),
            "mtf_hetero": mtf_hetero.__version__,
        },
        "devices": devices,
        "no_gpu": no_gpu,
    }


def _local_devices(cluster: "Cluster") -> list[_Device]:
    """Return the facts about each device of this process."""
    from mtf_hetero._compat import tf
    from mtf_hetero.cluster import granted
    from mtf_hetero.cost.hardware import local_gpu, memory_limits

    with tf.Graph().as_default(), tf.Session(config=cluster.session_config()) as session:
        memory = memory_limits(cluster, session)
    devices = []
    for name in cluster.devices:
        kind, _, index = name.partition(":")
        if kind == "cpu":
            processors = os.cpu_count(), len(cores.usable_cores())
            devices.append(_cpu(name, memory[name], granted.read_here, processors))
        else:
            devices.append(_gpu(name, memory[name], local_gpu(int(index))))
    return devices


def _worker_devices(cluster: "Cluster") -> list[_Device]:
    """Return the facts about each device of workers, which may be training meanwhile.

    Raises:
      UnreachableWorkerError: a worker goes silent after it has listed its devices.
    """
    from mtf_hetero._compat import tf
    from mtf_hetero.cluster import granted, probe
    from mtf_hetero.cluster.devices import complete
    from mtf_hetero.cost.hardware import Gpu, sharing, worker_gpus

    answers = probe.ask_all(cluster.workers, _SECONDS)
    parts = sharing(cluster)
    config = tf.ConfigProto(operation_timeout_in_ms=round(_SECONDS * 1000))
    devices = []
    for name, place in complete(cluster.devices).items():
        task = place.worker or 0
        if place.is_cpu:
            try:
                with tf.Graph().as_default(), tf.Session(f"grpc://{cluster.workers[task]}", config=config) as session:
                    read = granted.reader("/cpu:0", session)
                    memory = granted.memory_bytes(read)
                    processors = granted.processors(read)
                    device = _cpu(place.short_name, memory and memory // parts[name], read, processors)
            except tf.errors.OpError as error:
                raise probe.lost_workers_error(cluster.workers) from error
        else:
            gpus = worker_gpus(answers[task].status)  # fewer if the worker was just started anew
            gpu = gpus[place.index or 0] if (place.index or 0) < len(gpus) else Gpu()
            device = _gpu(place.short_name, gpu.memory_bytes, gpu)
        devices.append({**device, "address": cluster.workers[task]})
    return devices


def _cpu(
    name: str, memory_bytes: float | None, read: "granted.Read", processors: tuple[int | None, int] | None
) -> _Device:
    from mtf_hetero.cluster import granted
    from mtf_hetero.cost.hardware import cpu_name

    device = _device(name, memory_bytes, cpu_name(read))
    if processors is not None:
        device["cores"], device["usable_cores"] = processors
    device["quota_cores"] = granted.cores(read)
    return device


def _gpu(name: str, memory_bytes: float | None, gpu: "Gpu") -> _Device:
    device = _device(name, memory_bytes, gpu.name)
    if gpu.compute_capability:
        device["compute_capability"] = gpu.compute_capability
    return device


def _device(name: str, memory_bytes: float | None, hardware: str) -> _Device:
    from mtf_hetero.cost.kinds import EFFICIENCY, KINDS, find_kind

    device = _Device(device=name, memory_bytes=memory_bytes, hardware=hardware)
    if kind := find_kind(hardware):
        rates = KINDS[kind]
        device["kind"] = {
            "name": kind,
            "flops_per_second": EFFICIENCY * rates.flops_per_second,
            "bytes_per_second": rates.bytes_per_second,
        }
    return device


def _text(found: _Description) -> str:
    """Return the description for people, in 80 columns."""
    versions, devices = found["versions"], found["devices"]
    cuda = "without CUDA" if versions["cuda"] is None else f"for CUDA {versions['cuda']}"
    software = (
        f"Python {versions['python']}, TensorFlow {versions['tensorflow']} {cuda}, mesh-tensorflow "
        f"{versions['mesh-tensorflow']}, mtf_hetero {versions['mtf_hetero']}"
    )
    lines = [f"{found['host']}: {found['system']}", *_wrap(software), ""]
    memory = (bytes_text(device["memory_bytes"]) if device["memory_bytes"] else "-" for device in devices)
    rows = list(zip([device["device"] for device in devices], memory, map(_hardware, devices), strict=True))
    lines += tables.lines([("device", "memory", "hardware"), *rows], "<><")
    addresses = {device["device"].partition("/")[0]: device["address"] for device in devices if "address" in device}
    lines += _wrap(", ".join(f"{worker} is {address}" for worker, address in addresses.items()))
    lines += [
        line for device in devices if "kind" in device for line in _wrap(_assumption(device["device"], device["kind"]))
    ]
    if found["no_gpu"]:
        lines += ["", *_wrap(f"No GPU: {found['no_gpu']}.")]
    names, speeds = ",".join(device["device"] for device in devices), range(max(len(devices), 2), 0, -1)
    lines += ["", *_wrap(_HOW_TO_NAME.format(names=names))]
    lines += _wrap(_HOW_TO_SPLIT.format(speeds=",".join(map(str, speeds))))
    return "\n".join(lines) + "\n"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _hardware(device: _Device) -> str:
    parts = [re.sub(r"\((R|TM)\)| CPU| @ .*", "", device["hardware"])]
    if "usable_cores" in device and "cores" in device:
        parts.append(f"{device['usable_cores']} of {device['cores']} cores")
    if (quota := device.get("quota_cores")) is not None:
        parts.append(f"{quota:g} cores' time")
    if "compute_capability" in device:
        parts.append(f"compute capability {device['compute_capability']}")
    return ", ".join(parts)


def _assumption(device: str, kind: _Rates) -> str:
    return (
        f"mtf-hetero plan knows {device} as {kind['name']}: a step is assumed to reach "
        f"{kind['flops_per_second'] / 1e12:.3g} TFLOP/s and {kind['bytes_per_second'] / 1e9:.4g} GB/s."
    )


def _list(arguments: argparse.Namespace) -> str:
    workers = convert_to_workers(arguments.workers or "", "--workers")
    with command_line.capture_stderr():
        found = _describe(workers)
    return json.dumps(found, indent=2) + "\n" if arguments.json else _text(found)


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """List devices by the command line, and return the exit code."""
    parser = command_line.Parser(prog=program, description="Lists the devices of this machine, or of workers.")
    parser.add_argument("--workers", metavar="HOST:PORT,...", help="list the devices of these workers instead")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    arguments = parser.parse_args(argv)
    return command_line.print_result(lambda: _list(arguments))

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
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import mtf_hetero
from mtf_hetero._support import command_line, cores, tables
from mtf_hetero._support.units import bytes_text
from mtf_hetero.cluster.probe import convert_to_workers

PROGRAM = "mtf-hetero devices"
_WIDTH = 80
_OTHER_KINDS = {"ti", "super", "laptop", "mobile", "max", "pro", "ultra"}  # words that follow the name of a kind
_HOW_TO_NAME = (
    "--devices={names} is all of them. cpu:0,cpu:1,... are logical devices of one CPU, for trying things out."
)
_HOW_TO_SPLIT = (
    "By default each device gets an equal part. --list_speed=auto measures the devices on the model; "
    "--list_speed={speeds} says how fast they are."
)


def find_kind(name: str, kinds: Iterable[str]) -> str | None:
    """Return the kind of the planner whose words a device's name contains in their order, or None.

    Example:
      >>> find_kind("NVIDIA A100-SXM4-40GB", ["RTX-3090", "A100"])
      'A100'
      >>> find_kind("NVIDIA GeForce RTX 3090 Ti", ["RTX-3090"])
    """
    words, found = _words(name), []
    for kind in kinds:
        rest = iter(words)
        if all(part in rest for part in _words(kind)) and next(rest, "") not in _OTHER_KINDS:
            found.append(kind)
    return max(found, key=len, default=None)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _describe(workers: Sequence[str]) -> dict[str, Any]:
    """Return everything that is shown, as JSON has it."""
    from mtf_hetero import tf
    from mtf_hetero.cluster import Cluster, shorten
    from mtf_hetero.cluster.gpus import cuda_version, why_no_gpu

    result: dict[str, Any] = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "cuda": cuda_version(),
            "mesh-tensorflow": metadata.version("mesh-tensorflow"),
            "mtf_hetero": mtf_hetero.__version__,
        },
    }
    if workers:
        cluster = Cluster.from_workers(workers)
        names = [shorten(name) for name in cluster.devices]
        devices = [{"device": name, "hardware": f"worker at {_address(name, cluster.workers)}"} for name in names]
        return {**result, "devices": devices, "no_gpu": None}
    cluster = Cluster.local()
    devices = _local_devices(cluster)
    no_gpu = None if any(device["device"].startswith("gpu") for device in devices) else why_no_gpu()
    return {**result, "devices": devices, "no_gpu": no_gpu}


def _address(device: str, workers: Sequence[str]) -> str:
    """Return the address of the worker that a device, "worker:1/gpu:0", belongs to."""
    return workers[int(device.split("/")[0].removeprefix("worker:"))]


def _local_devices(cluster: Any) -> list[dict[str, Any]]:
    """Return what is known of each device of this process."""
    from mtf_hetero import tf
    from mtf_hetero.planner.kinds import EFFICIENCY, KINDS
    from mtf_hetero.profile.hardware import cpu_name, gpu_details, memory_limits

    with tf.Graph().as_default(), tf.Session(config=cluster.session_config()) as session:
        memory = memory_limits(cluster, session)
    devices = []
    for name in cluster.devices:
        device: dict[str, Any] = {"device": name, "memory_bytes": memory[name]}
        if name.startswith("cpu"):
            device |= {"hardware": cpu_name(), "cores": os.cpu_count(), "usable_cores": len(cores.usable())}
            device["quota_cores"] = cores.quota()
        else:
            details = gpu_details(int(name.partition(":")[2]))
            device["hardware"] = details.get("device_name", "GPU")
            if capability := details.get("compute_capability"):
                device["compute_capability"] = ".".join(map(str, capability))
        if kind := find_kind(device["hardware"], KINDS):
            rates = KINDS[kind]
            device["kind"] = {
                "name": kind,
                "flops_per_second": EFFICIENCY * rates.flops_per_second,
                "bytes_per_second": rates.bytes_per_second,
            }
        devices.append(device)
    return devices


def _text(found: Mapping[str, Any]) -> str:
    """Return the description for people, in 80 columns."""
    versions, devices = found["versions"], found["devices"]
    cuda = "without CUDA" if versions["cuda"] is None else f"for CUDA {versions['cuda']}"
    software = (
        f"Python {versions['python']}, TensorFlow {versions['tensorflow']} {cuda}, mesh-tensorflow "
        f"{versions['mesh-tensorflow']}, mtf_hetero {versions['mtf_hetero']}"
    )
    lines = [f"{found['host']}: {found['system']}", *_wrapped(software), ""]
    rows = [(device["device"], _memory(device), _hardware(device)) for device in devices]
    lines += tables.lines([("device", "memory", "hardware"), *rows], "<><")
    lines += [line for device in devices if "kind" in device for line in _wrapped(_assumption(device))]
    if found["no_gpu"]:
        lines += ["", *_wrapped(f"No GPU: {found['no_gpu']}.")]
    names, speeds = ",".join(device["device"] for device in devices), range(max(len(devices), 2), 0, -1)
    lines += ["", *_wrapped(_HOW_TO_NAME.format(names=names))]
    lines += _wrapped(_HOW_TO_SPLIT.format(speeds=",".join(map(str, speeds))))
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _memory(device: Mapping[str, Any]) -> str:
    return bytes_text(device["memory_bytes"]) if device.get("memory_bytes") else "-"


def _hardware(device: Mapping[str, Any]) -> str:
    parts = [re.sub(r"\((R|TM)\)| CPU| @ .*", "", device["hardware"])]
    if "cores" in device:
        parts.append(f"{device['usable_cores']} of {device['cores']} cores")
        if device["quota_cores"] is not None:
            parts.append(f"{device['quota_cores']:g} cores' time")
    if "compute_capability" in device:
        parts.append(f"compute capability {device['compute_capability']}")
    return ", ".join(parts)


def _assumption(device: Mapping[str, Any]) -> str:
    kind = device["kind"]
    return (
        f"mtf-hetero plan knows {device['device']} as {kind['name']}: a step is assumed to reach "
        f"{kind['flops_per_second'] / 1e12:.3g} TFLOP/s and {kind['bytes_per_second'] / 1e9:.4g} GB/s."
    )


def _list(arguments: argparse.Namespace) -> str:
    workers = convert_to_workers(arguments.workers or "")
    with command_line.stderr_held_back():
        found = _describe(workers)
    return json.dumps(found, indent=2) + "\n" if arguments.json else _text(found)


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Lists as the command line says; returns the exit code."""
    parser = command_line.Parser(
        prog=program, description="Lists the devices of this machine, or of workers.", allow_abbrev=False
    )
    parser.add_argument("--workers", metavar="HOST:PORT,...", help="list the devices of these workers instead")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    arguments = parser.parse_args(argv)
    return command_line.print_result(lambda: _list(arguments))


def run(argv: Sequence[str] | None = None, program: str = PROGRAM) -> None:
    """The whole process: ends it with the exit code of `main`."""
    command_line.run(main, argv, program)


if __name__ == "__main__":
    run()

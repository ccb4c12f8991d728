"""Rows of measurements, one JSON object per line, with all that is needed to judge them and to measure them again."""

import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import psutil

from mtf_hetero._support import files

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("tensorflow", "mesh-tensorflow", "keras", "torch", "numpy")
REQUIRED = ("case", "run", "variant", "toy", "date", "command", "commit", "dirty", "versions", "host", "load_before")


def summarise(values: Iterable[float]) -> dict[str, float]:
    """Median and spread: minimum, quartiles and maximum of what was measured."""
    names = ("min", "lower_quartile", "median", "upper_quartile", "max")
    return dict(zip(names, np.percentile(list(values), [0, 25, 50, 75, 100]).tolist(), strict=True))


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        names = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


def _without_place(argument: str) -> str:
    """Return a flag without its value where that is a directory, which only this machine has."""
    name = argument.partition("=")[0]
    return f"{name}=..." if name in ("--before", "--data_dir", "--out") else argument


@functools.cache
def _fixed() -> Mapping[str, Any]:
    """Return the columns that stay the same while the program runs."""
    status = _git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!benchmarks/reports")
    return {
        "command": shlex.join(["python", "-m", "benchmarks.run", *map(_without_place, sys.argv[1:])]),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "host": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
            "os": platform.platform(),
        },
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Writer:
    """Appends the rows of one run of a case to its file in a directory."""

    case: str
    directory: pathlib.Path
    toy: bool = False  # only tried out; reports leave such rows out
    run: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex[:8])
    load_before: tuple[float, ...] = dataclasses.field(default_factory=os.getloadavg)
    begin_seconds: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def path(self) -> pathlib.Path:
        """The file."""
        return self.directory / f"{self.case}.jsonl"

    def write(self, variant: str, values: Mapping[str, Any]) -> None:
        """Append a row on a variant of the case at once, so that a later failure cannot lose it."""
        row = {
            "case": self.case,
            "run": self.run,
            "variant": variant,
            "toy": self.toy,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **_fixed(),
            "load_before": list(self.load_before),
            "elapsed_seconds": round(time.monotonic() - self.begin_seconds, 1),
            **values,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        with files.open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            os.write(descriptor, (json.dumps(row) + "\n").encode())


def read(path: pathlib.Path, *, toy: bool = False) -> list[dict[str, Any]]:
    """Return the newest row of each variant in a file, without the rows of toy runs, or of toy runs alone.

    Raises:
      ValueError: a line that is no row.
    """
    newest: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            raise ValueError(f"{path} line {number} is not JSON; delete the line") from None
        missing = [name for name in REQUIRED if not isinstance(row, dict) or name not in row]
        if missing:
            raise ValueError(f"{path} line {number} has no {', '.join(missing)}; delete the line")
        if row["toy"] == toy:
            newest.pop(row["variant"], None)
            newest[row["variant"]] = row
    return list(newest.values())


def run_seconds(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Seconds from the start of each run to its last row, of all runs of these rows; None where rows do not say so."""
    seconds: dict[str, float] = {}
    for row in rows:
        if "elapsed_seconds" not in row:
            return None
        seconds[row["run"]] = max(row["elapsed_seconds"], seconds.get(row["run"], 0.0))
    return sum(seconds.values()) if seconds else None

"""metrics.jsonl: what was seen of a training, one JSON object a line, each step once however often it is resumed."""

import errno
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtf_hetero._support.files import check_place, open_regular, write_text

NAME = "metrics.jsonl"
_MOST_STEP = 2**53
Values = Mapping[str, Any]  # of a row: numbers, None, text, or {text: number}


class MetricsLog:
    """Rows of a kind and a step, in a file of a model directory to which one run at a time writes.

    A row is written at once and as a whole. What a killed process, or a full disk, has left of one is cut off when the
    next run begins, and so are rows of steps that were lost with it and will be trained again.

    Args:
      path: the file, which need not exist.

    Example:
      >>> log = MetricsLog("runs/vgg/metrics.jsonl")
      >>> log.begin(step=100)  # that of the checkpoint
      >>> log.append("train", 150, {"loss": 0.3})
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._path = pathlib.Path(path)
        self._known: set[tuple[str, int]] = set()

    def begin(self, step: int) -> None:
        """Take up a training that goes on after a step.

        Raises:
          OSError: the file cannot be read or written; it is as it was.
        """
        check_place(self._path)  # to read a pipe would take for ever
        text = self._path.read_bytes() if self._path.exists() else b""
        kept = [line for line in text.splitlines(keepends=True) if _row_step(line) <= step]
        if len(kept) < len(text.splitlines()):
            write_text(self._path, b"".join(kept).decode())
        rows = [json.loads(line) for line in kept]
        self._known = {(row["kind"], row["step"]) for row in rows}

    def has(self, kind: str, step: int) -> bool:
        """Return whether there is a row of this kind and step."""
        return (kind, step) in self._known

    def append(self, kind: str, step: int, values: Values, *, again: bool = False) -> None:
        """Write a row, unless there is one of this kind and step already.

        Args:
          kind: "train", for instance.
          step: the global step.
          values: numbers, None, text, or {text: number}. What is not finite becomes null.
          again: write it also if there is one.

        Raises:
          OSError: it cannot be written; nothing of it is left.
        """
        if self.has(kind, step) and not again:
            return
        row = {"kind": kind, "step": step, **{name: plain(value) for name, value in values.items()}}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            size = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        self._known.add((kind, step))


def read(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the rows of a file that is whole up to its last line, of which a part may be missing."""
    lines = pathlib.Path(path).read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if _row_step(line) < math.inf]


def read_kind(path: str | os.PathLike, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind so far; without the file there are none."""
    return [row for row in read(path) if row["kind"] == kind] if os.path.exists(path) else []


def _row_step(line: bytes) -> float:
    """Return the step of a row; infinity for what is none."""
    try:
        row = json.loads(line)
        is_whole = line.endswith(b"\n") and isinstance(row["kind"], str) and type(row["step"]) is int
        return row["step"] if is_whole and 0 <= row["step"] <= _MOST_STEP else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def plain(value: object) -> Any:
    """Return a value as JSON has it; of a float32, the digits that it has."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (np.floating, float)):
        return float(str(value)) if math.isfinite(value) else None
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value

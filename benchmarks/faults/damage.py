"""Checkpoints that are damaged: one file at a time, and all of them."""

import dataclasses
import functools
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.faults import checkpoints
from benchmarks.faults.kills import SAVE_STEPS, begun, start
from benchmarks.process import Process

_SECONDS = 90.0
_MORE_STEPS = 2
_OTHERS = ("events.out", "graph.pbtxt")  # what no run resumes from


def _truncate(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(place: float, path: pathlib.Path) -> None:
    """Change a byte of a file; its place is from 0.0, the first, to 1.0, the last."""
    content = bytearray(path.read_bytes())
    if content:
        content[round(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


DAMAGES: Mapping[str, Callable[[pathlib.Path], None]] = MappingProxyType(
    {
        "truncated": _truncate,
        "emptied": lambda path: os.truncate(path, 0),
        "deleted": os.unlink,
        "first byte flipped": functools.partial(_flip, 0.0),
        "byte in the middle flipped": functools.partial(_flip, 0.5),
        "byte at three quarters flipped": functools.partial(_flip, 0.75),
        "last byte flipped": functools.partial(_flip, 1.0),
    }
)
ALL = "all checkpoints truncated"


@dataclasses.dataclass(frozen=True)
class Made:
    """A model directory with several whole checkpoints, which is copied and never changed."""

    directory: pathlib.Path

    @classmethod
    def by_training(cls, directory: pathlib.Path) -> "Made":
        """Trains on three devices, so that there are several files of data."""
        with start(directory, "--layout=three", f"--steps={3 * SAVE_STEPS}", f"--save_steps={SAVE_STEPS}") as process:
            process.succeed(_SECONDS, "no checkpoints were made")
        return cls(directory)

    def cases(self) -> list[tuple[str, str]]:
        """(file, kind of damage) of all that is done, one after another, to what a run resumes from.

        These are the files of the newest checkpoint, and those that are of no one checkpoint.
        """
        newest = checkpoints.newest(self.directory)
        names = sorted(path.name for path in self.directory.iterdir() if path.is_file() and path.stat().st_size)
        of_newest = [name for name in names if re.match(rf"model\.ckpt-{newest}\b", name)]
        files = [*of_newest, *(name for name in names if not name.startswith(("model.ckpt-", *_OTHERS)))]
        return [(name, damage) for name in files for damage in DAMAGES]


def carry_out(made: Made, name: str, damage: str, directory: pathlib.Path) -> dict[str, Any]:
    """Damages a file, or ALL, of a copy in a directory, by one of DAMAGES, and trains on; what became of it."""
    shutil.copytree(made.directory, directory)
    for path in directory.glob("model.ckpt-*") if name == ALL else [directory / name]:
        DAMAGES[damage](path)
    newest = checkpoints.newest(made.directory) or 0
    whole = checkpoints.newest(directory)
    before = checkpoints.digests(directory)
    flags = ("--layout=two", f"--steps={newest + _MORE_STEPS}", "--save_steps=100", "--keep=100")
    with start(directory, *flags) as process:
        code = process.wait(_SECONDS)
    row = {"file": name, "damage": damage, "whole": whole, "begun": begun(process), "exit_code": code}
    passed_over = [line for line in process.error_lines if f"model.ckpt-{newest}" in line]
    line = (passed_over or process.error_lines or [""])[-1].strip()
    row |= {"line": line.replace(str(directory), "DIR"), "passed_over": len(passed_over)}
    failures = _judge_refusal(process, code) if whole is None else []
    if whole is not None:
        failures += [f"exit code {code}, not 0: {process.last_words}"] if code != 0 else []
        failures += [f"begun at step {row['begun']}, not {whole}"] if row["begun"] != whole else []
        if whole < newest and len(passed_over) != 1:
            failures.append(f"{len(passed_over)} lines name the checkpoint that was passed over, not 1")
    kept = {file: digest for file, digest in before.items() if whole is None or checkpoints.parse_step(file) <= whole}
    changed = checkpoints.changed(kept, directory)
    failures += [f"changed: {', '.join(changed)}"] if changed else []
    return {**row, "failures": failures}


def _judge_refusal(process: Process, code: int | None) -> list[str]:
    errors = [line for line in process.error_lines if line.startswith("error: ")]
    failures = [] if code == 2 else [f"exit code {code}, not 2"]
    return failures if len(errors) == 1 else [*failures, f"{len(errors)} lines with an error, not 1"]

"""Python processes: started, read line by line as they speak, and ended whatever happens."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from benchmarks.rows import ROOT

# Lines of a training while all is well: its progress, lines of absl (with a date, where native ones have 0000),
# and its answers to signals
_PROGRESS = re.compile(r"^step \d+(/\d+)?  |^I(?!0000)\d{4} |^(warning: |W\d{4} .*\b)SIG(INT|TERM|HUP)( again)?: ")
_running: set["Process"] = set()


class TooLateError(RuntimeError):
    """An expected line of a process, or its end, did not come in time."""


class Process:
    """A Python process, in a session of its own. Leaving the `with` block kills it and all that it started.

    Args:
      arguments: of the interpreter: `-m`, module, flags.
      environment: variables to set beside this process's.
      wrapper: what the interpreter is started by, such as `prlimit --fsize=1000`.
      **options: of subprocess.Popen, in place of the defaults.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        **options: Any,
    ) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TF_CPP", "TF_CONFIG"))}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._files = {name: tempfile.TemporaryFile() for name in ("stdout", "stderr")}  # noqa: SIM115 - for `close`
        self._kept: dict[str, list[str]] = {}  # what they had when they were closed
        defaults = {"stdin": subprocess.DEVNULL, **self._files, "cwd": ROOT}
        self._begin = time.monotonic()
        self._popen = subprocess.Popen(
            [*wrapper, sys.executable, *arguments],
            env={**inherited, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(environment or {})},
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children itself
            **{**defaults, **options},
        )
        _running.add(self)
        self.pid = self._popen.pid
        self.seconds = 0.0

    def _lines(self, name: str) -> list[str]:
        """Whole lines, and once it has ended the rest, of a file the place in which is the process's own."""
        if name in self._kept:
            return self._kept[name]
        ended, number = not self.runs, self._files[name].fileno()
        text = os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")
        lines = text.split("\n")
        return lines if ended and lines[-1] else lines[:-1]

    @property
    def out(self) -> list[str]:
        """Lines of the standard output so far."""
        return self._lines("stdout")

    @property
    def err(self) -> list[str]:
        """Lines of the standard error so far."""
        return self._lines("stderr")

    @property
    def error_lines(self) -> list[str]:
        """Lines of the standard error that are no progress of training."""
        return [line for line in self.err if line.strip() and not _PROGRESS.match(line)]

    @property
    def last_words(self) -> str:
        """The last that it said."""
        return " | ".join(self.error_lines[-2:])

    @property
    def runs(self) -> bool:
        """True until the process has ended."""
        return self._popen.poll() is None

    def await_line(self, pattern: str, *, of: str = "err", after: int = 0, seconds: float = 120.0) -> int:
        """Return the index of the first line, from the index `after` on, in which a pattern is.

        Raises:
          TooLateError: there is none in time, or the process ended without it.
        """
        end = time.monotonic() + seconds
        while True:
            ended = not self.runs
            for index, line in enumerate((self.err if of == "err" else self.out)[after:], after):
                if re.search(pattern, line):
                    return index
            if ended or time.monotonic() > end:
                how = "ended without" if ended else f"has not within {seconds:.0f} s"
                raise TooLateError(f"the process {how} the line {pattern!r}; its last: {self.last_words}")
            self.wait_briefly()

    def await_file(self, name: str, seconds: float = 60.0) -> None:
        """Wait until the process has mapped a file, a library, whose path contains a name."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.wait_briefly():
            if name in pathlib.Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8"):
                return
        raise TooLateError(f"the process has not loaded {name}; its last: {self.last_words}")

    def wait_briefly(self) -> bool:
        """Wait for a moment, and return whether the process still runs."""
        time.sleep(0.05)
        return self.runs

    def send(self, number: int) -> None:
        """Send a signal, where the process still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None where the process does not end in time, and is killed."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._popen.wait(max(seconds, 0.1))
        self.seconds = time.monotonic() - self._begin
        if code is None:
            self.close()
        return code

    def succeed(self, seconds: float, what: str) -> None:
        """Wait for its end; raise RuntimeError where that is not a good one."""
        if self.wait(seconds) != 0:
            raise RuntimeError(f"{what}: {self.last_words}")

    def close(self) -> None:
        """Kills the process and its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait(30)
        self._kept = {name: self._lines(name) for name in self._files}
        for file in self._files.values():
            file.close()
        _running.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def close_all() -> None:
    """Kills all processes that still run: other threads wait for them."""
    for process in list(_running):
        process.close()


def heed_interrupts() -> None:
    """Lets children heed SIGINT, which a shell's background processes ignore, and SIGHUP, which those of nohup do."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)

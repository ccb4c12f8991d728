"""Python processes: started, read line by line as they speak, and ended whatever happens."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

from benchmarks.rows import ROOT

# What training logs while all is well, lines of Python's absl, which have a date, where native ones have 0000; and its
# answers to signals
_PROGRESS = re.compile(r"^I(?!0000)\d{4} |^W\d{4} .*\bSIG(INT|TERM|HUP)( again)?: ")
_running: set["Process"] = set()


class TooLateError(RuntimeError):
    """What a process was to say, or its end, did not come in time."""


class _Lines:
    """The lines of a stream, as they come."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []
        self.news = threading.Condition()
        self.thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self.thread.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self.news:
                    self.lines.append(line.rstrip("\n"))
                    self.news.notify_all()


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
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT}
        self._begin = time.monotonic()
        self._popen = subprocess.Popen(
            [*wrapper, sys.executable, *arguments],
            env={**inherited, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(environment or {})},
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children itself
            **{**defaults, **options},
        )
        _running.add(self)
        self.pid = self._popen.pid
        streams = {"out": self._popen.stdout, "err": self._popen.stderr}
        self._readers = {name: _Lines(stream) for name, stream in streams.items() if stream is not None}
        self.seconds = 0.0

    def _lines(self, name: str) -> list[str]:
        return list(self._readers[name].lines) if name in self._readers else []

    @property
    def out(self) -> list[str]:
        """Lines of the standard output so far."""
        return self._lines("out")

    @property
    def err(self) -> list[str]:
        """Lines of the standard error so far."""
        return self._lines("err")

    @property
    def said(self) -> list[str]:
        """Lines of the standard error that are no progress of training."""
        return [line for line in self.err if line.strip() and not _PROGRESS.match(line)]

    @property
    def last_words(self) -> str:
        """The last that it said."""
        return " | ".join(self.said[-2:])

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def await_line(self, pattern: str, *, of: str = "err", after: int = 0, seconds: float = 120.0) -> int:
        """The index of the first line, from the index `after` on, in which a pattern is.

        Raises:
          TooLateError: there is none in time, or the process ended without it.
        """
        reader = self._readers[of]
        end = time.monotonic() + seconds
        ended = False
        while True:
            with reader.news:
                for index, line in enumerate(reader.lines[after:], after):
                    if re.search(pattern, line):
                        return index
                if ended or time.monotonic() > end:
                    how = "ended without" if ended else f"has not within {seconds:.0f} s"
                    raise TooLateError(f"the process {how} the line {pattern!r}; its last: {self.last_words}")
                reader.news.wait(0.2)
            if not self.runs:
                reader.thread.join(5.0)
                ended = True

    def await_file(self, name: str, seconds: float = 60.0) -> None:
        """Waits until the process has mapped a file, a library, whose path contains a name."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.wait_briefly():
            if name in pathlib.Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8"):
                return
        raise TooLateError(f"the process has not loaded {name}; its last: {self.last_words}")

    def wait_briefly(self) -> bool:
        """Waits for a moment; returns whether the process still runs."""
        time.sleep(0.05)
        return self.runs

    def send(self, number: int) -> None:
        """Sends a signal, where the process still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None where the process does not end in time, and is killed."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._popen.wait(max(seconds, 0.1))
        self.seconds = time.monotonic() - self._begin
        if code is None:
            self.close()
        for reader in self._readers.values():
            reader.thread.join(5.0)
        return code

    def succeed(self, seconds: float, what: str) -> None:
        """Waits for its end; raises RuntimeError where that is not a good one."""
        if self.wait(seconds) != 0:
            raise RuntimeError(f"{what}: {self.last_words}")

    def close(self) -> None:
        """Kills the process and its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait(30)
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

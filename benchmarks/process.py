"""A process that holds one object and does what it is told: each thing that is measured lives in one of its own.

The parent sends one JSON line per call and waits for one JSON line; between calls the child sleeps in a read.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil

from benchmarks.rows import ROOT

# Threads that wait for work must sleep, or they would take time from what is measured beside them.
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "KERAS_BACKEND": "tensorflow",
}
_TAIL = 2000  # characters of a child's standard error that are shown when it dies
_EXIT_SECONDS = 10
_START_SECONDS = 60


class ChildError(RuntimeError):
    """What a child raised, in one line; or how it died."""


def _send(stream: Any, message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def _result(answer: Mapping[str, Any]) -> Any:
    """What a call returned; raises what it raised."""
    if "error" in answer:
        raise (ValueError if answer["error"] == "ValueError" else ChildError)(answer["message"])
    return answer["result"]


class Child:
    """The parent's end.

    Args:
      target: "package.module:Class", which the child makes an object of.
      arguments: keyword arguments of the class.

    Raises:
      ValueError: the class raised it: a mistake of the user's.
      ChildError: the class raised anything else.
    """

    def __init__(self, target: str, arguments: Mapping[str, Any] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.process", target],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children itself
        )
        self._usage = psutil.Process(self._popen.pid)
        try:
            self.call("__init__", **(arguments or {}))
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *, timeout_seconds: float | None = None, **arguments: Any) -> Any:
        """Calls a method of the child's object and returns its result, which is what JSON can hold.

        Args:
          method: its name.
          timeout_seconds: how long to wait; None: for ever.
          **arguments: its keyword arguments.

        Raises:
          ValueError: the method raised it.
          ChildError: the method raised anything else, the child died, or the time is over.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            _send(self._popen.stdin, {"method": method, "arguments": arguments})
        except BrokenPipeError:
            raise self._death() from None
        if timeout_seconds is not None and not select.select([self._popen.stdout], [], [], timeout_seconds)[0]:
            self.close()
            raise ChildError(f"no answer within {timeout_seconds:.0f} s")
        line = self._popen.stdout.readline()
        if not line:
            raise self._death()
        return _result(json.loads(line))

    def cpu_seconds(self) -> float:
        """Processor time that all threads of the child have used so far."""
        times = self._usage.cpu_times()
        return times.user + times.system

    def close(self) -> None:
        """Ends the child, and what it has started."""
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait(_EXIT_SECONDS)
        for stream in (self._popen.stdin, self._popen.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _death(self) -> ChildError:
        code = self._popen.wait(_EXIT_SECONDS)
        self._stderr.seek(0)
        tail = " ".join(self._stderr.read().decode(errors="replace")[-_TAIL:].split())
        return ChildError(f"the process ended with exit code {code}: {tail}")


def _answer(held: dict[str, Any], make: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if request["method"] == "__init__":
            held["object"] = make(**request["arguments"])
            return {"result": None}
        return {"result": getattr(held["object"], request["method"])(**request["arguments"])}
    except Exception as error:
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        message = " ".join(str(error).split())[:_TAIL]
        return {"error": kind, "message": message if kind == "ValueError" else f"{kind}: {message}"}


def serve(target: str, requests: Iterable[bytes], answers: Any) -> None:
    """The child's end: answers until there are no more requests."""
    module, name = target.split(":")
    held: dict[str, Any] = {}
    make = getattr(importlib.import_module(module), name)
    for line in requests:
        _send(answers, _answer(held, make, json.loads(line)))


class LimitedChildren:
    """Children of one class that are held by a LimitedProcesses, and spoken to over sockets of this machine.

    Args:
      target: "package.module:Class".
      arguments: keyword arguments of the class, per child.
      processes: entered; it has as many processes as there are children.

    Raises:
      ChildError: the class raised something, or a child died.
    """

    def __init__(self, target: str, arguments: Sequence[Mapping[str, Any]], processes: Any) -> None:
        self._streams: list[Any] = []
        self._processes = processes
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_START_SECONDS)
            port = server.getsockname()[1]
            for index in range(len(arguments)):
                processes.start(index, [sys.executable, "-m", "benchmarks.process", target, str(port)])
                connection, _ = server.accept()
                connection.settimeout(None)
                self._streams.append(connection.makefile("rwb"))
                connection.close()
        self._call("__init__", arguments)
        for index in range(len(arguments)):
            processes.limit(index)

    def call(self, method: str, **arguments: Any) -> list[Any]:
        """Calls a method of all of them at once; returns their results."""
        return self._call(method, [arguments] * len(self._streams))

    def _call(self, method: str, arguments: Sequence[Mapping[str, Any]]) -> list[Any]:
        for stream, of_child in zip(self._streams, arguments, strict=True):
            _send(stream, {"method": method, "arguments": of_child})
        answers = []
        for index, stream in enumerate(self._streams):
            line = stream.readline()
            if not line:
                raise ChildError(f"the process ended: {self._processes.last_lines(index)}")
            answers.append(json.loads(line))
        return [_result(answer) for answer in answers]

    def close(self) -> None:
        """Closes the sockets, at which the children end."""
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.close()


def main(argv: Sequence[str]) -> None:
    """Serves on the socket whose port is the second argument, or else on the standard input and output.

    What libraries print goes to the standard error.
    """
    if len(argv) > 1:
        with socket.create_connection(("127.0.0.1", int(argv[1]))) as connection, connection.makefile("rwb") as stream:
            serve(argv[0], stream, stream)
        return
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        serve(argv[0], sys.stdin.buffer, answers)


if __name__ == "__main__":
    main(sys.argv[1:])

"""A process that holds one object and does what it is told: each thing that is measured lives in one of its own.

The parent sends one JSON line per call over a socket of this machine, and waits for one JSON line; between calls the
child sleeps in a read.
"""

import contextlib
import importlib
import json
import os
import select
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Self

import psutil

from benchmarks.process import Process
from mtf_hetero._support import start_up

# Threads that wait for work must sleep, or they would take time from what is measured beside them.
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "KERAS_BACKEND": "tensorflow",
    **start_up.KERNELS,  # of all ways: programs of others do not import mtf_hetero
}
_TAIL = 2000  # characters of a child's standard error that are shown when it dies
_EXIT_SECONDS = 10
_START_SECONDS = 60


# What starts a process in a network of its own: a wrapper of a Process
_OWN_NETWORK = "unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"


class ChildError(RuntimeError):
    """The error that a child raised, in one line, or the way in which it died."""


class Child:
    """A child: an object of the class "package.module:Class", made with these keyword arguments.

    Args:
      target: the class.
      arguments: its keyword arguments.
      own_network: whether it and the processes that it starts have a network of their own.

    Raises:
      ValueError: the class raised it: a mistake of the user's.
      ChildError: the class raised anything else.
    """

    def __init__(self, target: str, arguments: Mapping[str, Any] | None = None, own_network: bool = False) -> None:
        self._stream: Any = None
        self._wrapper = _OWN_NETWORK if own_network else ()
        try:
            self._connect(target)
            self.call("__init__", **(arguments or {}))
        except BaseException:
            self.close()
            raise

    def _connect(self, target: str) -> None:
        # a socket with a path, which a process in another network reaches too
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as server:
            path = os.path.join(directory, "child")
            server.bind(path)
            server.listen()
            server.settimeout(_START_SECONDS)
            self._start(["-m", "benchmarks.child", target, path])
            try:
                self._connection, _ = server.accept()
            except TimeoutError:
                raise ChildError(self._death()) from None
        self._connection.settimeout(None)
        self._stream = self._connection.makefile("rwb")

    def _start(self, arguments: list[str]) -> None:
        self._process = Process(arguments, environment=ENVIRONMENT, wrapper=self._wrapper)
        self.pid = self._process.pid
        self._usage = psutil.Process(self.pid)

    def _end(self) -> None:
        if hasattr(self, "_process"):  # Ctrl-C may come before the process is started
            self._process.close()

    def _death(self) -> str:
        code = self._process.wait(_EXIT_SECONDS)
        return f"the process ended with exit code {code}: {' '.join(' '.join(self._process.err).split())[-_TAIL:]}"

    def send(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Asks for a call of a method."""
        try:
            _send(self._stream, {"method": method, "arguments": arguments})
        except (OSError, ValueError):  # a stream that is closed
            raise ChildError(self._death()) from None

    def answer(self, timeout_seconds: float | None = None) -> Mapping[str, Any]:
        """Return the outcome of the call, for `result`."""
        if timeout_seconds is not None and not select.select([self._connection], [], [], timeout_seconds)[0]:
            self.close()
            raise ChildError(f"no answer within {timeout_seconds:.0f} s")
        line = b""
        with contextlib.suppress(ConnectionResetError):
            line = self._stream.readline()
        if not line:
            raise ChildError(self._death())
        return json.loads(line)

    def call(self, method: str, *, timeout_seconds: float | None = None, **arguments: Any) -> Any:
        """Call a method of the child's object and return its result, which is what JSON can hold.

        Raises:
          ValueError: the method raised it.
          ChildError: the method raised anything else, the child died, or the time is over; without one it has for ever.
        """
        self.send(method, arguments)
        return result(self.answer(timeout_seconds))

    def cpu_seconds(self) -> float:
        """Processor time that all threads of the child have used so far."""
        times = self._usage.cpu_times()
        return times.user + times.system

    def close(self) -> None:
        """End the child, and what it has started."""
        self._end()
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
                self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class LimitedChild(Child):
    """A child that is a process of a LimitedProcesses, which is entered. Whether it could be made, its answer says."""

    def __init__(self, target: str, arguments: Mapping[str, Any], processes: Any, index: int) -> None:
        self._processes, self._index = processes, index
        self._connect(target)
        self.send("__init__", arguments)

    def _start(self, arguments: list[str]) -> None:
        self._processes.start(self._index, [sys.executable, *arguments])

    def _end(self) -> None:
        """Nothing: it ends where the stream does, or its LimitedProcesses."""

    def _death(self) -> str:
        return f"the process ended: {self._processes.last_lines(self._index)}"


def result(answer: Mapping[str, Any]) -> Any:
    """Return the return value of a call; raises the call's error, as `Child.call` does."""
    if "error" in answer:
        raise (ValueError if answer["error"] == "ValueError" else ChildError)(answer["message"])
    return answer["result"]


def _send(stream: Any, message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


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


def main(target: str, path: str) -> None:
    """Run the child: answer requests at a socket until the last one."""
    module, name = target.split(":")
    held: dict[str, Any] = {}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        stream = connection.makefile("rwb")
        make = getattr(importlib.import_module(module), name)
        for line in stream:
            _send(stream, _answer(held, make, json.loads(line)))


if __name__ == "__main__":
    main(*sys.argv[1:])

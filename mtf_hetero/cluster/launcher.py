"""Workers on other machines, which this process starts over ssh, and which end with it.

Each worker ends when its standard input closes. So it ends with this process, however that ends, and with its
connection.
"""

import collections
import contextlib
import dataclasses
import itertools
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from mtf_hetero.cluster.probe import ask_all, host_towards, is_port, read_lines
from mtf_hetero.cluster.worker import LISTENS

_LOGIN = re.compile(r"[\w.@%+-]+")  # has no character that a shell interprets
_LOCAL = ("localhost", "127.0.0.1")
_READ_VARIABLES = 'while IFS= read -r pair && [ -n "$pair" ]; do export "$pair"; done; exec "$@"'
_MOST_INPUT_BYTES = 32_000  # a pipe holds more, so nothing waits for the reader
_ASK_SECONDS, _POLL_SECONDS = 5.0, 0.2  # of a question to a worker, and between two
_LATER_SECONDS = 10.0  # for the other workers, after one has failed
_END_SECONDS = 5.0  # after the input is closed, then after SIGTERM, before SIGKILL
_RESTART_SECONDS = 3.0  # a worker that cannot start shall not use up its restarts at once
_NOT_FOUND = (126, 127)  # a shell's exit codes if it cannot run a command

Say = Callable[[int, str], object]  # number of a worker, a line


@dataclasses.dataclass(frozen=True)
class Host:
    """The host of a worker.

    Args:
      login: the name that ssh gets, "user@b".
      port: of the worker.
      text: what the user wrote.
    """

    login: str
    port: int
    text: str

    @classmethod
    def parse(cls, text: str, port: int) -> "Host":
        """Return the host of "b", "user@b" or "user@b:2223"; `port` is that of its worker if the text has none.

        Raises:
          ValueError: it is not written so.
        """
        login, colon, own = text.partition(":")
        name = login.rpartition("@")[2]
        if not name or login.startswith("-") or not _LOGIN.fullmatch(login) or (colon and not is_port(own)):
            raise ValueError(f"host {text!r} is not a host; write one such as b, user@b or b:2223")
        return cls(login, int(own) if colon else port, text)

    @property
    def name(self) -> str:
        """Return the host without the user."""
        return self.login.rpartition("@")[2]

    @property
    def is_local(self) -> bool:
        """Return whether the worker is started without ssh."""
        return self.login in _LOCAL


def convert_to_hosts(texts: Sequence[str], port: int) -> tuple[Host, ...]:
    """Return the hosts of ["a", "user@b", "localhost:2223"].

    Args:
      texts: one per host.
      port: of each worker whose host names none; 0: it gets a port later.

    Raises:
      ValueError: one is no host, or two have the same port.
    """
    hosts = tuple(Host.parse(text.strip(), port) for text in texts if text.strip())
    if not hosts:
        raise ValueError("no host is named; give hosts with commas between them, such as a,b or localhost")
    places = [(host.name, host.port) for host in hosts]
    for host in hosts:
        if host.port and places.count((host.name, host.port)) > 1:
            raise ValueError(f"host {host.text!r} comes twice; give each worker its port, as in {host.login}:2223")
    return hosts


def read_hosts(path: str, port: int) -> tuple[Host, ...]:
    """Return the hosts of a file with one per line, as `convert_to_hosts` does."""
    return read_lines(path, f"--hostfile={path}", "host", lambda lines: convert_to_hosts(lines, port))


def host_addresses(hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return "host:port" of each worker; of a local one, the address of this machine that the others can reach."""
    here, remote = "127.0.0.1", [f"{host.name}:{host.port}" for host in hosts if not host.is_local]
    if remote and len(remote) < len(hosts):
        for address in remote:
            try:
                host_towards([address])
            except OSError as error:
                raise ValueError(f"host {address} is not known here: {error.strerror or error}") from error
        here = host_towards(remote)
    return tuple(f"{here if host.is_local else host.name}:{host.port}" for host in hosts)


def host_command(host: Host, worker: Sequence[str], ssh: Sequence[str]) -> list[str]:
    """Return the command that runs a worker's command on its host."""
    return [*worker] if host.is_local else [*ssh, host.login, f"exec {shlex.join(worker)}"]


def with_variables(command: Sequence[str]) -> list[str]:
    """Return a command that reads its environment from the standard input first, as `convert_to_input` writes it."""
    return ["sh", "-c", _READ_VARIABLES, "sh", *command]


def convert_to_input(variables: Mapping[str, str]) -> bytes:
    """Return what a command of `with_variables` reads; b"": there are no variables.

    Values are not arguments of any command: all users of a machine see those.

    Raises:
      ValueError: a value cannot be sent. The message has no value, which may be secret.
    """
    for name, value in variables.items():
        if set(value) & set("\n\0"):
            raise ValueError(
                f"the environment variable {name} has several lines; save it in a file, and name that file"
            )
    text = "".join(f"{name}={value}\n" for name, value in variables.items()).encode(errors="surrogateescape")
    if len(text) > _MOST_INPUT_BYTES:
        raise ValueError(f"the environment variables have {len(text)} bytes; at most {_MOST_INPUT_BYTES} can be sent")
    return text + b"\n" if text else b""


class LaunchedWorkers:
    """Workers that run while this is entered. A context manager.

    Args:
      hosts: of the workers.
      commands: starts each of them.
      say: called with the number of a worker and a line that it printed, in a thread.
      addresses: "host:port" of each for this machine; None: as `host_addresses` returns them.
      first_input: written to the standard input of each, which then stays open.
      restarts: how often a worker is started again that ends after its start.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        commands: Sequence[Sequence[str]],
        say: Say,
        *,
        addresses: Sequence[str] | None = None,
        first_input: bytes = b"",
        restarts: int = 0,
    ) -> None:
        self.addresses = tuple(addresses or host_addresses(hosts))
        self._hosts, self._commands, self._say, self._first_input = hosts, commands, say, first_input
        self._restarts = restarts
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._last: list[collections.deque[str]] = [collections.deque(maxlen=1) for _ in hosts]
        self._listening: set[int] = set()
        self._waits = True  # whether their ends are reported by `wait`
        self._ends = threading.Event()
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        try:
            for number, command in enumerate(self._commands):
                self._start(number, command)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._starting:
            self._ends.set()
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for stop in (subprocess.Popen.terminate, subprocess.Popen.kill):
            end = time.monotonic() + _END_SECONDS
            for process in self._processes:
                try:
                    process.wait(max(end - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    stop(process)
        for process in self._processes:
            process.wait()
        for reader in self._readers:
            reader.join(_END_SECONDS)

    def wait(self, seconds: float) -> list[str]:
        """Wait so many seconds at most until all workers answer; returns a line about each one that does not."""
        failed: dict[int, str] = {}
        reasons: dict[int, str] = {}
        waiting = dict(enumerate(self.addresses))
        end = time.monotonic() + seconds
        while waiting and time.monotonic() < end:
            answers = ask_all(waiting, _ASK_SECONDS)
            for number, answer in answers.items():
                # Until a worker says that it listens, an older one may answer at its port
                reasons[number] = answer.failure or ("" if number in self._listening else "it has not started")
                code = self._processes[number].poll()
                if code is not None:
                    self._readers[number].join(_END_SECONDS)
                    failed[number] = self._failure(number, code)
                    end = min(end, time.monotonic() + _LATER_SECONDS)
                if code is not None or not reasons[number]:
                    del waiting[number]
            time.sleep(_POLL_SECONDS if waiting else 0.0)
        for number, address in waiting.items():
            failed[number] = (
                f"{self._hosts[number].text}: the worker did not answer at {address}: {reasons[number]}; check the "
                "network and the firewall, or allow more time with --start_seconds"
            )
        self._waits = False
        return [failed[number] for number in sorted(failed)]

    def _start(self, number: int, command: Sequence[str]) -> None:
        process = self._open(command)
        self._processes.append(process)
        reader = threading.Thread(target=self._follow, args=(number, process), name=f"launched_{number}", daemon=True)
        self._readers.append(reader)
        reader.start()

    def _open(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the training, which needs its workers to save
            )
        except OSError as error:
            raise ValueError(f"{command[0]!r} cannot be run: {error.strerror}; name another command") from error
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended already; `wait` tells why
            process.stdin.write(self._first_input)
            process.stdin.flush()
        return process

    def _follow(self, number: int, process: "subprocess.Popen[bytes]") -> None:
        """Show what a worker prints, and start it again if it ends."""
        for start in itertools.count(1):
            code = self._read(number, process)
            if self._waits or self._ends.is_set():
                return
            again = f"; start {start} of {self._restarts} follows" if start <= self._restarts else ""
            self._say(number, f"the worker ended with exit code {code}{again}")
            if not again or self._ends.wait(_RESTART_SECONDS):
                return
            with self._starting:
                if self._ends.is_set():
                    return
                assert process.stdin is not None
                with contextlib.suppress(OSError):
                    process.stdin.close()
                process = self._processes[number] = self._open(self._commands[number])

    def _read(self, number: int, process: "subprocess.Popen[bytes]") -> int:
        """Show what a worker prints until it ends; returns its exit code."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._last[number].append(text)
                if text.startswith(LISTENS):
                    self._listening.add(number)
                self._say(number, text)
        return process.wait()

    def _failure(self, number: int, code: int) -> str:
        last = "".join(self._last[number]).removeprefix("error: ") or "it printed nothing"
        remedy = "; name the Python of that host with --python" if code in _NOT_FOUND else ""
        if "forwarding failed" in last:  # as ssh says it
            remedy = "; another program uses that port there, so choose others with --port"
        return f"{self._hosts[number].text}: the worker did not start (exit code {code}): {last}{remedy}"


def run_bound(command: Sequence[str], started: Callable[["subprocess.Popen[bytes]"], object]) -> int:
    """Run a command, which gets SIGTERM if this process is killed; returns its exit code as a shell does.

    Args:
      command: runs with this Python.
      started: called with its process.
    """
    bind = ["-c", _BIND] if sys.platform == "linux" else []
    process = subprocess.Popen([sys.executable, *bind, *command], start_new_session=True)
    started(process)
    code = process.wait()
    return 128 - code if code < 0 else code


# Not in preexec_fn: with one, the process is forked, which gRPC's threads do not outlive
_BIND = (
    "import ctypes, os, signal, sys; "
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)

"""Questions to workers: a TCP connection, then TensorFlow's own GetStatus call, each with a time limit.

A connection alone is not enough: the kernel accepts those for a process that is stopped. TensorFlow's Python calls do
not serve: they hold the interpreter's lock for as long as they wait.
"""

import concurrent.futures
import dataclasses
import enum
import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import grpc

from mtf_hetero._support import files

_Parsed = TypeVar("_Parsed")
_Worker = TypeVar("_Worker")
_Result = TypeVar("_Result")
Workers = Sequence[str] | Mapping[int, str]  # "host:port" of each, by index if some are missing

_GET_STATUS = "/tensorflow.WorkerService/GetStatus"
PORTS = range(1, 65536)  # TCP's; 0 asks the kernel for a free one
NO_PROXY = (("grpc.enable_http_proxy", 0),)

closed: set[str] = set()  # "host:port" of workers of this process's LocalClusters that were closed
# "host:port" of workers that answer: an operation there that has not ended in time (pulse)
hung: "dict[str, concurrent.futures.Future[None]]" = {}


class UnreachableWorkerError(ValueError):
    """A worker that the user named does not answer.

    Args:
      message: for the user.
      workers: {index: "host:port"} of those that do not answer, as far as they are known.
    """

    def __init__(self, message: str, workers: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.workers = dict(workers or {})


class Outcome(enum.Enum):
    """The outcome of a question to a worker."""

    ANSWERED = "it answered"
    REFUSED = "nothing listens at its port"
    SILENT = "no answer came in time"
    UNREACHABLE = "no connection could be made"
    BROKEN = "the connection broke"
    SOMETHING_ELSE = "another service answered"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of a worker, or the reason why there is none.

    Args:
      outcome: of the question.
      failure: the reason for the user; "": it answered.
      status: identifies the process that answered.
    """

    outcome: Outcome
    failure: str = ""
    status: bytes = b""


class Failures:
    """Counts a worker's failures in a row: a single one may come from the network, or from a busy machine."""

    def __init__(self) -> None:
        self.count = 0
        self._status = b""

    def is_gone(self, answer: Answer) -> bool:
        """Return whether this answer, after those before it, means that the worker is gone."""
        if answer.outcome is Outcome.ANSWERED:
            before, self._status, self.count = self._status, answer.status, 0
            return before not in (b"", answer.status)  # another process answers at the same address
        self.count += 1
        return self.count > 1 or answer.outcome is Outcome.REFUSED  # a closed port leaves no doubt


def convert_to_workers(workers: str | Sequence[str], name: str = "workers") -> tuple[str, ...]:
    """Return addresses of workers, ("a:2222", "b:2222"), from "a:2222,b:2222", a sequence, or a file "@hosts.txt".

    The file has one address per line. A # begins a comment.

    Args:
      workers: the addresses, or the file.
      name: what the user calls them, for messages.

    Raises:
      ValueError: one is not host:port, or comes twice, or the file cannot be read or has none.
    """
    parts = workers.split(",") if isinstance(workers, str) else list(workers)
    addresses = tuple(part.strip() for part in parts if part.strip())
    if len(addresses) == 1 and addresses[0].startswith("@"):
        return read_lines(addresses[0][1:], f"{name}={addresses[0]}", "host:port", _checked)
    return _checked(addresses)


def _checked(addresses: tuple[str, ...]) -> tuple[str, ...]:
    for address in addresses:
        split_address(address)
        if addresses.count(address) > 1:
            raise ValueError(f"worker address {address!r} is given twice; name each worker once")
    return addresses


def read_lines(path: str, source: str, form: str, parse: Callable[[tuple[str, ...]], _Parsed]) -> _Parsed:
    """Return what a function makes of the lines of a file, which are one or more. A # begins a comment.

    Args:
      path: of the file.
      source: how the user named the file, for messages.
      form: of a line.
      parse: raises ValueError for a wrong line.

    Raises:
      ValueError: the file cannot be read, or has no line, or a wrong one.
    """
    try:
        lines = files.read_text(os.path.expanduser(path)).splitlines()
    except ValueError as error:
        why = str(error)
        why = why[:1].lower() + why[1:]
        raise ValueError(f"{source}: {why}; write one {form} per line") from error
    found = tuple(text for line in lines if (text := line.partition("#")[0].strip()))
    if not found:
        raise ValueError(f"{source}: the file has none; write one {form} per line")
    try:
        return parse(found)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def may_change(workers: str) -> bool:
    """Return whether a text stands for workers that may change: a file, "@hosts.txt", or a port, ":2300"."""
    return workers.startswith(("@", ":"))


def split_address(address: str) -> tuple[str, int]:
    """Return ("host", 2222) from "host:2222".

    Raises:
      ValueError: it is not written so.
    """
    host, colon, port = address.rpartition(":")
    if not (host and colon and is_port(port)) or set(host) & set("/:, \t"):
        raise ValueError(f"worker address {address!r} is not host:port; write one such as 10.0.0.7:2222")
    return host, int(port)


def is_port(text: str) -> bool:
    """Return whether a text is a number from 1 to 65535."""
    return text.isascii() and text.isdigit() and int(text) in PORTS


def is_free(port: int, host: str = "") -> bool:
    """Return whether a server may listen at a port of this machine: of one address, or of all."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


def host_towards(workers: Sequence[str]) -> str:
    """Return the address of this machine that a worker on another one can reach. Nothing is sent."""
    addresses = []
    for host, port in map(split_address, workers):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            addresses.append(probe.getsockname()[0])
    remote = [address for address in addresses if not address.startswith("127.")]
    return next(itertools.chain(remote, addresses))


def by_index(workers: Workers) -> dict[int, str]:
    """Return {index: "host:port"} of workers, in the order of their indices.

    Example:
      >>> by_index(("a:1", "b:2")), by_index({2: "c:3"})
      ({0: 'a:1', 1: 'b:2'}, {2: 'c:3'})
    """
    return dict(sorted(workers.items()) if isinstance(workers, Mapping) else enumerate(workers))


def ask(address: str, timeout_seconds: float) -> Answer:
    """Ask one worker."""
    end = time.monotonic() + timeout_seconds
    silence = Answer(Outcome.SILENT, f"no answer within {timeout_seconds:g} seconds")
    try:
        socket.create_connection(split_address(address), timeout_seconds).close()
    except TimeoutError:
        return silence
    except ConnectionRefusedError:
        return Answer(Outcome.REFUSED, "connection refused")
    except OSError as error:
        return Answer(Outcome.UNREACHABLE, (error.strerror or str(error)).lower())
    try:
        with grpc.insecure_channel(address, options=NO_PROXY) as channel:
            call = channel.unary_unary(_GET_STATUS)
            status = call(b"", timeout=max(end - time.monotonic(), 0.1))
            if address in hung and not hung[address].done():
                return Answer(Outcome.SILENT, "it answers, but its devices carry out no operation")
            hung.pop(address, None)
            return Answer(Outcome.ANSWERED, status=status)
    except grpc.RpcError as error:
        code = getattr(error, "code", lambda: None)()
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return silence
        something_else = "another service is listening on that port"
        if code == grpc.StatusCode.UNAVAILABLE:
            return Answer(Outcome.BROKEN, f"the connection broke, or {something_else}")
        return Answer(Outcome.SOMETHING_ELSE, something_else)


def ask_all(workers: Workers, timeout_seconds: float) -> dict[int, Answer]:
    """Ask all workers at the same time; returns the answers by index."""
    return in_parallel(lambda address: ask(address, timeout_seconds), by_index(workers))


# One after another, a program that outlives its workers waits six seconds for each
def in_parallel(function: Callable[[_Worker], _Result], workers: Mapping[int, _Worker]) -> dict[int, _Result]:
    """Call a function for each worker in a thread; returns {index: its result}."""
    with concurrent.futures.ThreadPoolExecutor(max(len(workers), 1)) as pool:
        return dict(zip(workers, pool.map(function, workers.values()), strict=True))


def lost_workers_error(workers: Workers, timeout_seconds: float = 5.0) -> UnreachableWorkerError:
    """Return the one-line error that names lost workers, for work that cannot continue without them."""
    try:
        check_reachable(workers, timeout_seconds)
    except UnreachableWorkerError as error:
        return error
    return UnreachableWorkerError("a worker was lost and now answers again; run the same command again")


def check_reachable(workers: Workers, timeout_seconds: float = 5.0) -> None:
    """Raise UnreachableWorkerError unless every worker answers.

    Args:
      workers: "host:port" of each.
      timeout_seconds: within which each must answer; all are asked at the same time.

    Raises:
      UnreachableWorkerError: in one line, which do not, and why.
    """
    addresses, answers = by_index(workers), ask_all(workers, timeout_seconds)
    silent = {index: answer.failure for index, answer in answers.items() if answer.failure}
    if silent:
        raise unreachable(addresses, silent)


def unreachable(addresses: Mapping[int, str], failures: Mapping[int, str]) -> UnreachableWorkerError:
    """Return the one-line error that names silent workers and the reasons.

    Args:
      addresses: {index: "host:port"}.
      failures: {index: why it does not answer}.
    """
    names = ", ".join(f"worker {index} ({addresses[index]}): {failure}" for index, failure in failures.items())
    workers = {index: addresses[index] for index in failures}
    remedy = f"start it there with `mtf-hetero worker --port={split_address(next(iter(workers.values())))[1]}`"
    remedy += ", or check the address and the firewall"
    if closed & {*workers.values()}:
        remedy = "the LocalCluster was closed; call this inside its `with` block"
    return UnreachableWorkerError(f"{names}; {remedy}", workers)


def name_workers(addresses: Mapping[int, str]) -> str:
    """Return the names of workers for the user, from {index: "host:port"}."""
    return ", ".join(f"worker {index} ({address})" for index, address in addresses.items())


def describe_workers(addresses: Mapping[int, str], one: str, several: str) -> str:
    """Return a clause about workers, with the predicate for one of them or for several.

    Example:
      >>> describe_workers({1: "10.0.0.7:2222"}, "was lost", "were lost")
      'worker 1 (10.0.0.7:2222) was lost'
    """
    return f"{name_workers(addresses)} {one if len(addresses) == 1 else several}"

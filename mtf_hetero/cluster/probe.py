"""Whether workers answer: a TCP connection, then TensorFlow's own GetStatus call, each with a time limit.

A connection alone is not enough: the kernel accepts those for a process that is stopped. TensorFlow's Python calls do
not serve: they hold the interpreter's lock for as long as they wait.
"""

import concurrent.futures
import dataclasses
import enum
import socket
import time
from collections.abc import Mapping, Sequence

import grpc

Workers = Sequence[str] | Mapping[int, str]  # "host:port" of each, by index where some have none

_GET_STATUS = "/tensorflow.WorkerService/GetStatus"
_NO_PROXY = (("grpc.enable_http_proxy", 0),)


class UnreachableWorkerError(ValueError):
    """A worker that the user named does not answer."""


class Outcome(enum.Enum):
    """What became of a question to a worker."""

    ANSWERED = "it answered"
    REFUSED = "nothing listens at its port"
    SILENT = "no answer came in time"
    UNREACHABLE = "no connection could be made"
    BROKEN = "the connection broke"
    SOMETHING_ELSE = "another service answered"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of asking a worker.

    Args:
      outcome: what became of it.
      failure: why it did not answer, for the user; "" where it did.
      status: what it said of itself; another process at the same address says something else.
    """

    outcome: Outcome
    failure: str = ""
    status: bytes = b""


class Failures:
    """Counts a worker's failures in a row: one alone may be the network's, or a busy machine's."""

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


def convert_to_workers(workers: str | Sequence[str]) -> tuple[str, ...]:
    """Addresses of workers, ("a:2222", "b:2222"), from "a:2222,b:2222" or a sequence.

    Raises:
      ValueError: one is not host:port, or comes twice.
    """
    parts = workers.split(",") if isinstance(workers, str) else list(workers)
    addresses = tuple(part.strip() for part in parts if part.strip())
    for address in addresses:
        split_address(address)
        if addresses.count(address) > 1:
            raise ValueError(f"worker address {address!r} is given twice; name each worker once")
    return addresses


def split_address(address: str) -> tuple[str, int]:
    """("host", 2222) from "host:2222".

    Raises:
      ValueError: it is not written so.
    """
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not (host and colon and is_port) or set(host) & set("/:, \t"):
        raise ValueError(f"worker address {address!r} is not host:port; write one such as 10.0.0.7:2222")
    return host, int(port)


def by_index(workers: Workers) -> dict[int, str]:
    """{index: "host:port"} of workers, in the order of their indices.

    Example:
      >>> by_index(("a:1", "b:2")), by_index({2: "c:3"})
      ({0: 'a:1', 1: 'b:2'}, {2: 'c:3'})
    """
    return dict(sorted(workers.items()) if isinstance(workers, Mapping) else enumerate(workers))


def ask(address: str, timeout_seconds: float) -> Answer:
    """Asks one worker.

    Args:
      address: "host:port".
      timeout_seconds: limit of the whole.
    """
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
        with grpc.insecure_channel(address, options=_NO_PROXY) as channel:
            call = channel.unary_unary(_GET_STATUS)
            return Answer(Outcome.ANSWERED, status=call(b"", timeout=max(end - time.monotonic(), 0.1)))
    except grpc.RpcError as error:
        code = getattr(error, "code", lambda: None)()
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return silence
        something_else = "another service is listening on that port"
        if code == grpc.StatusCode.UNAVAILABLE:
            return Answer(Outcome.BROKEN, f"the connection broke, or {something_else}")
        return Answer(Outcome.SOMETHING_ELSE, something_else)


def ask_all(workers: Workers, timeout_seconds: float) -> dict[int, Answer]:
    """Asks all workers at the same time; returns the answers by index."""
    addresses = by_index(workers)
    with concurrent.futures.ThreadPoolExecutor(max(len(addresses), 1)) as pool:
        answers = pool.map(lambda address: ask(address, timeout_seconds), addresses.values())
        return dict(zip(addresses, answers, strict=True))


def lost(workers: Workers, timeout_seconds: float = 5.0) -> UnreachableWorkerError:
    """Returns the error that says in one line which workers were lost while something ran that cannot go on."""
    try:
        check_reachable(workers, timeout_seconds)
    except UnreachableWorkerError as error:
        return error
    return UnreachableWorkerError("a worker was lost and now answers again; run the same command again")


def check_reachable(workers: Workers, timeout_seconds: float = 5.0) -> None:
    """Raises unless every worker answers.

    Args:
      workers: "host:port" of each.
      timeout_seconds: within which each must answer; all are asked at the same time.

    Raises:
      UnreachableWorkerError: in one line, which do not, and why.
    """
    addresses, answers = by_index(workers), ask_all(workers, timeout_seconds)
    silent = {index: answer.failure for index, answer in answers.items() if answer.failure}
    if silent:
        names = ", ".join(f"worker {index} ({addresses[index]}): {failure}" for index, failure in silent.items())
        port = split_address(addresses[next(iter(silent))])[1]
        raise UnreachableWorkerError(
            f"{names}; start it there with `mtf-hetero worker --port={port}`, or check the address and the firewall"
        )

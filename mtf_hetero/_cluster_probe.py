"""Whether workers answer: a TCP connection, then TensorFlow's own GetStatus call, each with a time limit.

A connection alone is not enough: the kernel accepts those for a process that is stopped. TensorFlow's Python calls do
not serve: they hold the interpreter's lock for as long as they wait.
"""

import concurrent.futures
import dataclasses
import socket
import time
from collections.abc import Sequence

import grpc

_GET_STATUS = "/tensorflow.WorkerService/GetStatus"
_NO_PROXY = (("grpc.enable_http_proxy", 0),)


class UnreachableWorkerError(ValueError):
    """A worker that the user named does not answer."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of asking a worker.

    Args:
      failure: why it did not answer; "" where it did.
      status: what it said of itself; another process at the same address says something else.
    """

    failure: str = ""
    status: bytes = b""


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


def ask(address: str, timeout_seconds: float) -> Answer:
    """Asks one worker.

    Args:
      address: "host:port".
      timeout_seconds: limit of the whole.
    """
    end = time.monotonic() + timeout_seconds
    silence = f"no answer within {timeout_seconds:g} seconds"
    try:
        socket.create_connection(split_address(address), timeout_seconds).close()
    except TimeoutError:
        return Answer(silence)
    except OSError as error:
        return Answer((error.strerror or str(error)).lower())
    try:
        with grpc.insecure_channel(address, options=_NO_PROXY) as channel:
            call = channel.unary_unary(_GET_STATUS)
            return Answer(status=call(b"", timeout=max(end - time.monotonic(), 0.1)))
    except grpc.RpcError as error:
        if getattr(error, "code", lambda: None)() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return Answer(silence)
        return Answer("something else than a TensorFlow server answers there")


def ask_all(workers: Sequence[str], timeout_seconds: float) -> list[Answer]:
    """Asks all workers at the same time."""
    with concurrent.futures.ThreadPoolExecutor(max(len(workers), 1)) as pool:
        return list(pool.map(lambda address: ask(address, timeout_seconds), workers))


def check_reachable(workers: Sequence[str], timeout_seconds: float = 5.0) -> None:
    """Raises unless every worker answers.

    Args:
      workers: "host:port" of each.
      timeout_seconds: within which each must answer; all are asked at the same time.

    Raises:
      UnreachableWorkerError: in one line, which do not, and why.
    """
    answers = ask_all(workers, timeout_seconds)
    silent = [(index, answer.failure) for index, answer in enumerate(answers) if answer.failure]
    if silent:
        names = ", ".join(f"worker {index} ({workers[index]}): {failure}" for index, failure in silent)
        port = split_address(workers[silent[0][0]])[1]
        raise UnreachableWorkerError(
            f"{names}; start it there with `python -m mtf_hetero.worker --port={port}`, or check the address and the "
            "firewall"
        )

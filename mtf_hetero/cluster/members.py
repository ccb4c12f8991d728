"""The present workers of a training: a fixed list, a file that is read again, or workers that register.

A worker registers by a gRPC call to the training process, and repeats it. A worker that is silent for a while is left
out.
"""

import concurrent.futures
import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

import grpc

from mtf_hetero.cluster.probe import NO_PROXY, convert_to_workers, is_port, may_change, split_address

_SERVICE, _METHOD = "mtf_hetero.Members", "Register"
_RENEW_SECONDS, _KEPT_SECONDS = 3.0, 30.0  # a worker leaves the list after ten missed renewals
_CALL_SECONDS = 5.0


class Members:
    """The present workers of a training. A context manager, in which workers may register.

    Args:
      workers: "a:2222,b:2222" or a sequence of addresses; "@hosts.txt": a file with one address per line; ":2300":
        workers register at this port.

    Attributes:
      is_fixed: whether the workers never change.

    Raises:
      ValueError: an address is wrong, or a file or a port is not named alone. When it is entered: the file cannot be
        read, or the port is in use.

    Example:
      >>> with Members("@hosts.txt") as members:
      ...     members()
      ('10.0.0.7:2222', '10.0.0.8:2222')
    """

    def __init__(self, workers: str | Sequence[str]) -> None:
        parts = workers.split(",") if isinstance(workers, str) else [*workers]
        self._workers = [part.strip() for part in parts if part.strip()]
        special = [part for part in self._workers if may_change(part)]
        if special and len(self._workers) > 1:
            raise ValueError(f"workers has {special[0]!r} beside others; give addresses, one file, or one port")
        self.is_fixed = not special
        self._registry = None
        if special and special[0].startswith(":"):
            if not is_port(special[0][1:]):
                raise ValueError(f"workers is {special[0]!r}; write a port from 1 to 65535, such as :2300")
            self._registry = _Registry(int(special[0][1:]))
        self._present = convert_to_workers(self._workers) if self.is_fixed else ()
        self._wrong = ""  # the last complaint about the file

    def __enter__(self) -> Self:
        if self._registry is not None:
            self._registry.start()
        else:
            self._present = convert_to_workers(self._workers)
        return self

    def __exit__(self, *_: object) -> None:
        if self._registry is not None:
            self._registry.stop()

    def __call__(self) -> tuple[str, ...]:
        """Return "host:port" of each present worker. A file that has become unreadable or invalid changes nothing."""
        if self._registry is not None:
            return self._registry.present()
        try:
            self._present = convert_to_workers(self._workers)
            self._wrong = ""
        except ValueError as error:
            if str(error) != self._wrong:
                from mtf_hetero._compat import tf  # here, for workers, which register without it

                self._wrong = str(error)
                tf.logging.warning("%s; the workers stay as they are", error)
        return self._present

    def wait(self, count: int, report: Callable[[str], object]) -> tuple[str, ...]:
        """Return the present workers once so many have registered; a list or a file is returned at once.

        Args:
          count: number of workers.
          report: called with a line each time that this waits for other workers than before.
        """
        reported = None
        while self._registry is not None and len(present := self()) < count:
            if present != reported:
                reported = present
                here = f"; {len(reported)} joined: {', '.join(reported)}" if reported else ""
                report(f"waiting for {count} workers at port {self._registry.port}{here}")
            time.sleep(0.2)
        return self()


class _Registry:
    """The workers that have registered at a port.

    Args:
      port: of this process, on all network interfaces.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._renewed: dict[str, float] = {}  # "host:port": when
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Raise ValueError if the port is in use."""
        pool = concurrent.futures.ThreadPoolExecutor(4, "members")
        server = grpc.server(pool, options=(("grpc.so_reuseport", 0),))
        handler = grpc.unary_unary_rpc_method_handler(self._register)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        try:
            server.add_insecure_port(f"0.0.0.0:{self.port}")
        except RuntimeError as error:
            raise ValueError(
                f"workers is ':{self.port}', a port that is in use on this machine; choose another port"
            ) from error
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0)

    def present(self) -> tuple[str, ...]:
        with self._lock:
            oldest = time.monotonic() - _KEPT_SECONDS
            return tuple(address for address, renewed in self._renewed.items() if renewed >= oldest)

    def _register(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Note a worker, {"host": name or null, "port": number}; its host is the caller's by default."""
        try:
            worker = json.loads(request)
            address = f"{worker['host'] or context.peer().split(':')[1]}:{worker['port']}"
            split_address(address)
        except (ValueError, KeyError, TypeError) as error:  # of another program, or another version
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        with self._lock:
            self._renewed[address] = time.monotonic()
        return address.encode()


def register(training: str, host: str | None, port: int) -> str:
    """Register a worker; returns "host:port" as the training process knows it.

    Args:
      training: "host:port" of the training process.
      host: name of the worker's machine; None: the address from which it calls.
      port: of the worker.

    Raises:
      grpc.RpcError: nothing answers there, or another service.
    """
    with grpc.insecure_channel(training, options=NO_PROXY) as channel:
        call = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
        return call(json.dumps({"host": host, "port": port}).encode(), timeout=_CALL_SECONDS).decode()


def keep_registered(
    training: str, host: str | None, port: int, report: Callable[[str], object], done: threading.Event
) -> None:
    """Register a worker again and again, also with a later training at the same address.

    Args:
      training: as for `register`.
      host: as for `register`.
      port: as for `register`.
      report: called with a line when the worker has joined, and when it waits.
      done: ends it.
    """
    last_line = ""
    while not done.is_set():
        line = f"worker waits for a training at {training}"
        with contextlib.suppress(grpc.RpcError):
            line = f"worker joined the training at {training} as {register(training, host, port)}"
        if line != last_line:
            report(line)
            last_line = line
        done.wait(_RENEW_SECONDS)

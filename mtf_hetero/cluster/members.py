"""The present workers of a training: a fixed list, a file that is read again, or workers that register.

A worker registers by a gRPC call to the training process, and repeats it. A worker that is silent for a while is left
out.

With a secret, each side proves that it has it. The training then tells each worker the addresses of its machines. The
ports of the workers, and that of the training process, are closed to all other machines.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import grpc

from mtf_hetero.cluster import packet_filter, secret
from mtf_hetero.cluster.probe import NO_PROXY, convert_to_workers, host_towards, is_port, may_change, split_address

_SERVICE, _METHOD = "mtf_hetero.Members", "Register"
_RENEW_SECONDS, _KEPT_SECONDS = 3.0, 30.0  # a worker leaves the list after ten missed renewals
_CALL_SECONDS = 5.0  # a worker calls again if it gets no answer
# Anyone may call: without limits, 20,000 addresses of any text were registered in 14 seconds
_MOST_WORKERS, _MOST_CALLS, _MOST_BYTES, _MOST_CHARACTERS = 400, 64, 4096, 300
_SERVER_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MOST_BYTES))
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)


class Members:
    """The present workers of a training. A context manager, in which workers may register.

    Args:
      workers: "a:2222,b:2222" or a sequence of addresses; "@hosts.txt": a file with one address per line; ":2300":
        workers register at this port, with the secret of this process if there is one.
      name: what the user calls them, for messages.

    Attributes:
      is_fixed: whether the workers never change.

    Raises:
      ValueError: an address or the secret is wrong, or a file or a port is not named alone. When it is entered: the
        file cannot be read, or the port is in use, or the system cannot keep machines without the secret out.

    Example:
      >>> with Members("@hosts.txt") as members:
      ...     members()
      ('10.0.0.7:2222', '10.0.0.8:2222')
    """

    def __init__(self, workers: str | Sequence[str], *, name: str = "workers") -> None:
        self._name = name
        parts = workers.split(",") if isinstance(workers, str) else [*workers]
        self._workers = [part.strip() for part in parts if part.strip()]
        special = [part for part in self._workers if may_change(part)]
        if special and len(self._workers) > 1:
            raise ValueError(f"{name} has {special[0]!r} beside others; give addresses, one file, or one port")
        self.is_fixed = not special
        self._registry = None
        if special and special[0].startswith(":"):
            if not is_port(special[0][1:]):
                raise ValueError(f"{name} is {special[0]!r}; write a port from 1 to 65535, such as :2300")
            self._registry = _Registry(int(special[0][1:]), secret.read(), name)
        self._present = convert_to_workers(self._workers, name) if self.is_fixed else ()
        self._wrong = ""  # the last complaint about the file

    def __enter__(self) -> Self:
        if self._registry is not None:
            self._registry.start()
        else:
            self._present = convert_to_workers(self._workers, self._name)
        return self

    def __exit__(self, *_: object) -> None:
        if self._registry is not None:
            self._registry.stop()

    def __call__(self) -> tuple[str, ...]:
        """Return "host:port" of each present worker. A file that has become unreadable or invalid changes nothing."""
        if self._registry is not None:
            return self._registry.present()
        try:
            self._present = convert_to_workers(self._workers, self._name)
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
        if self._registry is not None and self._registry.key is None:
            report(
                f"warning: anyone who reaches port {self._registry.port} can register a worker; to prevent it, set "
                f"{secret.VARIABLE} here and for the workers"
            )
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
      key: secret that workers must have; None: each worker may register.
      name: what the user calls the workers.
    """

    def __init__(self, port: int, key: bytes | None, name: str) -> None:
        self.port, self.key, self._name = port, key, name
        self._workers: dict[str, _Entry] = {}  # by "host:port"
        self._own_key = secret.draw().encode()  # signs the time of a challenge
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Raise ValueError if the port is in use, or if the system cannot keep others out."""
        if self.key is not None:
            if refusal := packet_filter.why_not():
                raise ValueError(f"{secret.VARIABLE} is set, but {refusal}; unset it to admit every machine")
            packet_filter.admit(())
        pool = concurrent.futures.ThreadPoolExecutor(4, "members")
        server = grpc.server(pool, options=_SERVER_OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS)
        handler = grpc.unary_unary_rpc_method_handler(self._register)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        try:
            server.add_insecure_port(f"0.0.0.0:{self.port}")
        except RuntimeError as error:
            raise ValueError(
                f"{self._name} is ':{self.port}', a port that is in use on this machine; choose another port"
            ) from error
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0)

    def present(self) -> tuple[str, ...]:
        with self._lock:
            self._drop_silent()
            return tuple(self._workers)

    def _drop_silent(self) -> None:
        oldest = time.monotonic() - _KEPT_SECONDS
        for address in [address for address, entry in self._workers.items() if entry.renewed < oldest]:
            del self._workers[address]

    def _register(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Note a worker, {"host": name or null, "port": number}; its host is the caller's by default.

        With a secret, a first call gets a challenge. The second one has it, with a number of the worker, and is signed.
        """
        try:
            caller = context.peer().removeprefix("ipv4:").rpartition(":")[0]
            worker = json.loads(request)
            address = _check_address(worker["host"] or caller, worker["port"])
            given = [worker.get(name) for name in ("challenge", "nonce", "signature")]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))  # of another program, or another version
        if self.key is not None:
            if given[1] is None:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, f"it admits only workers with its {secret.VARIABLE}")
            if given[0] is None:
                return json.dumps({"challenge": self._draw_challenge()}).encode()
            signed = secret.is_signed(self.key, given[2], "worker", *given[:2], worker["host"], worker["port"])
            if not (signed and self._is_fresh(given[0])):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, f"it has another {secret.VARIABLE}")
        with self._lock:
            self._drop_silent()
            if address not in self._workers and len(self._workers) >= _MOST_WORKERS:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"it has {_MOST_WORKERS} workers, and takes no more")
            machines = set() if self.key is None else {caller, *_resolve(address)}
            self._workers[address] = _Entry(time.monotonic(), machines)
        if given[1] is None:
            return address.encode()
        return json.dumps(self._admit(address, given[1])).encode()

    def _admit(self, address: str, nonce: str) -> dict[str, object]:
        """Admit the machines of the workers to this process; return the answer to one, with those that it admits."""
        if self.key is None:
            return {"address": address}
        with self._lock:
            others = [entry.machines for other, entry in self._workers.items() if other != address]
            packet_filter.admit({machine for entry in self._workers.values() for machine in entry.machines})
        peers = sorted(set(_here_towards(address)).union(*others))
        return {
            "address": address,
            "peers": peers,
            "signature": secret.sign(self.key, "training", nonce, address, peers),
        }

    def _draw_challenge(self) -> str:
        now = f"{time.monotonic():.3f}"
        return f"{now} {secret.sign(self._own_key, now)}"

    def _is_fresh(self, challenge: object) -> bool:
        """Return whether a challenge is of this process, and not old."""
        drawn, _, signature = str(challenge).partition(" ")
        if not secret.is_signed(self._own_key, signature, drawn):
            return False
        return time.monotonic() - float(drawn) < _KEPT_SECONDS


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A worker of the registry.

    Args:
      renewed: the time of its last call.
      machines: IPv4 addresses from which the worker may connect to others.
    """

    renewed: float
    machines: set[str]


def _check_address(host: object, port: object) -> str:
    """Return "host:port" of a worker that registers; raises ValueError if it cannot be one."""
    address = f"{host}:{port}"
    split_address(address[:_MOST_CHARACTERS])
    if not isinstance(host, str) or not isinstance(port, int) or not _HOST.fullmatch(host):
        raise ValueError(f"worker address {address[:_MOST_CHARACTERS]!r} is no name or IPv4 address with a port")
    return address


def _resolve(address: str) -> Iterator[str]:
    """Yield the IPv4 address of "host:port", if the name is known here."""
    with contextlib.suppress(OSError):
        yield socket.gethostbyname(split_address(address)[0])


def _here_towards(address: str) -> Iterator[str]:
    """Yield the address of this machine that a worker sees, if there is a way to the worker."""
    with contextlib.suppress(OSError):
        yield host_towards([address])


class RefusedError(Exception):
    """A training that a worker does not join."""


def register(
    training: str, host: str | None, port: int, *, key: bytes | None = None
) -> tuple[str, tuple[str, ...] | None]:
    """Register a worker; returns "host:port" as the training process knows it, and the machines of the training.

    Args:
      training: "host:port" of the training process.
      host: name of the worker's machine; None: the address from which it calls.
      port: of the worker.
      key: secret that the training must have; None: the worker joins any training, and admits every machine (None).

    Raises:
      grpc.RpcError: nothing answers there, or another service, or the training refuses the worker.
      RefusedError: the training has not proved the secret.
    """
    worker: dict[str, object] = {"host": host, "port": port}
    with grpc.insecure_channel(training, options=NO_PROXY) as channel:
        call = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
        if key is None:
            return call(json.dumps(worker).encode(), timeout=_CALL_SECONDS).decode(), None
        worker["nonce"] = nonce = secret.draw()
        first = _parse(call(json.dumps(worker).encode(), timeout=_CALL_SECONDS))
        if "challenge" not in first:
            raise RefusedError(f"it has no {secret.VARIABLE}")
        worker["challenge"] = first["challenge"]
        worker["signature"] = secret.sign(key, "worker", first["challenge"], nonce, host, port)
        answer = _parse(call(json.dumps(worker).encode(), timeout=_CALL_SECONDS))
    address, peers = answer.get("address"), answer.get("peers")
    if not secret.is_signed(key, answer.get("signature"), "training", nonce, address, peers):
        raise RefusedError(f"it has another {secret.VARIABLE}")
    return str(address), tuple(map(str, peers)) if isinstance(peers, list) else ()


def _parse(answer: bytes) -> dict[str, object]:
    """Return the answer of a training; empty if it is not valid."""
    with contextlib.suppress(ValueError, RecursionError):
        parsed = json.loads(answer)
        return parsed if isinstance(parsed, dict) else {}
    return {}


def keep_registered(
    training: str,
    host: str | None,
    port: int,
    report: Callable[[str], object],
    done: threading.Event,
    *,
    key: bytes | None = None,
) -> None:
    """Register a worker again and again, also with a later training at the same address.

    With a secret, the port of the worker is open to the machines that the training names, until the training is silent.

    Args:
      training: as for `register`.
      host: as for `register`.
      port: as for `register`.
      report: called with a line when the worker has joined, and when it waits.
      done: ends it.
      key: as for `register`.
    """
    last_line, answered = "", 0.0
    while not done.is_set():
        line = f"worker waits for a training at {training}"
        try:
            address, peers = register(training, host, port, key=key)
            line, answered = f"worker joined the training at {training} as {address}", time.monotonic()
            packet_filter.admit(peers)
        except RefusedError as error:
            line += f"; it does not join the one there: {error}"
        except grpc.RpcError as error:
            code, details = getattr(error, "code", lambda: None)(), getattr(error, "details", lambda: "")()
            line += f"; the one there refuses it: {details}" if code in _REFUSALS else ""
        if key is not None and time.monotonic() - answered > _KEPT_SECONDS:
            packet_filter.admit(())
        if line != last_line:
            report(line)
            last_line = line
        done.wait(_RENEW_SECONDS)

"""A worker belongs to one training at a time.

TensorFlow's server lets everyone in, and drops the session of one training when another one begins. So each training
keeps a step running on each of its workers, which ends with it, however it ends: gRPC cancels the steps of a client
that is gone.

That step enqueues the training's name, many times over, into a queue of one place that all clients of the worker
share. Whoever wants the worker starts such a step too and then takes two names out: the first may be what a training
that has ended left in the queue, the second is of the training whose step came first. TensorFlow serves such steps in
the order in which they came. (TensorFlow's mutex does not serve: it is unlocked when somebody gives up waiting for it.)

A machine that loses its power or its network ends no connection: its workers are free again once they are restarted.
"""

import atexit
import concurrent.futures
import contextlib
import datetime
import os
import socket
import threading
import uuid
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.cluster.probe import UnreachableWorkerError, Workers, by_index

_CONTAINER, _QUEUE = "mtf-hetero", "claim"
_NAMES = 2**14  # in one step: each question takes two of them
_ANSWER_SECONDS = 10.0
_CLOSE_SECONDS = 3.0
_LONGEST_STEP_MS = 2**31 - 1


class WorkerHeldError(ValueError):
    """A worker belongs to another training."""


class WorkerClaim:
    """Has workers to itself for as long as it is entered. A context manager, and harmless within another one.

    Args:
      workers: "host:port" of each, or {index: "host:port"}. They must be up.

    Raises:
      WorkerHeldError: when it is entered: a worker belongs to another training; it says which, whose and since when.
      UnreachableWorkerError: a worker was lost meanwhile.

    Example:
      >>> with WorkerClaim(cluster.workers):
      ...     machines = calibration.calibrate(build, cluster)
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = by_index(workers)

    def __enter__(self) -> "WorkerClaim":
        taken: dict[int, str] = {}
        held = []
        try:
            for index, address in self._workers.items():
                if who := _take(address):
                    held.append(describe(index, address, who))
                else:
                    taken[index] = address
            if held:
                raise WorkerHeldError(
                    f"{', '.join(held)}; wait until that training ends, end it, or give other workers"
                )
        except BaseException:
            _in_parallel(_release, taken)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _in_parallel(_release, self._workers)


def describe(index: int, address: str, who: str) -> str:
    """Who has a worker, for the user."""
    return f"worker {index} ({address}) belongs to another training: {who}"


def renew(workers: Workers) -> dict[int, str]:
    """Takes again those of the workers that this process has claimed and has lost since, as one loses a worker that is
    started anew.

    Returns:
      {index: who has it} of those that another training has taken meanwhile.
    """
    with _lock:
        claimed = {index: address for index, address in by_index(workers).items() if address in _holdings}
    return {index: who for index, who in _in_parallel(_renew, claimed).items() if who}


def _in_parallel(function: Any, workers: dict[int, str]) -> dict[int, str]:
    """{index: what the function returns for the address}."""
    with concurrent.futures.ThreadPoolExecutor(max(len(workers), 1)) as pool:
        return dict(zip(workers, pool.map(function, workers.values()), strict=True))


class _Holding:
    """This process's step on one worker.

    Args:
      address: "host:port".
      since: since when this process has the worker, where it has had it before.
    """

    def __init__(self, address: str, since: str | None = None) -> None:
        self._address = address
        self.claims = 0  # of this process on this worker
        self.since = since or datetime.datetime.now().astimezone().isoformat(" ", timespec="seconds")
        self._name = f"{uuid.uuid4().hex} pid {os.getpid()} on {socket.gethostname()}, since {self.since}"
        self._session: Any = None
        self._step: Any = None

    def take(self) -> str:
        """Takes the worker, unless another training has it; returns who."""
        with tf.Graph().as_default() as graph:
            with graph.container(_CONTAINER):
                queue = tf.FIFOQueue(1, tf.string, [()], shared_name=_QUEUE)
            hold, self._look = queue.enqueue_many([tf.fill([_NAMES], self._name)]), queue.dequeue()
        # Without a cluster in its configuration, the session shares its resources with all others of that kind
        config = tf.ConfigProto(operation_timeout_in_ms=round(_ANSWER_SECONDS * 1000))
        self._session = tf.Session(f"grpc://{self._address}", graph=graph, config=config)
        self._step = threading.Thread(target=_hold, args=(self._session, hold), name="worker_claim", daemon=True)
        self._step.start()
        try:
            names = [self._next()]
            if names[-1] != self._name:
                names.append(self._next())
        except tf.errors.OpError as error:
            self.release()
            raise UnreachableWorkerError(
                f"worker {self._address} answers, but does not join a session; start it again"
            ) from error
        if names[-1] == self._name:
            return ""
        self.release()
        return names[-1].partition(" ")[2]

    def is_kept(self) -> bool:
        """Whether the worker is still this process's."""
        try:
            return self._next() == self._name
        except tf.errors.OpError:  # started anew, it knows nothing of the session
            return False

    def release(self) -> None:
        """Gives the worker back; leaves that to itself where it waits for a worker that is gone."""
        closer = threading.Thread(target=_close, args=(self._session,), name="worker_claim_closer", daemon=True)
        closer.start()
        for thread in (closer, self._step):  # which must be back from TensorFlow before the interpreter ends
            thread.join(_CLOSE_SECONDS)

    def _next(self) -> str:
        return self._session.run(self._look).decode()


def _hold(session: Any, hold: Any) -> None:
    options = tf.RunOptions(timeout_in_ms=_LONGEST_STEP_MS)
    with contextlib.suppress(tf.errors.OpError, RuntimeError):  # closed, or the worker is gone
        while True:
            session.run(hold, options=options)


def _close(session: Any) -> None:
    with contextlib.suppress(tf.errors.OpError):  # the worker is gone, or knows nothing of the session any more
        session.close()


_lock = threading.Lock()
_holdings: dict[str, _Holding] = {}  # by address


def _take(address: str) -> str:
    with _lock:
        holding = _holdings.get(address)
        if holding is not None:
            holding.claims += 1
            return ""
    holding = _Holding(address)
    who = holding.take()
    if not who:
        holding.claims = 1
        with _lock:
            _holdings[address] = holding
            atexit.unregister(_release_all)  # once is enough
            atexit.register(_release_all)
    return who


def _renew(address: str) -> str:
    with _lock:
        old = _holdings.get(address)
    if old is None or old.is_kept():
        return ""
    new = _Holding(address, old.since)
    who = new.take()
    if not who:
        with _lock:
            new.claims, _holdings[address] = old.claims, new
        old.release()
    return who


def _release(address: str) -> str:
    with _lock:
        holding = _holdings[address]
        holding.claims -= 1
        if holding.claims:
            return ""
        del _holdings[address]
    holding.release()
    return ""


def _release_all() -> None:
    """Ends the steps while there are threads: one that comes back from TensorFlow later aborts the process."""
    with _lock:
        left = list(_holdings.values())
        _holdings.clear()
    for holding in left:
        holding.release()

"""Claims on workers: a worker belongs to one training at a time.

TensorFlow's server accepts every client, and drops the session of one training when another one begins. So each
training keeps a step running on each of its workers. The step ends with the training, however that ends: gRPC cancels
the steps of a client that is gone.

The step enqueues the training's name many times into a queue of capacity one, which all clients of the worker share.
Another training that wants the worker starts such a step, too, and dequeues two names. The first name may be left from
an earlier training. The second is the name of the training whose step came first: TensorFlow serves these steps in
order. TensorFlow's mutex is no alternative: it is unlocked when a client stops waiting for it.

A machine that loses power or network ends no connection. Restart its workers to free them.
"""

import atexit
import contextlib
import datetime
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero.cluster.probe import UnreachableWorkerError, Workers, ask_all, by_index, in_parallel
from mtf_hetero.cluster.processor_time import RemoteReader
from mtf_hetero.cluster.versions import CONTAINER, find_refused

_Threads = tuple[threading.Thread, threading.Thread | None]
_QUEUE = "claim"
_NAMES = 2**14  # in one step: each question consumes two names
_ANSWER_SECONDS, _BACK_SECONDS = 10.0, 3.0  # to a claim, and of a lost worker that may be back
_CLOSE_SECONDS = 3.0  # a session of a lost worker never closes
_LONGEST_STEP_MS = 2**31 - 1  # instead of the session's limit: this step waits as long as the training lasts


class WorkerHeldError(ValueError):
    """A worker belongs to another training."""


class WorkerClaim:
    """Claims workers for one training. A context manager, which may be entered within another one.

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
        claimed: dict[int, str] = {}
        refusals = []
        try:
            for index, address in self._workers.items():
                if who := _take(address):
                    refusals.append(describe(index, address, who))
                else:
                    claimed[index] = address
            if refusals:
                raise WorkerHeldError(
                    f"{', '.join(refusals)}; wait until that training ends, end it, or give other workers"
                )
        except BaseException:
            in_parallel(_release, claimed)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        in_parallel(_release, self._workers)


def describe(index: int, address: str, who: str) -> str:
    """Return a line for the user that names the owner of a worker."""
    return f"worker {index} ({address}) belongs to another training: {who}"


def renew(workers: Workers) -> dict[int, str]:
    """Claim workers again that this process has claimed and lost, such as a restarted worker.

    Returns:
      {index: who has it} of those that another training has taken meanwhile.
    """
    with _lock:
        claimed = {index: address for index, address in by_index(workers).items() if address in _holdings}
    return {index: who for index, who in in_parallel(_renew, claimed).items() if who}


def busy_seconds(workers: Workers) -> dict[int, float]:
    """Return {index: seconds for which the process had work} of those claimed workers that count and answer."""
    with _lock:
        holdings = {index: _holdings[address] for index, address in by_index(workers).items() if address in _holdings}
    seconds_by_index = in_parallel(_Holding.busy_seconds, holdings)
    return {index: seconds for index, seconds in seconds_by_index.items() if seconds is not None}


def find_free(workers: Workers) -> dict[int, str]:
    """Return those of some lost workers that answer again, {index: "host:port"}, and take them again.

    Others are left out: they are silent, have another TensorFlow, or another training has taken them.
    """
    addresses = by_index(workers)
    answers = ask_all(addresses, _BACK_SECONDS)
    refused = find_refused(addresses, answers)
    back = {i: address for i, address in addresses.items() if not answers[i].failure and i not in refused}
    given_back = {index: address for index, address in back.items() if address in _given_back}
    try:
        owners = {**renew(back), **in_parallel(_take, given_back)}
    except UnreachableWorkerError:  # lost again
        return {}
    return {index: address for index, address in back.items() if not owners.get(index)}


def give_back(workers: Workers) -> None:
    """Give workers back before the claim on them ends: other trainings may take them. `find_free` takes them again."""
    _given_back.update(by_index(workers).values())
    in_parallel(_release, by_index(workers))


class _Holding:
    """A step of this process on one worker, which holds the claim.

    Args:
      address: "host:port".
      since: the time of an earlier claim that this one continues; None: now.
    """

    def __init__(self, address: str, since: str | None = None) -> None:
        self._address = address
        self.claims = 0  # number of claims of this process on this worker
        self.since = since or datetime.datetime.now().astimezone().isoformat(" ", timespec="seconds")
        self._name = f"{uuid.uuid4().hex} pid {os.getpid()} on {socket.gethostname()}, since {self.since}"
        self._session: tf.Session | None = None
        self._step: threading.Thread | None = None

    def take(self) -> str:
        """Claim the worker; returns its owner if another training has it, else ""."""
        with tf.Graph().as_default() as graph:
            with graph.container(CONTAINER):
                queue = tf.FIFOQueue(1, tf.string, [()], shared_name=_QUEUE)
            hold, self._look = queue.enqueue_many([tf.fill([_NAMES], self._name)]), queue.dequeue()
            self._times = RemoteReader()
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
        """Return whether this process still has the worker."""
        try:
            return self._next() == self._name
        except tf.errors.OpError:  # a restarted worker does not know the session
            return False

    def busy_seconds(self) -> float | None:
        """Return the seconds for which the worker's process had work; None: unknown."""
        assert self._session is not None
        return self._times.read(self._session)

    def release(self) -> None:
        """Give the worker back, within a few seconds even if the worker is lost."""
        _join([self.begin_release()])

    def begin_release(self) -> _Threads:
        """Begin to give the worker back; return the threads that do it."""
        closer = threading.Thread(target=_close, args=(self._session,), name="worker_claim_closer", daemon=True)
        closer.start()
        return closer, self._step

    def _next(self) -> str:
        assert self._session is not None
        return self._session.run(self._look).decode()


def _hold(session: tf.Session, hold: tf.Operation) -> None:
    options = tf.RunOptions(timeout_in_ms=_LONGEST_STEP_MS)
    with contextlib.suppress(tf.errors.OpError, RuntimeError):  # closed, or the worker is gone
        while True:
            session.run(hold, options=options)


def _close(session: tf.Session) -> None:
    with contextlib.suppress(tf.errors.OpError):  # the worker is lost, or does not know the session any more
        session.close()


_lock = threading.Lock()
_holdings: dict[str, _Holding] = {}  # by address
_given_back: set[str] = set()  # addresses


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
            _given_back.discard(address)
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
        holding = _holdings.get(address)
        if holding is None:  # given back before
            return ""
        holding.claims -= 1
        if holding.claims:
            return ""
        del _holdings[address]
    holding.release()
    return ""


def _release_all() -> None:
    """End all steps before Python ends: a thread that returns from TensorFlow later aborts the process."""
    with _lock:
        left = list(_holdings.values())
        _holdings.clear()
    _join([holding.begin_release() for holding in left])


def _join(releases: Sequence[_Threads]) -> None:
    """Wait until the threads of releases have returned from TensorFlow, as they must before Python ends."""
    for threads in zip(*releases, strict=True):
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in filter(None, threads):
            thread.join(max(end - time.monotonic(), 0.0))

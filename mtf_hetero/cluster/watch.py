"""Keeps an eye on the workers of a training run: says which is gone and when it is back, and lets training recover.

tf.train.MonitoredSession recovers by itself from a worker whose process ends: it makes a session anew and restores the
last checkpoint. But a worker that is frozen, or cut off, leaves a step waiting without end: the watch ends that step
with the error that MonitoredSession recovers from.
"""

import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mtf_hetero._compat import tf
from mtf_hetero._support import threads
from mtf_hetero.cluster.probe import Failures, Outcome, Workers, ask, ask_all, by_index, lost, split_address

_Result = TypeVar("_Result")
_AGAIN = "answers again; training continues from the last checkpoint"
_ANEW = "was restarted; training continues from the last checkpoint"


def _is_not_of_the_session(record: logging.LogRecord) -> bool:
    """Whether a log line is none of MonitoredSession's own, many lines long, on what the watch says in one."""
    return not str(record.msg).startswith("An error was raised")


class WorkerWatch(tf.train.SessionRunHook):
    """Says in one line when a worker is gone, and in one when it is back. Both a hook and a context manager.

    Each worker is asked in a thread of its own. One whose port is closed is gone at once; any other failure counts once
    it is there twice in a row: within 2 timeouts and an interval, at most 23 seconds.

    Args:
      workers: "host:port" of each, in the order of their indices, or {index: "host:port"} of those to watch.
      report: called with each line; None: tf.logging.warning.
      interval_seconds: between two questions to a worker.
      timeout_seconds: within which an answer must come. A worker under a small CPU quota is slow to answer.

    Example:
      >>> with WorkerWatch(cluster.workers) as watch:
      ...     with tf.train.MonitoredSession(creator, hooks=[watch]) as session:
      ...         ...
    """

    def __init__(
        self,
        workers: Workers,
        *,
        report: Callable[[str], None] | None = None,
        interval_seconds: float = 3.0,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._workers = by_index(workers)
        self._report = report or tf.logging.warning
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._session: tuple[Any, Any] | None = None
        self._sessions = 0  # made so far: each needs all workers

    def __enter__(self) -> "WorkerWatch":
        self._done.clear()
        if self._workers:
            tf.get_logger().addFilter(_is_not_of_the_session)
        for index in self._workers:
            threading.Thread(target=self._watch, args=(index,), name=f"worker_{index}_watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        tf.get_logger().removeFilter(_is_not_of_the_session)
        with self._lock:
            self._session = None

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        with self._lock:
            self._session = (session, coord)
            self._sessions += 1

    def _watch(self, index: int) -> None:
        address = self._workers[index]
        port = split_address(address)[1]
        failures, gone, status = Failures(), False, b""
        sessions = 0  # when it was found to be gone
        is_silent = False  # and was not before: to be asked again at once, for that took its time
        while not self._done.wait(0.0 if is_silent else self._interval_seconds):
            back = gone and self._sessions > sessions  # in the meantime, even if it is gone again
            answer = ask(address, self._timeout_seconds)
            if self._done.is_set():
                return
            is_gone = failures.is_gone(answer)
            is_silent = answer.outcome is Outcome.SILENT and failures.count == 1
            if answer.failure:
                if back:
                    gone = False
                    self._report(f"worker {index} ({address}) {_AGAIN}")
                if is_gone and not gone:
                    gone, sessions = True, self._sessions
                    self._report(
                        f"worker {index} ({address}) is gone: {answer.failure}; training waits for it. Start it again "
                        f"there with `mtf-hetero worker --port={port}`, or press Ctrl-C to stop"
                    )
                    self._interrupt(index)
                continue
            restarted = status not in (b"", answer.status)
            if gone or restarted:
                self._report(f"worker {index} ({address}) {_ANEW if restarted else _AGAIN}")
            gone, status = False, answer.status

    def _interrupt(self, index: int) -> None:
        """Ends a step that may wait for the worker, in the way in which MonitoredSession begins again."""
        with self._lock:
            current, self._session = self._session, None
        if current is None:
            return
        session, coord = current
        error = tf.errors.UnavailableError(None, None, f"worker {index} does not answer")
        with contextlib.suppress(tf.errors.UnavailableError):  # which is raised where the session has ended already
            try:  # the coordinator keeps the traceback too, and so the error has to be raised
                raise error
            except tf.errors.UnavailableError as raised:
                coord.request_stop(raised)
            if hasattr(session, "interrupt"):  # one of the WaitingSessionCreator
                session.interrupt(error)
            else:
                session.close()


def run_watched(
    work: Callable[[], _Result], workers: Workers, *, interval_seconds: float = 3.0, timeout_seconds: float = 10.0
) -> _Result:
    """Returns what a function returns; for work that cannot continue without one of its workers.

    The work runs in a thread, which is left behind if it waits for a lost worker. Without workers it runs here.

    Args:
      work: the function.
      workers: "host:port" of each, or {index: "host:port"}.
      interval_seconds: between two questions to a worker.
      timeout_seconds: within which an answer must come.

    Raises:
      UnreachableWorkerError: a worker was lost.
    """
    addresses = by_index(workers)
    if not addresses:
        return work()
    future = threads.begin(work, "watched_work")
    failures = {index: Failures() for index in addresses}
    for index, answer in ask_all(addresses, timeout_seconds).items():
        failures[index].is_gone(answer)
    while not concurrent.futures.wait([future], interval_seconds).done:
        answers = ask_all(addresses, timeout_seconds)
        if any([failures[index].is_gone(answer) for index, answer in answers.items()]) and not future.done():  # noqa: C419 - all are counted
            raise lost(addresses, timeout_seconds)
    try:
        return future.result()
    except tf.errors.OpError as error:
        is_of_worker = isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))
        if is_of_worker or any(answer.failure for answer in ask_all(addresses, timeout_seconds).values()):
            raise lost(addresses, timeout_seconds) from error
        raise

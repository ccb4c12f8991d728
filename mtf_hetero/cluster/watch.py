"""A watch over the workers of a training: reports lost and returned workers, and lets the training recover.

tf.train.MonitoredSession recovers by itself if the process of a worker ends: it makes a new session and restores the
last checkpoint. But a frozen or unreachable worker lets a step wait forever. The watch ends that step with the error
from which MonitoredSession recovers.
"""

import concurrent.futures
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from mtf_hetero._compat import tf
from mtf_hetero._support import threads
from mtf_hetero.cluster.probe import (
    Failures,
    Outcome,
    Workers,
    ask,
    ask_all,
    by_index,
    lost_workers_error,
    split_address,
)
from mtf_hetero.cluster.pulse import Pulse
from mtf_hetero.cluster.versions import find_refused

_Result = TypeVar("_Result")
_AGAIN, _ANEW = "answers again; training continues", "was restarted; training continues"


class WorkerWatch(tf.train.SessionRunHook):
    """Reports each lost and each returned worker in one line. A hook and a context manager.

    It must be the first hook: another one that runs a new session may wait for a lost worker.

    A thread per worker asks it. A closed port means that the worker is lost. Other failures must come twice in a
    row, which takes 2 timeouts and an interval, at most 23 seconds.

    If a step lasts longer than 2 timeouts and than all steps before it, each worker is given a small operation. One
    that answers, but does not end it within the same time, is gone too: its GPU may hang. A slow step is no fault.

    Args:
      workers: "host:port" of each, in the order of their indices, or {index: "host:port"} of those to watch.
      report: called with each line; None: tf.logging.warning.
      interval_seconds: between two questions to a worker.
      timeout_seconds: limit of an answer. A worker under a small CPU quota is slow to answer.
      wait_seconds: that training waits for a lost worker, as the lines tell the user; infinity: forever.

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
        wait_seconds: float = math.inf,
    ) -> None:
        self._workers = by_index(workers)
        self._report = report or tf.logging.warning
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._wait_seconds = wait_seconds
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._session: tuple[tf.Session, tf.train.Coordinator] | None = None
        self._sessions = 0  # number of sessions so far: each needs all workers
        self._began: float | None = None  # the step that runs
        self._longest = 0.0  # step so far

    def __enter__(self) -> "WorkerWatch":
        self._done.clear()
        if self._workers:
            tf.get_logger().addFilter(self._is_not_of_the_session)
        for index in self._workers:
            threading.Thread(target=self._watch, args=(index,), name=f"worker_{index}_watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        tf.get_logger().removeFilter(self._is_not_of_the_session)
        with self._lock:
            self._session = None

    def _is_not_of_the_session(self, record: logging.LogRecord) -> bool:
        """Return False for MonitoredSession's own long reports of an error, which the watch reports in one line.

        It is a method because each watch has a filter of its own: that of a training outlives that of a validation.
        """
        return not str(record.msg).startswith(("An error was raised", "An error occurred when attempting to close"))

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        with self._lock:
            self._session = (session, coord)
            self._sessions += 1
        self._began = None

    def before_run(self, run_context: tf.train.SessionRunContext | None) -> None:
        self._began = time.monotonic()

    def after_run(
        self, run_context: tf.train.SessionRunContext | None, run_values: tf.train.SessionRunValues | None
    ) -> None:
        began, self._began = self._began, None
        if began is not None:
            self._longest = max(self._longest, time.monotonic() - began)

    def _is_hung(self, pulse: Pulse) -> bool:
        """Return whether a worker does nothing while a step takes longer than all before it."""
        began, patience = self._began, max(2 * self._timeout_seconds, self._longest)
        return began is not None and time.monotonic() - began > patience and not pulse.beats(patience)

    def _watch(self, index: int) -> None:
        address = self._workers[index]
        failures, gone, status, pulse = Failures(), False, b"", Pulse(address)
        sessions = 0  # their number when the worker was lost
        is_silent = False  # since the last question, whose wait replaces the interval
        while not self._done.wait(0.0 if is_silent else self._interval_seconds):
            back = gone and self._sessions > sessions  # meanwhile, even if it is lost again
            answer = ask(address, self._timeout_seconds)
            if not answer.failure and self._is_hung(pulse):
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
                    self._report(describe_wait(index, address, answer.failure, self._wait_seconds))
                    self._interrupt(index)
                continue
            restarted = status not in (b"", answer.status)
            if (gone or restarted) and not find_refused({index: address}, {index: answer}):
                self._report(f"worker {index} ({address}) {_ANEW if restarted else _AGAIN}")
            gone, status = False, answer.status

    def _interrupt(self, index: int) -> None:
        """End a step that may wait for the worker, with an error from which MonitoredSession recovers."""
        with self._lock:
            current, self._session = self._session, None
        if current is None:
            return
        session: Any  # one of the WaitingSessionCreator can be interrupted
        session, coord = current
        error = tf.errors.UnavailableError(None, None, f"worker {index} does not answer")
        with contextlib.suppress(tf.errors.UnavailableError):  # the session has ended already
            try:  # the coordinator keeps the traceback too, and so the error has to be raised
                raise error
            except tf.errors.UnavailableError as raised:
                coord.request_stop(raised)
            if hasattr(session, "interrupt"):
                session.interrupt(error)
            else:
                session.close()


def describe_wait(index: int, address: str, failure: str, wait_seconds: float) -> str:
    """Return the line with the reason why a worker is lost, and the time that training waits for it."""
    patience = "" if math.isinf(wait_seconds) else f" {wait_seconds:g} seconds"
    return (
        f"worker {index} ({address}) is gone: {failure}; training waits{patience} for it. Start it again there with "
        f"`mtf-hetero worker --port={split_address(address)[1]}`, or press Ctrl-C to stop"
    )


def run_watched(
    work: Callable[[], _Result], workers: Workers, *, interval_seconds: float = 3.0, timeout_seconds: float = 10.0
) -> _Result:
    """Run work that cannot continue without one of its workers; returns its result.

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
            raise lost_workers_error(addresses, timeout_seconds)
    try:
        return future.result()
    except tf.errors.OpError as error:
        is_of_worker = isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))
        if is_of_worker or any(answer.failure for answer in ask_all(addresses, timeout_seconds).values()):
            raise lost_workers_error(addresses, timeout_seconds) from error
        raise

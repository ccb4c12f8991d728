"""Sessions that never hang: made, run and closed so that Ctrl-C and the watch can end a wait for a lost worker.

TensorFlow's own calls wait for such a worker without end, inside native code that hears no signal. So a session is
made once all workers answer, and all three calls are carried out in threads that can be left behind.
"""

import concurrent.futures
import functools
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero._support import threads
from mtf_hetero.cluster import claim
from mtf_hetero.cluster.probe import (
    Answer,
    Failures,
    UnreachableWorkerError,
    Workers,
    ask_all,
    by_index,
    lost,
)

_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 3.0
_HELD_SECONDS = 5.0  # until a worker is asked again whether it belongs to another training


def _nothing() -> None:
    """The default of `check`."""


class WaitingSessionCreator(tf.train.SessionCreator):
    """A session creator that waits for the workers, and that Ctrl-C can stop at any time.

    It also takes again the workers that this process has claimed (WorkerClaim) and that were started anew since. Where
    another training was faster, it says so in one line and waits.

    Args:
      session_creator: the creator that makes the session, tf.train.ChiefSessionCreator(...) for instance.
      workers: "host:port" of each, or {index: "host:port"} of those that take part.
      waits: False: a worker that does not answer, or is lost later, ends the session with UnreachableWorkerError.
      check: called about twice a second while this waits, in the calling thread; what it raises ends the wait.
      timeout_seconds: within which a worker must answer.
    """

    def __init__(
        self,
        session_creator: tf.train.SessionCreator,
        workers: Workers,
        *,
        waits: bool = True,
        check: Callable[[], None] = _nothing,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._session_creator = session_creator
        self._workers = by_index(workers)
        self._waits = waits
        self._made = False
        self._check = check
        self._timeout_seconds = timeout_seconds

    def create_session(self) -> tf.Session:
        """Makes a session, once all workers answer.

        Raises:
          tf.errors.UnavailableError: a worker was lost meanwhile; MonitoredSession then calls again.
          UnreachableWorkerError: a worker is lost, and this does not wait.
        """
        if self._made and not self._waits:  # MonitoredSession calls again after it has lost a worker
            raise self._in_thread(lambda: lost(self._workers, self._timeout_seconds))
        self._made = True
        told: dict[int, str] = {}
        while True:
            self.await_workers()
            try:
                held = self._in_thread(lambda: claim.renew(self._workers))
            except UnreachableWorkerError:  # lost again
                self._wait(_POLL_SECONDS)
                continue
            if not held:
                return self._create()
            for index, who in held.items():
                if told.get(index) != who:
                    message = claim.describe(index, self._workers[index], who)
                    tf.logging.warning("%s; training waits for it; press Ctrl-C to stop", message)
            told = held
            self._wait(_HELD_SECONDS)

    def await_workers(self) -> None:
        """Returns once all workers answer.

        Raises:
          UnreachableWorkerError: one does not answer, and this does not wait.
        """
        while any(answer.failure for answer in self._ask().values()):
            if not self._waits:
                raise self._in_thread(lambda: lost(self._workers, self._timeout_seconds))
            self._wait(_POLL_SECONDS)

    def _ask(self) -> dict[int, Answer]:
        return self._in_thread(lambda: ask_all(self._workers, self._timeout_seconds))

    def _in_thread(self, function: Callable[[], Any]) -> Any:
        """The function's result. It takes its time in a thread, which may be left behind."""
        future = threads.begin(function, "worker_questions")
        while not concurrent.futures.wait([future], _POLL_SECONDS).done:
            self._check()
        return future.result()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, _POLL_SECONDS))

    def _create(self) -> tf.Session:
        attempt = _Attempt(self._session_creator, tf.get_default_graph())
        failures = {index: Failures() for index in self._workers}
        try:
            while not attempt.done.wait(_POLL_SECONDS):
                self._check()
                gone = [index for index, answer in self._ask().items() if failures[index].is_gone(answer)]
                if gone and not attempt.done.is_set():
                    raise tf.errors.UnavailableError(
                        None, None, f"worker {gone[0]} was lost while a session was created"
                    )
        except BaseException:
            attempt.abandon()
            raise
        session = attempt.result()
        _Runner(session).install()
        return session


class _Runner:
    """Runs a session's steps in a thread, for the thread that made it.

    Steps of other threads (queue runners) run as they are.
    """

    def __init__(self, session: tf.Session) -> None:
        self._session = session
        self._run = session.run
        self._owner = threading.current_thread()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="session_runner", daemon=True)

    def install(self) -> None:
        """Takes the place of the session's methods."""
        self._thread.start()
        self._session.run = self.run
        self._session.close = functools.partial(_close, self._session, self._requests)
        self._session.interrupt = self.interrupt

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not self._owner:
            return self._run(*args, **kwargs)
        self._answers = queue.SimpleQueue()
        if self._error is not None:
            raise self._error
        self._requests.put((self._answers, args, kwargs))
        value, error = self._answers.get()
        if error is not None:
            raise error
        return value

    def interrupt(self, error: BaseException) -> None:
        """Ends the step that runs, and every later one, with an error."""
        self._error = error
        self._answers.put((None, error))

    def _loop(self) -> None:
        while (request := self._requests.get()) is not None:
            answers, args, kwargs = request
            try:
                answers.put((self._run(*args, **kwargs), None))
            except BaseException as error:
                answers.put((None, error))
            del request, answers, args, kwargs


def _close(session: tf.Session, requests: queue.SimpleQueue) -> None:
    """Closes a session; leaves it to itself where that waits for a worker."""
    for name in ("run", "close", "interrupt"):
        vars(session).pop(name, None)  # the session's own are in charge again: it closes once, and no thread is begun
    requests.put(None)
    if sys.is_finalizing():  # when Python ends, which has no threads any more
        session.close()
        return
    thread = threading.Thread(target=session.close, name="session_closer", daemon=True)
    thread.start()
    thread.join(_CLOSE_SECONDS)


class _Attempt:
    """Makes a session in a thread, which may be left behind: the session is then closed once it is there."""

    def __init__(self, session_creator: tf.train.SessionCreator, graph: tf.Graph) -> None:
        self.done = threading.Event()
        self._abandoned = False
        self._lock = threading.Lock()
        self._session: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(session_creator, graph), name="session_creator", daemon=True
        )
        self._thread.start()

    def _run(self, session_creator: tf.train.SessionCreator, graph: tf.Graph) -> None:
        try:
            with graph.as_default():
                self._session = session_creator.create_session()
        except BaseException as error:
            self._error = error
        with self._lock:
            self.done.set()
            abandoned = self._abandoned
        if abandoned and self._session is not None:
            self._session.close()

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            session = self._session if self.done.is_set() else None
        if session is not None:
            session.close()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._session

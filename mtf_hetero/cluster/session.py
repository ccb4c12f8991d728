"""Sessions that never hang: made, run and closed so that Ctrl-C and the watch can end a wait for a lost worker.

TensorFlow's calls wait for a lost worker forever, in native code that receives no signal. So a session is made once all
workers answer, and each call runs in a thread that can be left behind.
"""

import collections
import concurrent.futures
import contextlib
import functools
import math
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

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
    lost_workers_error,
    unreachable,
)
from mtf_hetero.cluster.versions import find_refused
from mtf_hetero.cluster.watch import describe_wait

_Result = TypeVar("_Result")
_POLL_SECONDS = 0.5  # between two checks for Ctrl-C, which no waiting call of TensorFlow makes
_CLOSE_SECONDS, _FREE_SECONDS = 3.0, 1.0  # on a lost worker, both never end
_OF_WORKER = re.compile(r"(ABORTED|UNAVAILABLE): From /job:worker")
_HELD_SECONDS = 5.0  # until a worker is asked again whether it belongs to another training


MayLeave = Callable[[Collection[int], Collection[int]], bool]  # lost workers, all workers


def always(lost: Collection[int], workers: Collection[int]) -> bool:
    """Forbid nothing, the default of `may_leave`."""
    return True


class WaitingSessionCreator(tf.train.SessionCreator):
    """A session creator that waits for the workers, and that Ctrl-C can stop at any time.

    It also takes again the workers that this process has claimed (WorkerClaim) and that were started anew since. Where
    another training was faster, it says so in one line and waits.

    Args:
      session_creator: the creator that makes the session, tf.train.ChiefSessionCreator(...) for instance.
      workers: "host:port" of each, or {index: "host:port"} of those that take part.
      wait_seconds: a worker that does not answer for longer ends the session with UnreachableWorkerError; infinity:
        this waits forever; 0: the loss of a worker ends the session at once.
      may_leave: returns False where this waits on for lost workers: called with their indices and those of all.
      check: called about twice a second while this waits, in the calling thread; what it raises ends the wait.
      rescue: called with a session that has lost a worker, before its variables are destroyed.
      timeout_seconds: within which a worker must answer.
      create_seconds: limit of one attempt to make a session; each further attempt may last twice as long.
    """

    def __init__(
        self,
        session_creator: tf.train.SessionCreator,
        workers: Workers,
        *,
        wait_seconds: float = math.inf,
        may_leave: MayLeave = always,
        check: Callable[[], None] = lambda: None,
        rescue: Callable[[tf.Session], None] = lambda session: None,
        timeout_seconds: float = 10.0,
        create_seconds: float = 300.0,
    ) -> None:
        self._session_creator = session_creator
        self._workers = by_index(workers)
        self._wait_seconds = wait_seconds
        self._may_leave = may_leave
        self._was_called = False
        self._session: tf.Session | None = None
        self._check, self._rescue = check, rescue
        self._timeout_seconds = timeout_seconds
        self._create_seconds = create_seconds

    def create_session(self) -> tf.Session:
        """Make a session, once all workers answer.

        Raises:
          tf.errors.UnavailableError: a worker was lost meanwhile; MonitoredSession then calls again.
          UnreachableWorkerError: a worker is lost, and this has waited for it.
        """
        if self._session is not None:  # it is still open if a hook failed before the first step
            self._session.close()
        if self._was_called and not self._wait_seconds:  # MonitoredSession calls again after it has lost a worker
            raise self._in_thread(lambda: lost_workers_error(self._workers, self._timeout_seconds))
        self._was_called = True
        reported: dict[int, str] = {}
        refusals = 0
        while True:
            self.await_workers()
            try:
                owners = self._in_thread(lambda: claim.renew(self._workers))
            except UnreachableWorkerError as error:  # lost again, or it refuses sessions
                refusals += 1
                if refusals == 2:
                    tf.logging.warning("%s; training waits for it; press Ctrl-C to stop", error)
                self._wait(_POLL_SECONDS)
                continue
            if not owners:
                self._session = self._create()
                return self._session
            for index, who in owners.items():
                if reported.get(index) != who:
                    message = claim.describe(index, self._workers[index], who)
                    tf.logging.warning("%s; training waits for it; press Ctrl-C to stop", message)
            reported = owners
            self._wait(_HELD_SECONDS)

    def await_workers(self) -> None:
        """Wait until all workers answer. One that was restarted with another TensorFlow counts as lost.

        Raises:
          UnreachableWorkerError: one does not answer, and this has waited for it.
        """
        since: dict[int, float] = {}
        asked = time.monotonic()  # a worker that never answers uses up the time of the question
        while failures := self._in_thread(self._find_failures):
            since = {index: since.get(index, asked) for index in failures}
            asked = time.monotonic()
            if asked - max(since.values()) >= self._wait_seconds and self._may_leave(failures, self._workers):
                raise unreachable(self._workers, failures)
            self._wait(_POLL_SECONDS)

    @contextlib.contextmanager
    def claim_workers(self, report: Callable[[str], object] | None = None) -> Iterator[None]:
        """Claim the workers, once all of them answer.

        Args:
          report: called with a line for each worker that does not answer, and is waited for; None: they are not asked.

        Raises:
          WorkerHeldError: a worker belongs to another training.
          UnreachableWorkerError: a worker does not answer, and this has waited for it, or a worker refuses a session.
        """
        had_refusal = False
        if report is not None and self._wait_seconds:
            for index, failure in self._in_thread(self._find_failures).items():
                report(describe_wait(index, self._workers[index], failure, self._wait_seconds))
        with contextlib.ExitStack() as stack:
            while True:
                self.await_workers()
                try:
                    stack.enter_context(claim.WorkerClaim(self._workers))
                    break
                except UnreachableWorkerError:
                    if had_refusal and not any(answer.failure for answer in self._ask().values()):
                        raise
                    had_refusal = True
                    self._wait(_POLL_SECONDS)
            yield

    def _ask(self) -> dict[int, Answer]:
        return self._in_thread(lambda: ask_all(self._workers, self._timeout_seconds))

    def _find_failures(self) -> dict[int, str]:
        """Return {index: reason} of the workers that cannot take part now."""
        answers = ask_all(self._workers, self._timeout_seconds)
        silent = {index: answer.failure for index, answer in answers.items() if answer.failure}
        return silent | find_refused(self._workers, answers)

    def _in_thread(self, function: Callable[[], _Result]) -> _Result:
        """Return a function's result. The function runs in a thread, which may be left behind."""
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
        while (session := self._attempt()) is None:
            seconds, self._create_seconds = self._create_seconds, 2 * self._create_seconds
            tf.logging.warning(
                "no session after %g seconds, although all workers answer; trying again for %g seconds; press Ctrl-C "
                "to stop",
                seconds,
                self._create_seconds,
            )
        _Runner(session, self._rescue).install()
        return session

    def _attempt(self) -> tf.Session | None:
        """Make a session; None: the time is over. It is made in a thread, which may be left behind."""
        graph, end = tf.get_default_graph(), time.monotonic() + self._create_seconds

        def create() -> tf.Session:
            with graph.as_default():
                return self._session_creator.create_session()

        session = threads.begin(create, "session_creator")
        failures = {index: Failures() for index in self._workers}
        try:
            while not concurrent.futures.wait([session], _POLL_SECONDS).done:
                self._check()
                lost_workers = [index for index, answer in self._ask().items() if failures[index].is_gone(answer)]
                if lost_workers and not session.done():
                    raise tf.errors.UnavailableError(
                        None, None, f"worker {lost_workers[0]} was lost while a session was created"
                    )
                if time.monotonic() >= end and not session.done():
                    session.add_done_callback(_close_unused)
                    return None
        except BaseException:
            session.add_done_callback(_close_unused)
            raise
        try:
            return session.result()
        except tf.errors.CancelledError as error:
            raise _as_loss(error) from error


def _close_unused(session: "concurrent.futures.Future[tf.Session]") -> None:
    """Close a session that nobody waits for any more; in a thread, for that may wait for a lost worker."""
    if session.exception() is None:
        threads.begin(session.result().close, "session_closer")


class _Runner:
    """Runs a session's steps in a thread, for the thread that made it.

    Steps of other threads (queue runners) run as they are.
    """

    def __init__(self, session: tf.Session, rescue: Callable[[tf.Session], None]) -> None:
        self._session: Any = session  # gets methods of its own
        self._rescue = rescue
        self._run = session.run
        self._owner = threading.current_thread()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._has_lost = False  # a worker
        self._thread = threading.Thread(target=self._loop, name="session_runner", daemon=True)

    def install(self) -> None:
        """Replace the session's methods."""
        self._thread.start()
        self._session.run = self.run
        self._session.close = self.close
        self._session.interrupt = self.interrupt

    def run(self, *args: Any, **kwargs: Any) -> object:
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
        """End the running step, and every later one, with an error."""
        self._error, self._has_lost = error, True
        self._answers.put((None, error))

    def close(self) -> None:
        """Close the session; leave it to itself if that waits for a worker."""
        for name in ("run", "close", "interrupt"):
            vars(self._session).pop(name, None)  # restore its own methods: it closes once, without a thread
        self._requests.put(None)
        if sys.is_finalizing():  # Python ends, and has no threads any more
            self._session.close()
            return
        if self._has_lost:
            self._rescue(self._session)
            _free(self._session)
        concurrent.futures.wait([threads.begin(self._session.close, "session_closer")], _CLOSE_SECONDS)

    def _loop(self) -> None:
        while (request := self._requests.get()) is not None:
            answers, args, kwargs = request
            try:
                answers.put((self._run(*args, **kwargs), None))
            except BaseException as error:
                failure = _as_loss(error)
                self._has_lost |= isinstance(failure, (tf.errors.UnavailableError, tf.errors.AbortedError))
                answers.put((None, failure))
                del failure
            del request, answers, args, kwargs


def _as_loss(error: BaseException) -> BaseException:
    """Return the error of a step or of a new session, as that of a lost worker if a connection to one has broken.

    gRPC then repeats a request, which the worker refuses. TensorFlow calls the step cancelled, and nobody begins anew.
    """
    if not isinstance(error, tf.errors.CancelledError) or not _OF_WORKER.search(str(error)):
        return error
    return tf.errors.UnavailableError(error.node_def, error.op, f"a connection to a worker broke: {error.message}")


def _free(session: tf.Session) -> None:
    """Destroy the variables of a session on the devices that are left.

    The end of the session waits for a lost worker. Until then, the variables would stay on all others.
    """
    graph, ops = session.graph, collections.defaultdict(list)
    graph._unsafe_unfinalize()
    with graph.as_default():
        for variable in (*tf.global_variables(), *tf.local_variables()):
            if variable.dtype._is_ref_dtype:
                continue
            with tf.device(variable.device):
                destroy = tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
            ops[variable.device].append(destroy)
    graph.finalize()
    freed = [threads.begin(functools.partial(session.run, of_device), "session_freer") for of_device in ops.values()]
    concurrent.futures.wait(freed, _FREE_SECONDS)  # of a lost worker, it never ends

"""Hooks for the training loop that TensorFlow lacks, but for ProgressHook, which has a module of its own.

All else is in tf.train: StopAtStepHook, CheckpointSaverHook, SummarySaverHook, StepCounterHook,
LoggingTensorHook, ProfilerHook.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import graphs
from mtf_hetero.checkpoint import Saver, State
from mtf_hetero.checkpoint.pace import CopyPace
from mtf_hetero.checkpoint.saver import can_be_copied, copied
from mtf_hetero.checkpoint.state import size_bytes
from mtf_hetero.estimator.looping import steps_in_call
from mtf_hetero.estimator.progress import ProgressHook as ProgressHook  # the names that this module had before
from mtf_hetero.estimator.summaries import add_mtf_scalar_summaries as add_mtf_scalar_summaries
from mtf_hetero.estimator.summaries import add_scalar_summary as add_scalar_summary
from mtf_hetero.mesh.commits import Commits
from mtf_hetero.training.elastic import Elastic

_GLOBAL_STEP_READ_KEY = "global_step_read_op_cache"  # where TensorFlow's hooks look for the tensor they fetch


class StopOnSignalHook(tf.train.SessionRunHook):
    """Stops training at the end of the step in which SIGINT, SIGTERM or SIGHUP arrives. A hook and a context manager.

    Enter it around the monitored session and pass it as a hook. The session then ends as it does at the last step, so
    that its CheckpointSaverHook saves; after that the context raises KeyboardInterrupt for SIGINT, and SystemExit with
    128 + the signal's number for any other. A second signal interrupts at once, without saving.

    A step that runs inside TensorFlow keeps Python's own signal handlers waiting. A thread that reads the signals'
    numbers from a pipe (signal.set_wakeup_fd) therefore logs what will happen, and closes the session when
    the second signal arrives: that cancels a step which would never end.

    Outside of the main thread, where Python allows no handlers, it does nothing. A signal that the process ignores
    (nohup, a background job of a script) stays ignored.

    Args:
      signals: the signals to handle.

    Example:
      >>> with StopOnSignalHook() as stop, tf.train.MonitoredTrainingSession(hooks=[stop]) as session:
      ...     while not (session.should_stop() or stop.requested):
      ...         session.run(train_op)
    """

    def __init__(self, signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) -> None:
        self._signals = tuple(signals)
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._handled: list[int] = []  # by Python's handler, in the main thread
        self._watched: list[int] = []  # by the thread, at once
        self._session: tf.Session | None = None
        self._watcher: _SignalWatcher | None = None

    @property
    def requested(self) -> bool:
        """Return whether a signal has asked for a stop."""
        return bool(self._handled or self._watched)

    def check(self) -> None:
        """Raise what the context raises at its end, once a signal has arrived. For whoever waits between two steps."""
        if self.requested:
            self._raise((self._handled or self._watched)[0])

    @property
    def _interrupted(self) -> bool:
        return max(len(self._handled), len(self._watched)) > 1

    def __enter__(self) -> "StopOnSignalHook":
        self._handled, self._watched = [], []
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._handle)
        if self._previous:
            self._watcher = _SignalWatcher(self._watch)
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
        self._session = None
        if exception_type is None or self._interrupted:
            self.check()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._session = session

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self.requested:
            run_context.request_stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._handled.append(number)
        if self._interrupted:
            self._raise(number)

    def _watch(self, number: int) -> None:
        if number not in self._previous:
            return
        self._watched.append(number)
        name = signal.Signals(number).name
        if len(self._watched) == 1 and self._session is not None:
            again = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
            tf.logging.warning("%s: finishing this step and saving a checkpoint%s", name, again)
        elif len(self._watched) == 2:
            tf.logging.warning("%s again: stopping at once", name)
            if self._session is not None:
                self._session.close()

    @staticmethod
    def _raise(number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


class _SignalWatcher:
    """A thread that receives each signal's number when it arrives, whatever the main thread is doing."""

    def __init__(self, watch: Callable[[int], None]) -> None:
        self._watch = watch
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._previous = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._loop, name="signal_watcher", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while number := os.read(self._read_end, 1):
            self._watch(number[0])

    def close(self) -> None:
        signal.set_wakeup_fd(self._previous)
        os.close(self._write_end)  # the thread then reads the end of the pipe
        self._thread.join()
        os.close(self._read_end)


class SaverHook(tf.train.CheckpointSaverHook):
    """A tf.train.CheckpointSaverHook that trains on while a thread writes the checkpoint.

    Listeners are called when a checkpoint is complete, so training waits for it if there are any. It waits for a Saver
    of another kind, too.

    Attributes:
      continues: whether the next session continues with the state of the last one; it then begins without a checkpoint.
    """

    continues = False
    _scaffold: tf.train.Scaffold | None

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if not self.continues:
            super().after_create_session(session, coord)
        self.continues = False  # for a session that is made anew after a loss

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if isinstance(saver := self._get_saver(), Saver):
            saver.check()
        super().after_run(run_context, run_values)

    def end(self, session: tf.Session) -> None:
        super().end(session)
        self.join()

    def join(self) -> None:
        """Wait until the checkpoint is complete."""
        if isinstance(saver := self._get_saver(), Saver):
            saver.join()

    def _save(self, session: tf.Session, step: int) -> bool:
        if isinstance(saver := self._get_saver(), Saver):
            saver.is_background = not self._listeners
        return super()._save(session, step)


class CopyHook(tf.train.SessionRunHook):
    """Copies the state of a training with workers to this process's memory, so rarely that it takes 1 % of the time.

    It must come before hooks that notice a step: a worker may be lost while the state is copied.

    Args:
      scaffold: with the Saver whose variables are copied. There is no copy if they are not the global ones, or if
        memory is short.
      elastic: keeps the newest copy.
      *step: fetches that run all updates.
    """

    def __init__(self, scaffold: tf.train.Scaffold, elastic: Elastic, *step: Any) -> None:
        self._scaffold, self._elastic, self._pace = scaffold, elastic, CopyPace(size_bytes(tf.get_default_graph()))
        self._commits = Commits()
        self._commits.hold(*(getattr(x, "op", x) for x in step))
        self._steps: tuple[int, int] | None = None  # the global step at the beginning of a session, and the steps since

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._steps = int(session.run(tf.train.get_global_step(session.graph))), 0
        self._pace.wait()

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self._steps is not None:
            self._steps = self._steps[0], self._steps[1] + steps_in_call(run_context.session.graph)
        if self._pace.is_due:
            with self._pace.measure():
                state = copied(self._scaffold.saver, run_context.session)
            self._elastic.copy = state or self._elastic.copy

    def rescue(self, session: tf.Session) -> None:
        """Copy the state after the last step of a session that has lost a worker, if the other devices have it."""
        steps, self._steps = self._steps, None
        if steps is None or not can_be_copied(self._scaffold.saver, session.graph):
            return
        known = {tf.train.get_global_step(session.graph).op.name: np.int64(sum(steps))}
        values = self._commits.rescue(session, steps[1], known)
        if values is not None:
            self._elastic.copy = State.from_values(session.graph, values)


class CountHook(tf.train.SessionRunHook):
    """Counts the steps of a session: one made anew after a worker was lost begins with the first batch again."""

    def __init__(self) -> None:
        self.steps = 0

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self.steps = 0

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self.steps += 1


class NanLossHook(tf.train.NanTensorHook):
    """tf.train.NanTensorHook that leaves it to whoever catches its error to say so."""

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if np.isnan(run_values.results):
            raise tf.train.NanLossDuringTrainingError


def read_global_step() -> tf.Tensor:
    """Return the global step before the run, a scalar tensor that TensorFlow's hooks fetch too."""
    if not tf.get_collection(_GLOBAL_STEP_READ_KEY):
        tf.add_to_collection(_GLOBAL_STEP_READ_KEY, tf.train.get_global_step() + 0)
    return tf.get_collection(_GLOBAL_STEP_READ_KEY)[0]


def order_global_step(*step: tf.Operation | tf.Tensor) -> tf.Tensor:
    """Make each step read the global step before it adds one. Call it once the model is built.

    TensorFlow's hooks read the global step in the very run that adds to it, in no particular order: summaries then come
    a step early or late, and StepCounterHook warns of a global step that stands still. And where a model groups its
    updates with the addition, as mtf's examples do, a learning rate may be that of the next step.

    Args:
      *step: fetches that run all updates.

    Returns:
      The global step before the run, a scalar tensor.
    """
    before, run = read_global_step(), graphs.ancestors(x if isinstance(x, tf.Operation) else x.op for x in step)
    users = tf.train.get_global_step().op.outputs[0].consumers()
    reads = [op for op in users if op in run and op.type == "ReadVariableOp" and not op.control_inputs]
    for op in users:
        if op.type in ("AssignAddVariableOp", "AssignAdd"):
            op._add_control_inputs([before.op, *reads])
    return before

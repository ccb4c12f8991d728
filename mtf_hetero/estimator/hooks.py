"""Hooks for the training loop that TensorFlow lacks: stop on a signal, show progress, summarise mtf's scalars.

All else is in tf.train: StopAtStepHook, CheckpointSaverHook, SummarySaverHook, StepCounterHook,
LoggingTensorHook, ProfilerHook.
"""

import datetime
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import extras, graphs
from mtf_hetero.estimator.config import check_number
from mtf_hetero.estimator.pace import Pace

LOSS_COLLECTION_KEY = "mtf_hetero_loss"
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
        self._previous: dict[int, Any] = {}
        self._handled: list[int] = []  # by Python's handler, in the main thread
        self._watched: list[int] = []  # by the thread, at once
        self._session: tf.Session | None = None
        self._watcher: _SignalWatcher | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal has asked for a stop."""
        return bool(self._handled or self._watched)

    def check(self) -> None:
        """Raises what the context raises at its end, once a signal has arrived. For whoever waits between two steps."""
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

    def __exit__(self, exception_type: Any, exception: Any, traceback: Any) -> None:
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

    def __init__(self, watch: Any) -> None:
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


class NanLossHook(tf.train.NanTensorHook):
    """tf.train.NanTensorHook that leaves it to whoever catches its error to say so."""

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if np.isnan(run_values.results):
            raise tf.train.NanLossDuringTrainingError


class ProgressHook(tf.train.SessionRunHook):
    """Shows how training gets on: a progress bar on a terminal, where tqdm is installed; else a log line now and then.

    Progress is counted in examples; how many a second is that of the steps alone, without the first ones. Each run of
    the training operation counts as one global step.

    Args:
      batch_size: examples per step.
      total_steps: the global step at which training ends; None where that is unknown: no time left is shown.
      log_step_count_steps: steps between log lines where there is no bar.
      loss: scalar tensor, or the name of one; None: the loss of the Estimator's model.
      stream: where the bar goes; None: the standard error.
      unit: what the examples are called.

    Raises:
      ValueError: a number that is not positive.
    """

    def __init__(
        self,
        batch_size: int,
        total_steps: int | None = None,
        *,
        log_step_count_steps: int = 100,
        loss: Any = None,
        stream: Any = None,
        unit: str = "images",
    ) -> None:
        check_number(batch_size, "ProgressHook: batch_size", none=False)
        check_number(total_steps, "ProgressHook: total_steps")
        check_number(log_step_count_steps, "ProgressHook: log_step_count_steps", none=False)
        self._batch_size = batch_size
        self._total_steps = total_steps
        self._log_step_count_steps = log_step_count_steps
        self._loss_argument = loss
        self._stream = stream
        self._unit = unit
        self._bar: Any = None

    def begin(self) -> None:
        graph = tf.get_default_graph()
        loss = self._loss_argument
        if loss is None:
            loss = (graph.get_collection(LOSS_COLLECTION_KEY) or [None])[-1]
        self._loss = None if loss is None else graph.as_graph_element(loss)
        self._global_step = tf.train.get_or_create_global_step(graph)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._step = int(session.run(self._global_step))
        self._logged_step, self._pace = self._step, Pace()
        stream = sys.stderr if self._stream is None else self._stream
        self.close()  # a session made anew after a failure begins where its checkpoint is
        if stream.isatty() and extras.has_progress_bars():
            self._bar = extras.progress_bar(
                total=None if self._total_steps is None else self._total_steps * self._batch_size,
                initial=self._step * self._batch_size,
                unit=f" {self._unit}",
                unit_scale=True,
                dynamic_ncols=True,
                file=stream,
            )

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs | None:
        self._pace.begin_step()
        return None if self._loss is None else tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._pace.end_step()
        self._step += 1
        loss = run_values.results
        if self._bar is not None:
            self._bar.set_description(f"step {self._step}", refresh=False)
            if loss is not None:
                self._bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            self._bar.update(self._batch_size)
        elif self._step - self._logged_step >= self._log_step_count_steps:
            self._log(loss)

    def _log(self, loss: Any) -> None:
        steps_per_second = self._pace.steps_per_second or 1e9
        self._logged_step = self._step
        self._pace.reset()
        text = [f"{self._batch_size * steps_per_second:.1f} {self._unit} per second"]
        if loss is not None:
            text.append(f"loss {loss:.4g}")
        if self._total_steps is not None:
            left = round(max(self._total_steps - self._step, 0) / steps_per_second)
            text.append(f"{datetime.timedelta(seconds=left)} left")
        of = "" if self._total_steps is None else f" of {self._total_steps}"
        tf.logging.info("step %d%s: %s", self._step, of, ", ".join(text))

    def end(self, session: tf.Session) -> None:
        self.close()

    def close(self) -> None:
        """Ends the bar's line. A session that fails does not end its hooks; the Estimator calls this then."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def add_scalar_summary(tag: str, tensor: tf.Tensor) -> None:
    """Adds a scalar summary under exactly this tag; tf.summary.scalar alters a tag that is also the name of a scope.

    Args:
      tag: the name shown in TensorBoard. A tag that the graph already summarises is left alone.
      tensor: scalar tensor of any real type.
    """
    if tag not in _summary_tags():
        summary = tf.raw_ops.ScalarSummary(tags=tag, values=tf.cast(tensor, tf.float32))
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, summary)


def add_mtf_scalar_summaries() -> None:
    """Adds a scalar summary for each mtf.scalar_summary that was lowered into the graph."""
    for name, tensor in tf.get_collection(mtf.utils.SCALAR_SUMMARIES_COLLECTION_KEY):
        add_scalar_summary(name, tensor)
    # TensorFlow would complain, at each checkpoint, that it cannot save the pairs with the graph.
    tf.get_default_graph().clear_collection(mtf.utils.SCALAR_SUMMARIES_COLLECTION_KEY)


def order_global_step(loss: tf.Tensor) -> tf.Tensor:
    """Makes each step read the global step first, then compute the loss, then add one. Call it once the model is built.

    TensorFlow's hooks read the global step in the very run that adds to it, in no particular order: summaries then come
    a step early or late, and StepCounterHook warns of a global step that stands still. And where a model groups its
    updates with the addition, as mtf's examples do, the run that finds the end of the data would count as a step.

    Args:
      loss: scalar tensor.

    Returns:
      The global step before the run, a scalar tensor.
    """
    global_step = tf.train.get_global_step()
    if not tf.get_collection(_GLOBAL_STEP_READ_KEY):
        tf.add_to_collection(_GLOBAL_STEP_READ_KEY, global_step + 0)
    before = tf.get_collection(_GLOBAL_STEP_READ_KEY)[0]
    needed = graphs.ancestors([loss.op])
    for operation in global_step.op.outputs[0].consumers():
        if operation.type in ("AssignAddVariableOp", "AssignAdd"):
            operation._add_control_input(before.op)
            if operation not in needed:
                operation._add_control_input(loss.op)
    return before


def _summary_tags() -> set[str]:
    tags = [tf.get_static_value(summary.op.inputs[0]) for summary in tf.get_collection(tf.GraphKeys.SUMMARIES)]
    return {tag.item().decode() for tag in tags if isinstance(tag, np.ndarray) and tag.ndim == 0}

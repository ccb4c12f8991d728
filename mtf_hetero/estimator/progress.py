"""Progress of a training: two lines that are drawn anew on a terminal, and a short line now and then in a log."""

import collections
import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

from mtf_hetero._compat import tf
from mtf_hetero._support import extras
from mtf_hetero._support.numbers import check_number
from mtf_hetero.estimator import progress_text
from mtf_hetero.estimator.looping import steps_in_call
from mtf_hetero.estimator.summaries import LOSS_COLLECTION_KEY, scalar_summaries
from mtf_hetero.training.pace import Pace

if TYPE_CHECKING:
    from tqdm import tqdm

_MEAN_STEPS = 20  # over which loss and accuracy are averaged
_REDRAW_SECONDS, _SPEED_SECONDS = 0.2, 2.0
_FIRST_LINE_SECONDS, _LAST_LINE_SECONDS = 5.0, 60.0  # between log lines, at first and in a long training
_NO_TERMINAL_COLUMNS = 80


class ProgressHook(tf.train.SessionRunHook):
    """Shows the progress of a training: a bar on a terminal, where tqdm is installed; else a log line now and then.

    Both have the step, the epoch, the loss, the examples per second, the time left, and the share of a step in which
    each device computes; the accuracy too, where the graph has a scalar summary of this name. Loss and accuracy are
    means over the last 20 steps. The speed is that of the steps alone, without the first ones. Each run of the training
    operation counts as one global step.

    Args:
      batch_size: examples per step.
      total_steps: the global step at which training ends; None where that is unknown: no time left is shown.
      log_step_count_steps: steps between log lines where there is no bar; None: by the clock, about every 5 seconds at
        first and every minute in a training of hours.
      loss: scalar tensor, or the name of one; None: the loss of the Estimator's model.
      stream: where the bar goes; None: the standard error.
      unit: what the examples are called.
      epoch_size: examples per epoch; None: no epoch is shown.
      busy: returns {device: the share of a step in which it computes}, as it was last measured; None: not shown.
      report: called with each log line; None: tf.logging.info.
      pauses: from a global step to the seconds that training will stand from then on, for tests; None: for none.

    Raises:
      ValueError: a number that is not positive.
    """

    def __init__(
        self,
        batch_size: int,
        total_steps: int | None = None,
        *,
        log_step_count_steps: int | None = None,
        loss: tf.Tensor | None = None,
        stream: TextIO | None = None,
        unit: str = "images",
        epoch_size: int | None = None,
        busy: Callable[[], Mapping[str, float]] | None = None,
        report: Callable[[str], object] | None = None,
        pauses: Callable[[int], float] | None = None,
    ) -> None:
        check_number(batch_size, "ProgressHook: batch_size", none=False)
        check_number(total_steps, "ProgressHook: total_steps")
        check_number(log_step_count_steps, "ProgressHook: log_step_count_steps")
        check_number(epoch_size, "ProgressHook: epoch_size")
        self._batch_size, self._total_steps, self._epoch_size = batch_size, total_steps, epoch_size
        self._log_step_count_steps = log_step_count_steps
        self._loss_argument, self._stream, self._unit = loss, stream, unit
        self._busy = busy or dict
        self._pauses = pauses or (lambda step: 0.0)
        self._report = report or (lambda line: tf.logging.info("%s", line))
        self._bars: _Bars | None = None

    def begin(self) -> None:
        graph = tf.get_default_graph()
        loss = self._loss_argument
        if loss is None:
            loss = (graph.get_collection(LOSS_COLLECTION_KEY) or [None])[-1]
        tensors = {"loss": loss, "accuracy": scalar_summaries().get("accuracy")}
        self._tensors = {name: graph.as_graph_element(tensor) for name, tensor in tensors.items() if tensor is not None}
        self._global_step = tf.train.get_or_create_global_step(graph)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._step = int(session.run(self._global_step))
        self._first_step = self._shown_step = self._step
        self._began = self._shown_at = self._speed_at = time.monotonic()
        self._pace, self._steps_per_second = Pace(), None
        self._recent = {name: collections.deque(maxlen=_MEAN_STEPS) for name in self._tensors}
        stream = sys.stderr if self._stream is None else self._stream
        self.close()  # a session made anew after a failure begins where its checkpoint is
        if stream.isatty() and extras.has_progress_bars():
            self._bars = _Bars(stream, self._total_steps)
            self._show()  # the first step may take long

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._pace.begin_step()
        return tf.train.SessionRunArgs(self._tensors)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        steps = steps_in_call(self._global_step.graph)
        self._pace.end_step(steps=steps)
        self._step += steps
        for name, value in run_values.results.items():
            self._recent[name].append(float(value))
        if self._is_due():
            self._show()

    def end(self, session: tf.Session) -> None:
        self._step = int(session.run(self._global_step))  # a call that finds the end of the data may have taken some
        if self._shown_step != self._step:
            self._show()
        self.close()

    def close(self) -> None:
        """End the bar's lines. A session that fails does not end its hooks; the Estimator calls this then."""
        if self._bars is not None:
            self._bars.close()
            self._bars = None

    def _is_due(self) -> bool:
        since = time.monotonic() - self._shown_at
        if self._bars is not None:
            return since >= _REDRAW_SECONDS
        if self._log_step_count_steps is not None:
            return self._step // self._log_step_count_steps > self._shown_step // self._log_step_count_steps
        # The first step is reported at once: it may take as long as many others
        longest = min(max((self._shown_at - self._began) / 20, _FIRST_LINE_SECONDS), _LAST_LINE_SECONDS)
        return self._shown_step == self._first_step or since >= longest

    def _show(self) -> None:
        status = self._status()
        if self._bars is not None:
            self._bars.show(status, self._unit)
        else:
            self._report(progress_text.log_line(status, self._unit))
        self._shown_step, self._shown_at = self._step, time.monotonic()

    def _status(self) -> progress_text.Status:
        means = {name: sum(values) / len(values) for name, values in self._recent.items() if values}
        speed, left, epoch = self._speed(), None, {}
        if speed and self._total_steps is not None:
            left = max(self._total_steps - self._step, 0) / speed + self._pauses(self._step)
        if self._epoch_size is not None:
            epoch["epoch"] = self._epoch_number(self._step)
            epoch["epochs"] = None if self._total_steps is None else self._epoch_number(self._total_steps)
        return progress_text.Status(
            self._step,
            self._total_steps,
            speed=speed and speed * self._batch_size,
            seconds_left=left,
            busy=self._busy(),
            **means,
            **epoch,
        )

    def _epoch_number(self, step: int) -> int:
        assert self._epoch_size is not None
        return max(-(-step * self._batch_size // self._epoch_size), 1)

    def _speed(self) -> float | None:
        """Return the steps per second of the last seconds; None after the first step, which prepares the graph."""
        now = time.monotonic()
        if self._steps_per_second is None or now - self._speed_at >= _SPEED_SECONDS:
            if self._step > self._first_step + 1:
                self._steps_per_second = self._pace.steps_per_second
            if self._pace.steps and now - self._speed_at >= _SPEED_SECONDS:
                self._pace.reset()
                self._speed_at = now
        return self._steps_per_second


class _Bars:
    """The lines of a terminal: a bar of the steps, and below it one of the devices once they were measured.

    Args:
      stream: the terminal.
      total_steps: the global step at which training ends; None: there is no bar, but the numbers.
    """

    def __init__(self, stream: TextIO, total_steps: int | None) -> None:
        package = importlib.import_module("tqdm.std")
        self._make, self._draw, self._stream = package.tqdm, package.Bar, stream
        self._steps = self._line(0, total_steps)
        self._devices: tqdm | None = None

    def show(self, status: progress_text.Status, unit: str) -> None:
        """Draws the lines."""
        columns = self._columns()
        self._steps.n, self._steps.ncols = status.step, columns
        self._steps.bar_format = progress_text.bar_format(status, unit, columns)
        self._steps.refresh()
        charset = self._draw.ASCII if self._steps.ascii else self._draw.UTF
        busy = progress_text.busy_line(
            status.busy, columns, lambda share, width: format(self._draw(min(share, 1.0), width, charset))
        )
        if busy and self._devices is None:
            self._devices = self._line(1, None)
        if self._devices is not None:
            self._devices.ncols, self._devices.bar_format = columns, busy.replace("{", "{{").replace("}", "}}")
            self._devices.refresh()

    def close(self) -> None:
        """Leaves the lines as they are, and begins a new one. On a terminal that is gone nothing is left to do."""
        with contextlib.suppress(OSError):
            self._steps.close()
            if self._devices is not None:
                self._devices.close()

    def _line(self, position: int, total: int | None) -> "tqdm":
        return self._make(total=total, position=position, file=self._stream, bar_format=" ", miniters=1, leave=True)

    def _columns(self) -> int:
        """Return the columns of the terminal but one: some terminals begin a line once the last one is filled."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError, AttributeError):  # io.UnsupportedOperation is the first two
            columns = 0
        return (columns or _NO_TERMINAL_COLUMNS) - 1

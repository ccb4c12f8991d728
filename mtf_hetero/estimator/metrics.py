"""The metrics of a training while it runs: its scalars, examples a second, and how busy each device is."""

import time
from collections.abc import Callable, Collection, Mapping

from mtf_hetero._compat import tf
from mtf_hetero._support.numbers import check_number
from mtf_hetero.estimator.looping import steps_in_call
from mtf_hetero.estimator.metrics_log import MetricsLog, Values
from mtf_hetero.estimator.summaries import scalar_summaries
from mtf_hetero.training.pace import MeasuringPace, Pace


class MetricsHook(tf.train.SessionRunHook):
    """Writes rows to metrics.jsonl, and the same as TensorBoard's events: a tf.train.SummarySaverHook for scalars.

    A row of the kind "train" has every scalar that the graph summarises - the Estimator's "loss" among them - and the
    examples a second since the row before, without the first steps of the session. One of the kind "busy" says for how
    long each device was busy in a step. Let it be the first of the hooks, so that it times the steps alone.

    Args:
      log: where the rows go.
      model_dir: where the events go.
      batch_size: examples per step.
      every_steps: steps between two rows; the last step has one, too.
      unit: what the examples are called.
      busy: from the tf.RunMetadata of a step to {name: number}, or {name: {device: number}}; None: no such rows.
      busy_steps: steps between two that are measured so, which take longer than others; None: every 10 seconds, and
        rarer where that would take more than 1 % of the time. The first one is the sixth step of a session.
      busy_options: tf.RunOptions of such a step; None: it runs as any other.
      uncounted: steps of the session, from 0 on, that are slow because something else traces them.

    Attributes:
      pace: of the whole run.
    """

    def __init__(
        self,
        log: MetricsLog,
        model_dir: str,
        batch_size: int,
        *,
        every_steps: int = 50,
        unit: str = "images",
        busy: Callable[[tf.RunMetadata], Values] | None = None,
        busy_steps: int | None = None,
        busy_options: tf.RunOptions | None = None,
        uncounted: Collection[int] = (),
    ) -> None:
        check_number(batch_size, "MetricsHook: batch_size", none=False)
        check_number(every_steps, "MetricsHook: every_steps", none=False)
        check_number(busy_steps, "MetricsHook: busy_steps")
        self._log, self._model_dir = log, model_dir
        self._batch_size, self._every_steps, self._unit = batch_size, every_steps, unit
        self._busy, self._busy_steps, self._busy_options = busy, busy_steps, busy_options
        self._uncounted = frozenset(uncounted)
        self.pace, self._since = Pace(), Pace()
        self._last: Values | None = None

    def begin(self) -> None:
        self._global_step = tf.train.get_or_create_global_step()
        self._writer = tf.summary.FileWriterCache.get(self._model_dir)
        self._tensors = scalar_summaries()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._step = int(session.run(self._global_step))
        self._steps_of_session, self._measuring = 0, MeasuringPace(self._busy_steps)
        self._log.begin(self._step)
        # TensorBoard then forgets what a run that was lost had written of the steps to come
        self._writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), self._step + 1)
        self.pace.begin_session()
        self._since, self._last = Pace(), None

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._measures = self._busy is not None and self._measuring.is_due(self._steps_of_session)
        self._began = time.monotonic()
        self.pace.begin_step()
        self._since.begin_step()
        return tf.train.SessionRunArgs(self._tensors, options=self._busy_options if self._measures else None)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        counted = not self._measures and self._steps_of_session not in self._uncounted
        steps, before = steps_in_call(self._global_step.graph), self._step
        self.pace.end_step(counted=counted, steps=steps)
        self._since.end_step(counted=counted, steps=steps)
        self._step += steps
        self._steps_of_session += steps
        self._last = run_values.results
        if self._measures and self._busy is not None:
            busy = self._busy(run_values.run_metadata)
            if busy:
                self._write("busy", busy)
            if busy or self._busy_options is not None:
                self._measuring.end_step((time.monotonic() - self._began) / steps, self.pace)
        if self._step // self._every_steps > before // self._every_steps:
            self._write_row()

    def end(self, session: tf.Session) -> None:
        self._write_row()
        self._writer.flush()

    def _write_row(self) -> None:
        """Write a row of the last step, unless it has one."""
        if self._last is None:
            return
        since = self._since.steps_per_second
        speed = None if since is None or not self._since.steps else since * self._batch_size
        self._write("train", {**self._last, f"{self._unit}_per_second": speed})
        self._last = None
        self._since.reset()

    def _write(self, kind: str, values: Values) -> None:
        self._log.append(kind, self._step, {**values, "time": round(time.time(), 3)})
        summary = tf.Summary()
        for name, value in values.items():
            parts = value if isinstance(value, Mapping) else {"": value}
            for part, scalar in parts.items():
                if scalar is not None:
                    summary.value.add(tag=f"{name}/{part}" if part else name, simple_value=float(scalar))
        self._writer.add_summary(summary, self._step)

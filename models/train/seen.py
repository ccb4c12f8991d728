"""Progress, metrics.jsonl and TensorBoard's curves: all that a user sees of a training while it runs."""

import collections
import sys
from collections.abc import Sequence
from typing import Any

from mtf_hetero import tf, trace
from mtf_hetero._support import extras
from mtf_hetero.cluster import shorten
from mtf_hetero.estimator.metrics import MetricsHook
from mtf_hetero.estimator.metrics_log import MetricsLog
from mtf_hetero.estimator.progress import ProgressHook
from mtf_hetero.models.train.config import Config

_MEAN_OF = 5  # measurements: one step alone says little on a machine that does other things too


class DeviceLoad:
    """The share of a step in which each device computes, from traced steps.

    Args:
      devices: of the mesh.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        self._recent: collections.deque[dict[str, float]] = collections.deque(maxlen=_MEAN_OF)

    def measure(self, metadata: tf.RunMetadata) -> dict[str, Any]:
        """Return a row for metrics.jsonl: the step's seconds, and those in which each device computed."""
        try:
            used = trace.usage(trace.read(metadata), self._devices)
        except ValueError as error:  # a device that TensorFlow traces under a name of another kind
            tf.logging.warning("it is not known how busy the devices are: %s", error)
            return {}
        span = max((sum((each.computing, each.receiving, each.waiting)) for each in used.values()), default=0.0)
        busy = {shorten(device): each.computing for device, each in used.items()}
        if span:
            self._recent.append({device: seconds / span for device, seconds in busy.items()})
        return {"step_seconds": span, "busy_seconds": busy}

    def shares(self) -> dict[str, float]:
        """Return {device: the share of a step in which it computes}, the mean of the last measurements."""
        if not self._recent:
            return {}
        return {device: sum(row[device] for row in self._recent) / len(self._recent) for device in self._recent[-1]}


def metrics_hook(config: Config, log: MetricsLog, model_dir: str, load: DeviceLoad | None, unit: str) -> MetricsHook:
    """Return what writes the rows of a training, those of the devices' load among them.

    Args:
      config: of the run.
      log: where the rows go.
      model_dir: where TensorBoard's events go.
      load: of the devices; None: it is not measured.
      unit: what the examples are called.
    """
    return MetricsHook(
        log,
        model_dir,
        config.batch_size,
        every_steps=config.summary_steps,
        unit=unit,
        busy=None if load is None else load.measure,
        busy_steps=config.busy_steps or None,
        busy_options=trace.run_options(),
        uncounted=config.trace_steps,
    )


def progress_hook(
    config: Config, total_steps: int, load: DeviceLoad | None, unit: str, epoch_size: int
) -> ProgressHook:
    """Return what shows the progress on a terminal, or in a log on the standard error.

    Args:
      config: of the run.
      total_steps: the global step at which training ends.
      load: of the devices; None: it is not measured.
      unit: what the examples are called.
      epoch_size: examples per epoch.
    """
    return ProgressHook(
        config.batch_size,
        total_steps,
        log_step_count_steps=config.log_steps,
        unit=unit,
        epoch_size=epoch_size,
        busy=None if load is None else load.shares,
        report=lambda line: extras.write_above_bars(line, sys.stderr),
    )

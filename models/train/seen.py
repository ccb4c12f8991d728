"""What a user sees of a training while it goes on: log lines, metrics.jsonl and TensorBoard's curves."""

import sys
from collections.abc import Sequence
from typing import Any

from mtf_hetero import tf, trace
from mtf_hetero.cluster import shorten
from mtf_hetero.estimator.metrics import MetricsHook
from mtf_hetero.estimator.metrics_log import MetricsLog
from mtf_hetero.models.train.config import Config


class LogFromNowOnHook(tf.train.SessionRunHook):
    """Begins log lines with the session: before that, mtf logs every variable and every counter of the lowering.

    A terminal shows the ProgressHook's bar instead.
    """

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        if not sys.stderr.isatty():
            tf.logging.set_verbosity(tf.logging.INFO)


def metrics_hook(config: Config, log: MetricsLog, model_dir: str, devices: Sequence[str], unit: str) -> MetricsHook:
    """What writes the rows of a training, those of how busy the devices are among them."""

    def busy(metadata: tf.RunMetadata) -> dict[str, Any]:
        try:
            used = trace.usage(trace.read(metadata), devices)
        except ValueError as error:  # a device that TensorFlow traces under a name of another kind
            tf.logging.warning("it is not known how busy the devices are: %s", error)
            return {}
        spans = [sum((each.computing, each.receiving, each.waiting)) for each in used.values()]
        return {
            "step_seconds": max(spans, default=0.0),
            "busy_seconds": {shorten(device): each.computing for device, each in used.items()},
        }

    return MetricsHook(
        log,
        model_dir,
        config.batch_size,
        every_steps=config.summary_steps,
        unit=unit,
        busy=busy if config.busy_steps else None,
        busy_steps=config.busy_steps or 1,
        busy_options=trace.run_options(),
        uncounted=config.trace_steps,
    )

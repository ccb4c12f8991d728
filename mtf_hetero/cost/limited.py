"""Calls of a session that keep the time limit of `_support.deadline`.

TensorFlow loses the cancellation of a call that has not reached the workers by then. Such a call, of a step or of some
repeats, goes on to its end.
"""

import math
from collections.abc import Mapping
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero._support import deadline


def run(
    session: tf.Session,
    fetches: object,
    feed: Mapping[tf.Tensor, object] | None = None,
    *,
    options: tf.RunOptions | None = None,
    metadata: tf.RunMetadata | None = None,
) -> Any:
    """Return the result of `session.run`.

    Args:
      session: a tf.Session.
      fetches: as of `session.run`.
      feed: likewise.
      options: tf.RunOptions; None: the default ones.
      metadata: tf.RunMetadata, or None.

    Raises:
      deadline.OutOfTimeError: the limit passed before or during the call, which TensorFlow cancels.
    """
    deadline.check()
    seconds = deadline.seconds_left()
    if math.isfinite(seconds):
        options = options or tf.RunOptions()
        options.timeout_in_ms = math.ceil(seconds * 1e3)
    try:
        return session.run(fetches, feed, options=options, run_metadata=metadata)
    except (tf.errors.DeadlineExceededError, tf.errors.CancelledError) as error:
        # a call is cancelled, too, where that of another thread runs out of time
        if deadline.seconds_left() > 0:
            raise
        raise deadline.OutOfTimeError from error

"""What TensorFlow logs."""

import contextlib
from collections.abc import Iterator

from mtf_hetero._compat import tf


@contextlib.contextmanager
def verbosity(level: int) -> Iterator[None]:
    """Logs what is of a level or above it, and then what was logged before."""
    before = tf.logging.get_verbosity()
    tf.logging.set_verbosity(level)
    try:
        yield
    finally:
        tf.logging.set_verbosity(before)

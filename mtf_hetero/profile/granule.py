"""How many output channels a device computes at a time: a convolution to fewer takes as long as to so many.

A processor's vectors hold 8 or 16 numbers, and the convolutions of oneDNN and cuDNN compute that many channels, or a
tile of them, together: 18 filters take as long as 32. Times of one convolution to a growing number of filters show it.
"""

import itertools
import time

from mtf_hetero._compat import tf
from mtf_hetero._support import deadline
from mtf_hetero.profile.messages import without_optimizers

FILTERS = (4, 8, 16, 32)
_IMAGES, _EXTENT, _CHANNELS, _KERNEL = 16, 16, 64, 3
_HOPS = 4  # convolutions of a call, one after the other
_ALIKE = 0.75  # of the time to twice as many filters, from which on that counts as the same


def measure_granule(device: str, *, target: str, config: tf.ConfigProto, repeats: int = 20) -> int:
    """The largest of some numbers of filters of which half take as long; 1 if there is none.

    Args:
      device: that computes.
      target: of the session.
      config: tf.ConfigProto of the session.
      repeats: how often each is timed.
    """
    with tf.Graph().as_default() as graph, tf.device(device):
        calls = {filters: _convolutions(filters) for filters in FILTERS}
        with tf.Session(target, graph=graph, config=without_optimizers(config)) as session:
            run = {filters: session.make_callable(op) for filters, op in calls.items()}
            samples: dict[int, list[float]] = {filters: [] for filters in FILTERS}
            for repeat in range(repeats + 1):
                deadline.check()
                for filters, call in run.items():
                    begin = time.perf_counter()
                    call()
                    if repeat:  # the first one is to warm up
                        samples[filters].append(time.perf_counter() - begin)
    return of_times({filters: min(times) for filters, times in samples.items()})  # a quota only makes it longer


def of_times(seconds: dict[int, float]) -> int:
    """The granule, from {filters: seconds}, each twice as many as the one before.

    Example:
      >>> of_times({4: 1.0, 8: 1.0, 16: 1.1, 32: 2.1})
      16
    """
    found = 1
    for half, whole in itertools.pairwise(sorted(seconds)):
        if seconds[half] > _ALIKE * seconds[whole]:
            found = whole
    return found


def _convolutions(filters: int) -> tf.Operation:
    """An operation after some convolutions, each of which waits for the one before."""
    x = tf.random.normal([_IMAGES, _EXTENT, _EXTENT, _CHANNELS])
    kernel = tf.random.normal([_KERNEL, _KERNEL, _CHANNELS, filters])
    last: list[tf.Operation] = []
    for _ in range(_HOPS):
        with tf.control_dependencies(last):
            last = [tf.nn.conv2d(tf.identity(x), kernel, strides=1, padding="SAME").op]
    return tf.group(last)

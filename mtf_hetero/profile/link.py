"""Times the way between two devices: latency and bandwidth of a message, as it costs within a step."""

import itertools
import statistics
import time
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero.speeds import Link

HOPS = {1 << 10: 400, 1 << 16: 200, 1 << 20: 50, 1 << 23: 10}  # {bytes of a message: how often it is sent}
_FEW_HOPS = 2
MOST_BYTES_PER_SECOND = 1e13  # what is faster, between logical devices of one CPU, costs nothing that can be measured


def measure_link(a: str, b: str, *, target: str, config: tf.ConfigProto, repeats: int = 9) -> Link:
    """Sends tensors to and fro; the time of two hops is taken off that of many, so that the call does not count.

    A worker under a CPU quota sends at full speed until it is used up, and then not at all: so there are many, which
    take a few of the quota's periods.

    Args:
      a: a device.
      b: another.
      target: of the session.
      config: tf.ConfigProto of the session.
      repeats: how often each size is sent.
    """
    quiet = type(config)()
    quiet.CopyFrom(config)
    quiet.graph_options.rewrite_options.disable_meta_optimizer = True  # it would see that nothing is computed
    with tf.Graph().as_default() as graph:
        ends = {(size, hops): _chain(a, b, size, hops) for size, many in HOPS.items() for hops in (_FEW_HOPS, many)}
        with tf.Session(target, graph=graph, config=quiet) as session:
            calls = {key: session.make_callable(end) for key, end in ends.items()}
            samples: dict[tuple[int, int], list[float]] = {key: [] for key in calls}
            for repeat in range(repeats + 1):
                for key, call in calls.items():
                    begin = time.perf_counter()
                    call()
                    if repeat:  # the first one is to warm up
                        samples[key].append(time.perf_counter() - begin)

    def hop_seconds(size: int, many: int) -> float:
        pairs = zip(samples[size, _FEW_HOPS], samples[size, many], strict=True)
        return statistics.median((long - short) / (many - _FEW_HOPS) for short, long in pairs)

    return fit([(size, hop_seconds(size, many)) for size, many in HOPS.items()])


def _chain(a: str, b: str, size: int, hops: int) -> tf.Operation:
    """An operation after `hops` copies of a tensor of `size` bytes between two devices."""
    with tf.device(a):
        x = tf.random.uniform([size // 4])
    for hop in range(hops):
        with tf.device(a if hop % 2 else b):
            x = tf.identity(x)
    with tf.control_dependencies([x]):
        return tf.no_op()


def fit(points: Sequence[tuple[int, float]]) -> Link:
    """Latency and bandwidth from (bytes, seconds): the median slope, and what it leaves of the smallest messages.

    Example:
      >>> fit([(1000, 0.002), (1000000, 0.003), (2000000, 0.004)])
      Link(latency_seconds=0.001999, bytes_per_second=1000000000.0)
    """
    large = [point for point in points if point[0] >= max(size for size, _ in points) / 16]
    slope = statistics.median((t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in itertools.combinations(large, 2))
    slope = max(slope, 1 / MOST_BYTES_PER_SECOND)
    small = [seconds - size * slope for size, seconds in points if size <= min(size for size, _ in points) * 64]
    return Link(round(max(statistics.median(small), 0.0), 9), round(1 / slope, 3))

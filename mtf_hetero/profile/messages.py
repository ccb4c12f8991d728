"""Times the way between two devices: latency and bandwidth of a message, and what a byte costs each end's processor."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.profile import limited
from mtf_hetero.profile.link import Link

HOPS = {1 << 10: 400, 1 << 16: 200, 1 << 20: 50, 1 << 23: 10}  # {bytes of a message: how often it is sent}
_FEW_HOPS = 2
_LEAST_REPEATS, _MOST_SECONDS = 2, 5.0  # over a slow link no more is repeated after so long
LOADS = {1 << 10: 200, 1 << 22: 16}  # {bytes of a message: how often it goes to and fro while a device computes}
_LOAD_EXTENT = 512  # of the square matrices that it multiplies meanwhile
PRODUCT_FLOPS = 2 * _LOAD_EXTENT**3  # of one of `products`
_LOAD_TIMES = 2.5  # as long as the messages take by themselves
MOST_BYTES_PER_SECOND = 1e13  # what is faster, between logical devices of one CPU, costs nothing that can be measured


def measure_link(
    a: str, b: str, *, target: str, config: tf.ConfigProto, repeats: int = 9, seconds: float = _MOST_SECONDS
) -> Link:
    """Sends tensors to and fro; the time of two hops is taken off that of many, so that the call does not count.

    A worker under a CPU quota sends at full speed until it is used up, and then not at all: so there are many, which
    take a few of the quota's periods.

    Args:
      a: a device.
      b: another.
      target: of the session.
      config: tf.ConfigProto of the session.
      repeats: how often each size is sent, at most.
      seconds: after which nothing is repeated more than twice.
    """
    quiet = without_optimizers(config)
    with tf.Graph().as_default() as graph:
        ends = {(size, hops): _chain(a, b, size, hops) for size, many in HOPS.items() for hops in (_FEW_HOPS, many)}
        with tf.Session(target, graph=graph, config=quiet) as session:
            calls = {key: functools.partial(limited.run, session, end) for key, end in ends.items()}
            samples: dict[tuple[int, int], list[float]] = {key: [] for key in calls}
            end = time.perf_counter() + seconds
            for repeat in range(repeats + 1):
                if repeat > _LEAST_REPEATS and time.perf_counter() > end:
                    break
                for key, call in calls.items():
                    begin = time.perf_counter()
                    call()
                    if repeat:  # the first one is to warm up
                        samples[key].append(time.perf_counter() - begin)

    def hop_seconds(size: int, many: int) -> float:
        pairs = zip(samples[size, _FEW_HOPS], samples[size, many], strict=True)
        return statistics.median((long - short) / (many - _FEW_HOPS) for short, long in pairs)

    return fit([(size, hop_seconds(size, many)) for size, many in HOPS.items()])


def measure_processor(
    device: str,
    other: str,
    *,
    target: str,
    config: tf.ConfigProto,
    repeats: int = 5,
    seconds: float = _MOST_SECONDS,
) -> tuple[float, float]:
    """By how many seconds a message, and each byte, puts off what a device computes that sends or receives it.

    The device multiplies matrices while tensors go to and fro between it and another one: what that takes longer. A
    worker under a CPU quota pays for transfers out of it.

    Args:
      device: the one that computes.
      other: to and from which it sends.
      target: of the session.
      config: tf.ConfigProto of the session.
      repeats: how often each is timed, at most; the mean counts, since a quota's periods make any longer or shorter.
      seconds: after which messages of a size are timed no more than twice.

    Returns:
      (seconds a message, seconds a byte).
    """
    with tf.Graph().as_default() as graph:
        load, count = products(device)
        ends = {size: _chain(device, other, size, hops) for size, hops in LOADS.items()}
        with tf.Session(target, graph=graph, config=without_optimizers(config)) as session:

            def call(operation: tf.Operation, turns: int) -> None:
                limited.run(session, operation, {count: turns})

            call(load, 1)  # to warm up
            delays = {}
            for size, end in ends.items():
                both = functools.partial(call, tf.group(end, load))
                send = functools.partial(limited.run, session, end)
                delays[size] = _delay(send, functools.partial(call, load), both, repeats, seconds) / LOADS[size]
    small, large = sorted(delays)
    per_byte = max(delays[large] - delays[small], 0.0) / (large - small)
    return max(delays[small] - small * per_byte, 0.0), per_byte


def products(device: str) -> tuple[tf.Operation, tf.Tensor]:
    """An operation of a device that multiplies matrices, and the placeholder of how often; see `PRODUCT_FLOPS`."""
    with tf.device(device):
        count = tf.placeholder(tf.int32, [])
        x = tf.fill([_LOAD_EXTENT, _LOAD_EXTENT], 1.0 / _LOAD_EXTENT)
        loop = tf.while_loop(lambda i, _: i < count, lambda i, y: (i + 1, tf.matmul(y, x)), [tf.constant(0), x])
    return loop[1].op, count


def _delay(
    send: Callable[[], Any],
    compute: Callable[[int], Any],
    both: Callable[[int], Any],
    repeats: int,
    most_seconds: float,
) -> float:
    """Return by how many seconds a loop is longer beside messages; it runs for longer than they do."""
    send()
    wanted = _LOAD_TIMES * _seconds_of(send)
    turns = 8
    while (seconds := _seconds_of(compute, turns)) < wanted / 2:
        turns = math.ceil(turns * min(8.0, max(2.0, wanted / seconds)))
    turns = math.ceil(turns * wanted / seconds)
    delays: list[float] = []
    end = time.perf_counter() + most_seconds
    while len(delays) < repeats and (len(delays) < _LEAST_REPEATS or time.perf_counter() < end):
        delays.append(_seconds_of(both, turns) - _seconds_of(compute, turns))
    return max(statistics.fmean(delays), 0.0)


def _seconds_of(call: Callable[..., Any], *arguments: Any) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def without_optimizers(config: tf.ConfigProto) -> tf.ConfigProto:
    """A copy of a configuration for a session whose graphs are run as they are: they compute nothing of use."""
    quiet = type(config)()
    quiet.CopyFrom(config)
    quiet.graph_options.rewrite_options.disable_meta_optimizer = True
    return quiet


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

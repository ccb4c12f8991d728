"""Microbenchmarks of devices: the latency and bandwidth of a link, the processor time of a message, granules.

A granule is the number of output channels that a device computes at a time, such as a vector of 8 or 16. So 18 filters
take as long as 32. The times of a convolution to a growing number of filters show it.
"""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from mtf_hetero._compat import tf
from mtf_hetero._support import deadline
from mtf_hetero.cost import limited
from mtf_hetero.cost.machines import Link

HOPS = {1 << 10: 400, 1 << 16: 200, 1 << 20: 50, 1 << 23: 10}  # {bytes of a message: how often it is sent, at most}
_FEW_HOPS = 2
_HOPS_SECONDS = 1.0  # of many hops, which a slow link needs no more of: ten periods of a CPU quota
_LEAST_REPEATS = 2
# {bytes of a message: how often it is sent while a device computes, at most}
LOADS = {1 << 10: 200, 1 << 22: 16}
_LOAD_EXTENT = 512  # of the square matrices that it multiplies meanwhile
PRODUCT_FLOPS = 2 * _LOAD_EXTENT**3  # of one of `products`
_LOAD_TIMES = 2.5  # as long as the messages take by themselves
MOST_BYTES_PER_SECOND = 1e13  # what is faster, between logical devices of one CPU, costs nothing that can be measured
FILTERS = (4, 8, 16, 32)  # of the convolutions that show the granule
_IMAGES, _EXTENT, _CHANNELS, _KERNEL = 16, 16, 64, 3
_CONVOLUTIONS = 4  # of a call, one after the other
# Of the time to twice as many filters, from which on that counts as the same. CosmoFlow's split of 16 filters was
# predicted at 0.58 of its time, because 4 of them cost as much as all
_ALIKE = 0.75


K = TypeVar("K", bound=Hashable)


def measure_link(
    a: str, b: str, *, target: str, config: tf.ConfigProto, repeats: int = 9, seconds: float = 5.0
) -> Link:
    """Measure a link by tensors that go to and fro: the time of many hops, less that of two.

    A worker under a CPU quota sends at full speed until it is used up. So the hops last for several of its periods.

    Args:
      a: a device.
      b: another.
      target: of the session.
      config: tf.ConfigProto of the session.
      repeats: of each size, at most.
      seconds: after which nothing is repeated more than twice.
    """
    quiet = without_optimizers(config)
    with tf.Graph().as_default() as graph:
        few = {size: _chain(a, b, size, _FEW_HOPS) for size in HOPS}
        with tf.Session(target, graph=graph, config=quiet) as session:
            hops = {size: _count_hops(functools.partial(limited.run, session, few[size]), HOPS[size]) for size in HOPS}
            ends = {(size, _FEW_HOPS): end for size, end in few.items()}
            ends |= {(size, many): _chain(a, b, size, many) for size, many in hops.items()}
            calls = {key: functools.partial(limited.run, session, end) for key, end in ends.items()}
            samples = _timed(calls, repeats, seconds)

    def hop_seconds(size: int, many: int) -> float:
        pairs = zip(samples[size, _FEW_HOPS], samples[size, many], strict=True)
        return statistics.median((long - short) / (many - _FEW_HOPS) for short, long in pairs)

    return fit([(size, hop_seconds(size, many)) for size, many in hops.items()])


def _count_hops(send_few: Callable[[], object], most: int) -> int:
    """Return how many hops of a size are enough to time it, by the time of a few."""
    send_few()  # to warm up
    seconds = _time(send_few) / _FEW_HOPS
    return min(most, max(2 * _FEW_HOPS, math.ceil(_HOPS_SECONDS / seconds)))


def measure_processor(
    device: str,
    other: str,
    *,
    target: str,
    config: tf.ConfigProto,
    repeats: int,
    seconds: float,
) -> tuple[float, float]:
    """Measure by how many seconds a message, and each byte, delays the work of its sender or receiver.

    The device multiplies matrices, with and without tensors that go to and fro between it and another one.

    Args:
      device: the one that computes.
      other: to and from which it sends.
      target: of the session.
      config: tf.ConfigProto of the session.
      repeats: of each size, at most; the mean counts, since a CPU quota makes single times longer or shorter.
      seconds: after which no size is timed more than twice.

    Returns:
      (seconds a message, seconds a byte).
    """
    with tf.Graph().as_default() as graph:
        load, count = products(device)
        with tf.Session(target, graph=graph, config=without_optimizers(config)) as session:

            def call(operation: tf.Operation, turns: int) -> None:
                limited.run(session, operation, {count: turns})

            call(load, 1)  # to warm up
            delays = {}
            for size, most in LOADS.items():
                few = functools.partial(limited.run, session, _chain(device, other, size, _FEW_HOPS))
                end = _chain(device, other, size, hops := _count_hops(few, most))
                both = functools.partial(call, tf.group(end, load))
                send = functools.partial(limited.run, session, end)
                delays[size] = _delay(send, functools.partial(call, load), both, repeats, seconds) / hops
    small, large = sorted(delays)
    per_byte = max(delays[large] - delays[small], 0.0) / (large - small)
    return max(delays[small] - small * per_byte, 0.0), per_byte


def products(device: str) -> tuple[tf.Operation, tf.Tensor]:
    """Return an operation that multiplies matrices on a device, and the placeholder of how often."""
    with tf.device(device):
        count = tf.placeholder(tf.int32, [])
        x = tf.fill([_LOAD_EXTENT, _LOAD_EXTENT], 1.0 / _LOAD_EXTENT)
        loop = tf.while_loop(lambda i, _: i < count, lambda i, y: (i + 1, tf.matmul(y, x)), [tf.constant(0), x])
    return loop[1].op, count


def _delay(
    send: Callable[[], object],
    compute: Callable[[int], object],
    both: Callable[[int], object],
    repeats: int,
    most_seconds: float,
) -> float:
    """Return by how many seconds a loop is longer beside messages; it runs for longer than they do."""
    send()
    wanted = _LOAD_TIMES * _time(send)
    turns = 8
    while (seconds := _time(compute, turns)) < wanted / 2:
        turns = math.ceil(turns * min(8.0, max(2.0, wanted / seconds)))
    turns = math.ceil(turns * wanted / seconds)
    delays: list[float] = []
    end = time.perf_counter() + most_seconds
    while len(delays) < repeats and (len(delays) < _LEAST_REPEATS or time.perf_counter() < end):
        delays.append(_time(both, turns) - _time(compute, turns))
    return max(statistics.fmean(delays), 0.0)


def _timed(calls: Mapping[K, Callable[[], object]], repeats: int, seconds: float = math.inf) -> dict[K, list[float]]:
    """Return the seconds of calls that take turns: so many each, or two after a time limit."""
    samples: dict[K, list[float]] = {key: [] for key in calls}
    end = time.perf_counter() + seconds
    for repeat in range(repeats + 1):
        deadline.check()
        if repeat > _LEAST_REPEATS and time.perf_counter() > end:
            break
        for key, call in calls.items():
            taken = _time(call)
            if repeat:  # the first one is to warm up
                samples[key].append(taken)
    return samples


def _time(call: Callable[..., object], *arguments: object) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def without_optimizers(config: tf.ConfigProto) -> tf.ConfigProto:
    """Return a configuration for a session that runs graphs as they are, although they compute nothing of use."""
    quiet = type(config)()
    quiet.CopyFrom(config)
    quiet.graph_options.rewrite_options.disable_meta_optimizer = True
    return quiet


def _chain(a: str, b: str, size: int, hops: int) -> tf.Operation:
    """Return an operation after `hops` copies of a tensor of `size` bytes between two devices."""
    with tf.device(a):
        x = tf.random.uniform([size // 4])
    for hop in range(hops):
        with tf.device(a if hop % 2 else b):
            x = tf.identity(x)
    with tf.control_dependencies([x]):
        return tf.no_op()


def fit(points: Sequence[tuple[int, float]]) -> Link:
    """Fit latency and bandwidth to (bytes, seconds): the median slope, and the rest of the smallest messages.

    Example:
      >>> fit([(1000, 0.002), (1000000, 0.003), (2000000, 0.004)])
      Link(latency_seconds=0.001999, bytes_per_second=1000000000.0)
    """
    large = [point for point in points if point[0] >= max(size for size, _ in points) / 16]
    slope = statistics.median((t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in itertools.combinations(large, 2))
    slope = max(slope, 1 / MOST_BYTES_PER_SECOND)
    small = [seconds - size * slope for size, seconds in points if size <= min(size for size, _ in points) * 64]
    return Link(round(max(statistics.median(small), 0.0), 9), round(1 / slope, 3))


def measure_granule(device: str, *, target: str, config: tf.ConfigProto, repeats: int) -> int:
    """Return the largest of some numbers of filters of which half take as long; 1 without one.

    Args:
      device: that computes.
      target: of the session.
      config: tf.ConfigProto of the session.
      repeats: how often each is timed.
    """
    with tf.Graph().as_default() as graph, tf.device(device):
        calls = {filters: _convolutions(filters) for filters in FILTERS}
        with tf.Session(target, graph=graph, config=without_optimizers(config)) as session:
            samples = _timed({filters: session.make_callable(op) for filters, op in calls.items()}, repeats)
    return find_granule({filters: min(times) for filters, times in samples.items()})  # a quota only makes it longer


def find_granule(seconds: dict[int, float]) -> int:
    """Return the granule by {filters: seconds}, each twice as many as the one before.

    Example:
      >>> find_granule({4: 1.0, 8: 1.0, 16: 1.1, 32: 2.1})
      16
    """
    found = 1
    for half, whole in itertools.pairwise(sorted(seconds)):
        if seconds[half] > _ALIKE * seconds[whole]:
            found = whole
    return found


def _convolutions(filters: int) -> tf.Operation:
    """Return an operation after some convolutions, each of which waits for the one before."""
    x = tf.random.normal([_IMAGES, _EXTENT, _EXTENT, _CHANNELS])
    kernel = tf.random.normal([_KERNEL, _KERNEL, _CHANNELS, filters])
    last: list[tf.Operation] = []
    for _ in range(_CONVOLUTIONS):
        with tf.control_dependencies(last):
            last = [tf.nn.conv2d(tf.identity(x), kernel, strides=1, padding="SAME").op]
    return tf.group(last)

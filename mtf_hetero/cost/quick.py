"""Measure a first figure within seconds: matrix products on each device, and a whole step on the fastest one.

It says how much a split can save at most. Measuring the devices on the program takes tens of seconds, and pays off only
in a long training.
"""

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

from mtf_hetero._compat import mtf, tf
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost import limited
from mtf_hetero.cost.microbenchmarks import PRODUCT_FLOPS, products, without_optimizers
from mtf_hetero.cost.model import ALONE
from mtf_hetero.cost.trial import Trial

_RATE_SECONDS, _RATE_TURNS = 0.25, 3  # a few periods of a CPU quota
_NEARLY = 1.1  # times as fast; how far two measurements of one device lie apart
_NEARLY_BUSY = 2.0  # on a busy machine
_STEP_SECONDS, _MOST_STEPS = 0.2, 10
_FIXED_SECONDS = 8.0  # of measuring links and messages, for any program
_STEPS, _TRIALS = 12, 3  # that measuring, planning and trying take, about, and sessions that they open


@dataclasses.dataclass(frozen=True)
class Figure:
    """Figures of a program and its devices after a few steps.

    Args:
      rates: {device: floating-point operations of matrix products a second}, while all devices are busy.
      step_seconds: of a step on the fastest device alone.
      build_seconds: until that step could be run: the graph was built, and TensorFlow had prepared it.
    """

    rates: Mapping[str, float]
    step_seconds: float
    build_seconds: float

    @property
    def fastest(self) -> str:
        """The fastest device."""
        return fastest(self.rates)

    def most_saved(self, steps: int) -> float:
        """Return the most seconds that a split can save in so many steps: all devices compute, and nothing is sent."""
        return steps * self.step_seconds * (1.0 - self.rates[self.fastest] / math.fsum(self.rates.values()))

    @property
    def trying_seconds(self) -> float:
        """The estimated seconds to plan for known devices, and to try the plan."""
        return 2.0 + _STEPS / 2 * self.step_seconds + self.build_seconds

    @property
    def measuring_seconds(self) -> float:
        """The estimated seconds to measure the devices on the program, to plan and to try."""
        return _FIXED_SECONDS + _STEPS * self.step_seconds + _TRIALS * self.build_seconds

    @property
    def thorough_seconds(self) -> float:
        """The estimated seconds to measure the devices thoroughly, with equal parts of a step on each."""
        slowest = self.step_seconds * self.rates[self.fastest] / min(self.rates.values()) / len(self.rates)
        return 15.0 + 2 * self.build_seconds + 10 * self.step_seconds + 10 * slowest


def fastest(rates: Mapping[str, float]) -> str:
    """Return the device with the highest rate; the first one of those that are nearly as fast.

    Example:
      >>> fastest({"a": 1.0, "b": 2.0, "c": 2.1})
      'b'
    """
    return next(device for device, rate in rates.items() if rate * _NEARLY >= max(rates.values()))


def leveled(rates: Mapping[str, float]) -> dict[str, float]:
    """Return the rates of a busy machine, which slows some devices down: those nearly as high become the highest.

    Example:
      >>> leveled({"a": 2.0, "b": 3.0, "c": 1.0})
      {'a': 3.0, 'b': 3.0, 'c': 1.0}
    """
    highest = max(rates.values())
    return {device: highest if rate * _NEARLY_BUSY >= highest else rate for device, rate in rates.items()}


def measure_rates(cluster: Cluster) -> dict[str, float]:
    """Return {device: floating-point operations of matrix products a second} while all devices are busy."""
    with tf.Graph().as_default() as graph:
        loops = {device: products(device) for device in cluster.devices}
        config = without_optimizers(cluster.session_config())
        with tf.Session(cluster.target, graph=graph, config=config) as session:

            def measure_rate(device: str) -> float:
                operation, count = loops[device]
                limited.run(session, operation, {count: 1})  # to warm up
                turns, times = 1, []
                while len(times) < _RATE_TURNS:
                    begin = time.perf_counter()
                    limited.run(session, operation, {count: turns})
                    seconds = time.perf_counter() - begin
                    if seconds >= _RATE_SECONDS:
                        times.append(seconds)
                    else:
                        turns = math.ceil(turns * min(16.0, max(1.1, 1.2 * _RATE_SECONDS / seconds)))
                        times.clear()
                return PRODUCT_FLOPS * turns / min(times)  # other work there only makes it longer

            with concurrent.futures.ThreadPoolExecutor(len(loops)) as pool:
                running = {d: pool.submit(contextvars.copy_context().run, measure_rate, d) for d in loops}
            return {device: future.result() for device, future in running.items()}


@contextlib.contextmanager
def whole_step(
    build: Callable[[], mtf.Graph], cluster: Cluster, rates: Mapping[str, float]
) -> Iterator[tuple[Trial, Figure]]:
    """Open a trial of the step on the fastest device alone, with the first figure.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: the devices.
      rates: as of `measure_rates`.
    """
    begin = time.monotonic()
    with Trial(build, ALONE, [fastest(rates)], cluster) as trial:
        trial.run()  # TensorFlow prepares the graph
        build_seconds = time.monotonic() - begin
        steps = [trial.run()]
        while math.fsum(steps) < _STEP_SECONDS and len(steps) < _MOST_STEPS:
            steps.append(trial.run())
        yield trial, Figure(rates, statistics.median(steps), build_seconds)

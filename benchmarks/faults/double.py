"""The training binary with a network in float64, and with short times until a worker counts as lost.

    python -m benchmarks.faults.double --pause_seconds=0.05 --model=double --layout=batch --workers=@hosts.txt

`--model=double` is LeNet with values of float64. Losses on any devices then agree to 12 digits. The training rests for
`--pause_seconds` after each step. Other flags are those of `mtf-hetero train`.
"""

import argparse
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from mtf_hetero import mtf, tf
from mtf_hetero._support import command_line
from mtf_hetero.cli.train import prepare
from mtf_hetero.cluster import WorkerWatch
from mtf_hetero.cluster.session import WaitingSessionCreator
from mtf_hetero.estimator import training
from mtf_hetero.models import MODELS
from mtf_hetero.training import Elastic, elastic

_TIMEOUT_SECONDS, _LOOK_SECONDS = 2.0, 1.0


def _build(images: mtf.Tensor, **config: Any) -> mtf.Tensor:
    return MODELS["lenet"].build(mtf.cast(images, tf.float64), **config)


def offered() -> contextlib.AbstractContextManager[object]:
    """Have `--model=double`, until the end of the context."""
    models = {**MODELS, "double": dataclasses.replace(MODELS["lenet"], build=_build)}
    return mock.patch.object(prepare, "MODELS", models)


def _end_and_rest(seconds: float) -> Callable[[Elastic[Any], int], None]:
    end_step = Elastic.end_step

    def end_and_rest(self: Elastic[Any], step: int) -> None:
        end_step(self, step)
        time.sleep(seconds)

    return end_and_rest


def main() -> None:
    """Train as the command line says."""
    from mtf_hetero.cli.train import __main__ as train  # here, because it defines flags that benchmarks.run has too

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--pause_seconds", type=float, default=0.0)
    own, flags = parser.parse_known_args()
    watch = functools.partial(WorkerWatch, interval_seconds=0.5, timeout_seconds=_TIMEOUT_SECONDS)
    waiting = functools.partial(WaitingSessionCreator, timeout_seconds=_TIMEOUT_SECONDS)
    with (
        offered(),
        mock.patch.object(training, "WorkerWatch", watch),
        mock.patch.object(training, "WaitingSessionCreator", waiting),
        mock.patch.object(elastic, "_LOOK_SECONDS", _LOOK_SECONDS),
        mock.patch.object(Elastic, "end_step", _end_and_rest(own.pause_seconds)),
    ):
        command_line.run(train.main, flags, train.PROGRAM)


if __name__ == "__main__":
    main()

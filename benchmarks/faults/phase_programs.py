"""The programs that train while workers are killed: `mtf-hetero train`, `mtf_hetero.keras.fit`, `mtf_hetero.function`.

    python -m benchmarks.faults.phase_programs fit batch DIRECTORY middle 127.0.0.1:2222,127.0.0.1:2223 60

It trains on workers of this machine. At a point, `middle`, it kills those whose processes the file DIRECTORY/pids has,
and prints `at middle`. A step has begun 0.03 seconds before. Numbers are of float64. In the end,
DIRECTORY/results.npz has losses, tests and weights.
"""

import argparse
import contextlib
import functools
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np

import mtf_hetero.keras
from benchmarks.faults import checkpoints, double
from benchmarks.faults.phases import FILE, FIRST, FIT, FUNCTION, MIDDLE, MOVE, PROGRAMS, SAVE, STEPS, TEST, TRACING
from mtf_hetero import Lowering, tf
from mtf_hetero._support import command_line, threads
from mtf_hetero.checkpoint import Saver
from mtf_hetero.cli.train import __main__ as train
from mtf_hetero.cli.train.training import Training
from mtf_hetero.estimator import Elastic, Estimator, metrics_log
from mtf_hetero.importer import Divided
from mtf_hetero.training.rebalancing import RebalanceHook

_BATCH, _PULL_STEPS = 128, 4
_FIRST_STEP, _MOVE_STEP, _MIDDLE_STEP, _AGAIN_STEP = 0, 4, 5, 11
_WITHIN_SECONDS = 0.03


class _Hook(tf.train.SessionRunHook):
    """Calls functions before and after each step of a session."""

    def __init__(self, before: Callable[[], object], after: Callable[[], object]) -> None:
        self._before, self._after = before, after

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        self._before()

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._after()


class _Striker:
    """Kills the workers of a file when the training comes to a point. A context manager.

    Args:
      point: the point.
      pids: path of the file with their processes.
      twice: whether it kills again some steps later.
    """

    def __init__(self, point: str, pids: pathlib.Path, twice: bool) -> None:
        self._point, self._pids, self._left = point, pids, 1 + twice
        self._moves, self._is_within, self._steps = point == MOVE, False, 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        replaced: Mapping[tuple[Any, str], Callable[..., Any]] = {
            (Lowering, "__init__"): functools.partial(self._come_to, TRACING),
            (Elastic, "begin_move"): functools.partial(self._come_to, MOVE),
            (Saver, "save"): self._save,
            (Divided, "pull"): self._save,
            (Divided, "_run"): self._take,
            (RebalanceHook, "after_run"): self._rebalance,
            (Training, "_hooks"): self._add_hook,
            (Estimator, "evaluate"): self._evaluate,
        }
        for (cls, name), function in replaced.items():
            method = functools.partialmethod(functools.partial(_insert, function, getattr(cls, name)))
            self._stack.enter_context(mock.patch.object(cls, name, method))

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _come_to(self, point: str, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Kill at once if this is the point."""
        if point == self._point and self._left:
            self._left -= 1
            self._strike(point)
        return original(*args, **options)

    def _strike(self, where: str) -> None:
        for pid in self._pids.read_text(encoding="utf-8").split():
            os.kill(int(pid), signal.SIGKILL)
        print(f"at {where}", flush=True)

    def _begin(self, point: str) -> None:
        """Kill a little later, in another thread, if this is the point of a step that begins."""
        self._is_within = True
        if self._left and point == self._point:
            self._left -= 1
            threading.Timer(_WITHIN_SECONDS, self._strike_within, [point]).start()

    def _strike_within(self, point: str) -> None:
        self._strike(point if self._is_within else f"{point}, after the step")

    def _begin_step(self) -> None:
        self._begin({_FIRST_STEP: FIRST, _MIDDLE_STEP: MIDDLE, _AGAIN_STEP: MIDDLE}.get(self._steps, ""))

    def _end(self, *, trains: bool = False) -> None:
        self._is_within = False
        self._steps += trains

    def _save(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._come_to(SAVE if self._steps > _MIDDLE_STEP else "", original, *args, **options)

    def _take(self, original: Callable[..., Any], divided: Divided, lowered: Any, *args: Any) -> Any:
        """Take a step, or test a batch, of Keras or of a function."""
        trains = bool(lowered.written)
        if trains:
            self._begin_step()
        else:
            self._begin(TEST)
        try:
            result = original(divided, lowered, *args)
        finally:
            self._end()
        self._steps += trains
        return result

    def _add_hook(self, original: Callable[..., Any], *args: Any) -> Any:
        return [*original(*args), _Hook(self._begin_step, functools.partial(self._end, trains=True))]

    def _evaluate(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return original(*args, hooks=[_Hook(lambda: self._begin(TEST), self._end)], **options)

    def _rebalance(self, original: Callable[..., Any], hook: Any, *args: Any) -> None:
        """Have the shares changed once, as if the first device had become slow."""
        original(hook, *args)
        if not self._moves or self._steps != _MOVE_STEP:
            return
        self._moves = False
        first, *others = hook._load.devices
        even = dict.fromkeys([first, *others], 1.0)

        def propose() -> Any:
            proposal = hook._propose(even, {**even, first: 3.0})
            if hook._prepare is not None:
                hook._prepare(proposal.place)
            return proposal

        proposal = threads.begin(propose, "rebalance").result()  # in a thread, as the hook does
        hook._switch(proposal, "other shares are asked for")


def _insert(function: Callable[..., Any], original: Callable[..., Any], self: Any, *args: Any, **options: Any) -> Any:
    """Call a function in place of a method, with the method as its first argument."""
    return function(original, self, *args, **options)


def _model() -> Any:
    """Return a compiled Keras model in float64, of the same weights each time."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(24, 5, strides=2, activation="softplus", dtype="float64", name="conv"),
        keras.layers.Flatten(dtype="float64"),
        keras.layers.Dense(40, "tanh", dtype="float64", name="hidden"),
        keras.layers.Dense(10, dtype="float64", activation="softmax", name="head"),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((STEPS * _BATCH // 2, 28, 28, 1)), rng.integers(0, 10, STEPS * _BATCH // 2)


def _train(options: argparse.Namespace) -> dict[str, Any]:
    model, directory = "double", options.directory / "run"
    if options.program == FILE:
        model = str(options.directory / "model.keras")
        _model().save(model)
    flags = [
        f"--model={model}",
        f"--layout={options.layout}",
        f"--workers={options.workers}",
        f"--model_dir={directory}",
    ]
    flags += [f"--wait_for_workers={options.wait}", f"--max_steps={STEPS}", f"--eval_every={STEPS // 2}", "--seed=1"]
    flags += [f"--batch_size={_BATCH}", "--summary_steps=1", "--optimizer=momentum", "--learning_rate=0.002"]
    flags += ["--learning_rate_schedule=constant", "--train_epochs=100"]
    with double.offered():
        code = train.main(flags, train.PROGRAM)
    if code:
        sys.exit(code)
    rows = [metrics_log.read_kind(directory / metrics_log.NAME, kind) for kind in ("train", "validation", "test")]
    losses = {row["step"]: row["loss"] for row in rows[0]}
    tests = [row["loss"] for row in (*rows[1], *rows[2])]
    weights = checkpoints.values(directory, STEPS)
    return {"losses/train": [losses[step] for step in sorted(losses)], "losses/test": tests, **weights}


def _fit(options: argparse.Namespace) -> dict[str, Any]:
    model, (x, y) = _model(), _data()
    saving = keras.callbacks.ModelCheckpoint(options.directory / "model.keras")
    place = {"workers": options.workers, "layout": options.layout, "wait_for_workers": options.wait}
    data = {"batch_size": _BATCH, "epochs": 2, "verbose": 0, "validation_data": (x[: 2 * _BATCH], y[: 2 * _BATCH])}
    history = mtf_hetero.keras.fit(model, x, y, callbacks=[saving], **data, **place)
    variables = [*model.variables, *model.optimizer.variables]
    return {
        **{f"losses/{name}": values for name, values in history.history.items()},
        **{variable.path: np.asarray(variable) for variable in variables},
    }


def _function(options: argparse.Namespace) -> dict[str, Any]:
    model, (x, y) = _model(), _data()
    model.optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    batches = [(x[i : i + _BATCH], y[i : i + _BATCH]) for i in range(0, len(x), _BATCH)] * 2

    def step(images: Any, classes: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(classes, model(images, training=True))
        model.optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        return loss

    place, losses = {"workers": options.workers, "layout": options.layout, "wait_for_workers": options.wait}, []
    with mtf_hetero.function(step, batches[0], **place) as divided:
        for number in range(STEPS):
            losses.append(divided(*batches[number]))
            if number % _PULL_STEPS == _PULL_STEPS - 1:
                divided.pull()
    variables = [*model.variables, *model.optimizer.variables]
    return {"losses/train": np.array(losses), **{variable.path: np.asarray(variable) for variable in variables}}


def main(argv: Sequence[str] | None, program: str) -> int:
    """Run a program as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("layout")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("point")
    parser.add_argument("workers")
    parser.add_argument("wait", type=int)
    parser.add_argument("--twice", action="store_true")
    options = parser.parse_args(argv)
    work = {FIT: _fit, FUNCTION: _function}.get(options.program, _train)
    if work is not _train:  # which makes float64 of the images itself
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
    with _Striker(options.point, options.directory / "pids", options.twice):
        results = work(options)
    np.savez(options.directory / "results.npz", **{name.replace("/", "."): value for name, value in results.items()})
    return 0


if __name__ == "__main__":
    command_line.run(main, sys.argv[1:], "phases")

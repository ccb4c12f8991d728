"""The settings of an Estimator: the mode, how a run is made, what a model consists of, and what a schedule asks for.

These are value objects in the shape that tf.estimator gave them. Each is checked when it is made, so that a mistake
is reported before a graph is built.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero._support.numbers import check_number
from mtf_hetero.cluster.probe import Workers, convert_to_workers

Hooks = Sequence[tf.train.SessionRunHook]
Tensors = tf.Tensor | Mapping[str, tf.Tensor]
DEFAULT_SAVE_CHECKPOINTS_SECS = 60
_USE_DEFAULT: Any = "default"
# What TensorFlow's kernels accept as the name of a resource container.
_CONTAINER = re.compile(r"([A-Za-z0-9.][A-Za-z0-9.\-/]*)?")


class ModeKeys:
    """The purposes of a model, the same strings as in tf.estimator."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


def _check_callable(value: object, name: str) -> None:
    if not callable(value):
        raise ValueError(f"{name} is {value!r}; it must be a function")


def _check_hooks(hooks: Iterable[object] | None, name: str) -> tuple[tf.train.SessionRunHook, ...]:
    checked = []
    for hook in hooks or ():
        if not isinstance(hook, tf.train.SessionRunHook):
            raise ValueError(f"{name} holds {hook!r}; each must be a tf.train.SessionRunHook")
        checked.append(hook)
    return tuple(checked)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The options of an Estimator: directories, intervals, session.

    Args:
      model_dir: directory of checkpoints and summaries.
      tf_random_seed: seed of each graph; None: another one each time.
      save_summary_steps: steps between summaries; None or 0: none.
      save_checkpoints_steps: steps between checkpoints.
      save_checkpoints_secs: seconds between checkpoints; give this or the steps. Without either, 60; where both are
        None, only the first and the last state are saved.
      session_config: tf.ConfigProto of each session; None: soft placement.
      keep_checkpoint_max: number of checkpoints kept; None or 0: all.
      keep_checkpoint_every_n_hours: hours after which one checkpoint more is kept for good.
      log_step_count_steps: steps between log lines of loss and speed; None or 0: none.
      master: address of the TensorFlow server, "grpc://host:port"; "" runs in this process.
      workers: "host:port" of each worker that takes part, or {index: "host:port"} (Cluster.workers_in_use): they belong
        to this run alone while it lasts; training waits for one that is lost, says which, and continues from the newest
        copy in memory or checkpoint once it is back.
      wait_for_workers: seconds that training and evaluation wait for a lost worker; after that they end with an error,
        or continue without it (Estimator.train: elastic). True: they wait forever; False: not at all.
      iterations_per_loop: steps of training in one call of the session, which saves time if steps are short. Hooks are
        called once for them, checkpoints among them, and a signal ends the training after them.
      container: resource container that holds the variables on the servers; "" is TensorFlow's own.

    Raises:
      ValueError: a field that is out of range, or both checkpoint intervals.
    """

    model_dir: str | None = None
    tf_random_seed: int | None = 1
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = _USE_DEFAULT
    save_checkpoints_secs: float | None = _USE_DEFAULT
    session_config: tf.ConfigProto | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = 10000
    log_step_count_steps: int | None = 100
    master: str = ""
    workers: Workers = ()
    wait_for_workers: bool | float = True
    iterations_per_loop: int = 1
    container: str = ""

    def __post_init__(self) -> None:
        self._set_intervals()
        if self.model_dir is not None:
            object.__setattr__(self, "model_dir", _directory(self.model_dir))
        if self.tf_random_seed is not None and not isinstance(self.tf_random_seed, int):
            raise ValueError(f"tf_random_seed is {self.tf_random_seed!r}; it must be a whole number or None")
        for name in ("save_summary_steps", "keep_checkpoint_max", "log_step_count_steps"):
            check_number(getattr(self, name), name, zero=True)
        check_number(self.iterations_per_loop, "iterations_per_loop", none=False)
        check_number(self.save_checkpoints_steps, "save_checkpoints_steps")
        check_number(self.save_checkpoints_secs, "save_checkpoints_secs", whole=False)
        check_number(self.keep_checkpoint_every_n_hours, "keep_checkpoint_every_n_hours", whole=False, none=False)
        if not isinstance(self.wait_for_workers, bool):
            check_number(self.wait_for_workers, "wait_for_workers", whole=False, zero=True, none=False)
        if self.session_config is not None and not isinstance(self.session_config, tf.ConfigProto):
            raise ValueError(f"session_config is {self.session_config!r}; it must be a tf.ConfigProto or None")
        if not isinstance(self.master, str):
            raise ValueError(f"master is {self.master!r}; it must be a string such as 'grpc://host:2222' or ''")
        if isinstance(self.workers, Mapping):
            convert_to_workers(tuple(self.workers.values()))
        else:
            object.__setattr__(self, "workers", convert_to_workers(self.workers))
        if not isinstance(self.container, str) or not _CONTAINER.fullmatch(self.container):
            raise ValueError(
                f"container is {self.container!r}; use letters, digits, dots, dashes and slashes, beginning with a "
                "letter, digit or dot"
            )

    @property
    def wait_seconds(self) -> float:
        """Return the seconds of `wait_for_workers`, infinity if forever."""
        if isinstance(self.wait_for_workers, bool):
            return math.inf if self.wait_for_workers else 0.0
        return self.wait_for_workers

    def _set_intervals(self) -> None:
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps == _USE_DEFAULT:
            steps = None
            if secs == _USE_DEFAULT:
                secs = DEFAULT_SAVE_CHECKPOINTS_SECS
        elif secs == _USE_DEFAULT:
            secs = None
        if steps is not None and secs is not None:
            raise ValueError(
                f"save_checkpoints_steps is {steps!r} and save_checkpoints_secs is {secs!r}; give one of the two"
            )
        object.__setattr__(self, "save_checkpoints_steps", steps)
        object.__setattr__(self, "save_checkpoints_secs", secs)

    def replace(self, **changes: Any) -> "RunConfig":
        """Return a copy with some fields changed. A new checkpoint interval takes the place of the other kind.

        Raises:
          ValueError: an unknown field, or a value that is out of range.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"RunConfig has no field {name!r}; it has {', '.join(known)}")
        intervals = ("save_checkpoints_steps", "save_checkpoints_secs")
        if sum(changes.get(name) is not None for name in intervals) == 1:
            changes = {**dict.fromkeys(intervals), **changes}
        return dataclasses.replace(self, **changes)


def _directory(value: object) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ValueError(f"model_dir is {value!r}; it must be the path of a directory")
    return str(os.fspath(value))


@dataclasses.dataclass(frozen=True, eq=False)
class EstimatorSpec:
    """The result of a model_fn: the tensors and hooks of a model built for one mode.

    Args:
      mode: one of ModeKeys.
      predictions: a tensor, or a dict of tensors, with the examples of a batch along the first dimension.
      loss: scalar tensor; needed to train and evaluate.
      train_op: one training step, which also adds one to the global step; needed to train.
      eval_metric_ops: {name: (value, update operation)}, as tf.metrics gives them.
      export_outputs: accepted for the sake of existing programs; unused.
      training_chief_hooks: hooks of training. A tf.train.CheckpointSaverHook among the hooks takes the place of the
        Estimator's own.
      training_hooks: hooks of training.
      scaffold: tf.train.Scaffold, where the model has a saver or initialisers of its own.
      evaluation_hooks: hooks of evaluation.
      prediction_hooks: hooks of prediction.

    Raises:
      ValueError: a part that the mode needs is absent or malformed.
    """

    mode: str
    predictions: Tensors | None = None
    loss: tf.Tensor | None = None
    train_op: tf.Operation | tf.Tensor | None = None
    eval_metric_ops: Mapping[str, tuple[tf.Tensor, tf.Operation | tf.Tensor]] | None = None
    export_outputs: Mapping[str, object] | None = None
    training_chief_hooks: Hooks = ()
    training_hooks: Hooks = ()
    scaffold: tf.train.Scaffold | None = None
    evaluation_hooks: Hooks = ()
    prediction_hooks: Hooks = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"EstimatorSpec: mode is {self.mode!r}; it must be one of {', '.join(MODES)}")
        needs = {ModeKeys.TRAIN: ("loss", "train_op"), ModeKeys.EVAL: ("loss",), ModeKeys.PREDICT: ("predictions",)}
        for name in needs[self.mode]:
            if getattr(self, name) is None:
                raise ValueError(f"EstimatorSpec: {name} is None; mode {self.mode!r} needs it")
        self._check_loss()
        self._check_metrics()
        if self.scaffold is not None and not isinstance(self.scaffold, tf.train.Scaffold):
            raise ValueError(f"EstimatorSpec: scaffold is {self.scaffold!r}; it must be a tf.train.Scaffold or None")
        for name in ("training_chief_hooks", "training_hooks", "evaluation_hooks", "prediction_hooks"):
            object.__setattr__(self, name, _check_hooks(getattr(self, name), f"EstimatorSpec: {name}"))

    def _check_loss(self) -> None:
        if self.loss is None:
            return
        if not isinstance(self.loss, tf.Tensor):
            raise ValueError(
                f"EstimatorSpec: loss is {self.loss!r}; it must be a tf.Tensor: export an mtf.Tensor first"
            )
        if self.loss.shape.rank is not None and self.loss.shape.num_elements() not in (1, None):
            raise ValueError(f"EstimatorSpec: loss has shape {self.loss.shape}; it must be a scalar: reduce it first")
        if self.loss.shape.rank:
            object.__setattr__(self, "loss", tf.reshape(self.loss, []))

    def _check_metrics(self) -> None:
        for name, metric in (self.eval_metric_ops or {}).items():
            if name in ("loss", tf.GraphKeys.GLOBAL_STEP):
                raise ValueError(f"eval_metric_ops names {name!r}, which the Estimator itself reports; rename it")
            if not isinstance(metric, tuple) or len(metric) != 2:
                raise ValueError(
                    f"eval_metric_ops[{name!r}] is {metric!r}; it must be (value, update operation), as in tf.metrics"
                )


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """The training of `train_and_evaluate`: its input, and the last global step (None: to the end of the data)."""

    input_fn: Callable[..., object]
    max_steps: int | None = None
    hooks: Hooks = ()

    def __post_init__(self) -> None:
        _check_callable(self.input_fn, "TrainSpec: input_fn")
        check_number(self.max_steps, "TrainSpec: max_steps")
        object.__setattr__(self, "hooks", _check_hooks(self.hooks, "TrainSpec: hooks"))


@dataclasses.dataclass(frozen=True)
class EvalSpec:
    """The evaluation of `train_and_evaluate`, and its times.

    Args:
      input_fn: the evaluation input.
      steps: batches of one evaluation; None: to the end of the data.
      name: distinguishes several evaluations of one model: they are written to model_dir/eval_NAME.
      hooks: hooks of the evaluation.
      start_delay_secs: accepted for the sake of existing programs; a local run evaluates after a checkpoint.
      throttle_secs: least number of seconds between two evaluations during training.
    """

    input_fn: Callable[..., object]
    steps: int | None = 100
    name: str | None = None
    hooks: Hooks = ()
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        _check_callable(self.input_fn, "EvalSpec: input_fn")
        check_number(self.steps, "EvalSpec: steps")
        check_number(self.start_delay_secs, "EvalSpec: start_delay_secs", whole=False, zero=True, none=False)
        check_number(self.throttle_secs, "EvalSpec: throttle_secs", whole=False, zero=True, none=False)
        object.__setattr__(self, "hooks", _check_hooks(self.hooks, "EvalSpec: hooks"))

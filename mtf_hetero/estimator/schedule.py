"""Training with an evaluation after each checkpoint."""

import time
from typing import TYPE_CHECKING, Any

from mtf_hetero._compat import tf
from mtf_hetero.estimator.config import EvalSpec, TrainSpec

if TYPE_CHECKING:
    from mtf_hetero.estimator.estimator import Estimator

Metrics = dict[str, Any]  # numbers and arrays of an evaluation, by their names


class _EvaluateAfterSave(tf.train.SessionRunHook, tf.train.CheckpointSaverListener):
    """Evaluates each checkpoint that training saves, but not more often than the EvalSpec allows.

    As a listener it learns of the checkpoints, as a hook of the end of training: it leaves the last checkpoint to
    `train_and_evaluate`, which evaluates it when the training session has given its memory back.
    """

    def __init__(self, estimator: "Estimator", eval_spec: EvalSpec) -> None:
        self._estimator = estimator
        self._eval_spec = eval_spec
        self._evaluated_at = time.monotonic()
        self._training = False
        self.metrics: Metrics | None = None

    def begin(self) -> None:
        pass

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._training = True

    def after_save(self, session: tf.Session, global_step_value: int) -> None:
        waited = time.monotonic() - self._evaluated_at >= self._eval_spec.throttle_secs
        if self._training and waited:
            self.evaluate()

    def end(self, session: tf.Session, global_step_value: int | None = None) -> None:
        self._training = False

    def evaluate(self) -> Metrics:
        spec = self._eval_spec
        metrics = self._estimator.evaluate(spec.input_fn, steps=spec.steps, hooks=spec.hooks, name=spec.name)
        self.metrics = metrics
        self._evaluated_at = time.monotonic()
        return metrics


def train_and_evaluate(estimator: "Estimator", train_spec: TrainSpec, eval_spec: EvalSpec) -> tuple[Metrics, None]:
    """Trains, evaluates after each new checkpoint (at most once in eval_spec.throttle_secs), and evaluates the end.

    Args:
      estimator: what to train.
      train_spec: the training input and the step to train to.
      eval_spec: the evaluation input, and how often to evaluate.

    Returns:
      (the metrics of the last evaluation, None): tf.estimator's pair, whose second part is for exported models.

    Raises:
      ValueError: an argument of the wrong kind.
    """
    for value, kind in ((train_spec, TrainSpec), (eval_spec, EvalSpec)):
        if not isinstance(value, kind):
            raise ValueError(f"train_and_evaluate got {value!r} where it needs a {kind.__name__}")
    evaluator = _EvaluateAfterSave(estimator, eval_spec)
    estimator.train(
        train_spec.input_fn,
        hooks=[*train_spec.hooks, evaluator],
        max_steps=train_spec.max_steps,
        saving_listeners=[evaluator],
    )
    metrics, last_step = evaluator.metrics, estimator.get_variable_value(tf.GraphKeys.GLOBAL_STEP)
    if metrics is None or metrics[tf.GraphKeys.GLOBAL_STEP] != last_step:
        metrics = evaluator.evaluate()
    return metrics, None

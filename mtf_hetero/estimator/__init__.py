"""tf.estimator's interface over tf.train's monitored sessions, and the hooks of its training loop."""

from mtf_hetero.estimator.config import EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec
from mtf_hetero.estimator.estimator import Estimator
from mtf_hetero.estimator.schedule import train_and_evaluate

__all__ = ["Estimator", "EstimatorSpec", "EvalSpec", "ModeKeys", "RunConfig", "TrainSpec", "train_and_evaluate"]

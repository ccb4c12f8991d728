"""tf.estimator's interface over tf.train's monitored sessions, and the hooks of its training loop.

Example:
  >>> estimator = Estimator(model_fn, "model", RunConfig(save_checkpoints_steps=100))
  >>> estimator.train(input_fn, max_steps=1000)  # saves checkpoints, and resumes from the newest one
  >>> estimator.evaluate(input_fn, steps=10)["accuracy"]
  >>> list(estimator.predict(input_fn))
"""

from mtf_hetero.estimator.config import EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec
from mtf_hetero.estimator.estimator import Estimator
from mtf_hetero.estimator.schedule import train_and_evaluate
from mtf_hetero.estimator.training import Place
from mtf_hetero.training import Elastic, Event

__all__ = [
    "Elastic",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Event",
    "ModeKeys",
    "Place",
    "RunConfig",
    "TrainSpec",
    "train_and_evaluate",
]

"""Mesh-TensorFlow with uneven mesh layouts: each split dimension divided in proportion to what each device can do."""

from mtf_hetero._compat import mtf, tf
from mtf_hetero.estimator import (
    Estimator,
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    RunConfig,
    TrainSpec,
    train_and_evaluate,
)
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import Lowering
from mtf_hetero.mesh_impl import UnevenMeshImpl
from mtf_hetero.partition import split_by_share, split_by_time

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Layout",
    "Lowering",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "UnevenMeshImpl",
    "mtf",
    "split_by_share",
    "split_by_time",
    "tf",
    "train_and_evaluate",
]

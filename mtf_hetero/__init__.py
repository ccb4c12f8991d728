"""Mesh-TensorFlow with uneven mesh layouts: each split dimension divided in proportion to what each device can do.

A name is imported when it is first asked for, so that the programs of the package can read their flags, and the parts
that are pure arithmetic can be used, before TensorFlow is loaded or without it.
"""

import sys
from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero._compat import mtf, tf
    from mtf_hetero.cluster import session_config
    from mtf_hetero.estimator import (
        Estimator,
        EstimatorSpec,
        EvalSpec,
        ModeKeys,
        RunConfig,
        TrainSpec,
        train_and_evaluate,
    )
    from mtf_hetero.importer import function
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
    "function",
    "mtf",
    "session_config",
    "split_by_share",
    "split_by_time",
    "tf",
    "train_and_evaluate",
]

__version__ = "0.1.0"

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        **dict.fromkeys(__all__, "estimator"),
        "Layout": "layout",
        "Lowering": "lowering",
        "UnevenMeshImpl": "mesh_impl",
        "function": "importer",
        "mtf": "_compat",
        "session_config": "cluster",
        "split_by_share": "partition",
        "split_by_time": "partition",
        "tf": "_compat",
    },
)

# Whoever writes `import mtf_hetero` may go on with `import mesh_tensorflow as mtf`, which does not import by itself
sys.meta_path.insert(0, lazy.ImportedBy("mesh_tensorflow", "mtf_hetero._compat"))
_MOVED = {
    "mtf_hetero.checkpoints": "mtf_hetero.saver",
    "mtf_hetero.hooks": "mtf_hetero.estimator.hooks",
    "mtf_hetero.random_numbers": "mtf_hetero.variables.random_numbers",
}
sys.meta_path.append(lazy.Moved(_MOVED))

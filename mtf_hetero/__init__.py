"""Mesh-TensorFlow with uneven mesh layouts: each split dimension divided in proportion to what each device can do.

A name is imported when it is first asked for, so that the programs of the package can read their flags, and the parts
that are pure arithmetic can be used, before TensorFlow is loaded or without it.
"""

import sys
from typing import TYPE_CHECKING

from mtf_hetero._support import lazy, stand_ins, start_up

if TYPE_CHECKING:
    from mtf_hetero._compat import mtf, tf
    from mtf_hetero.cluster import session_config
    from mtf_hetero.data.batches import batches
    from mtf_hetero.estimator import (
        Estimator,
        EstimatorSpec,
        EvalSpec,
        ModeKeys,
        RunConfig,
        TrainSpec,
        train_and_evaluate,
    )
    from mtf_hetero.importer import StepDiffersError, function, verify
    from mtf_hetero.keras.planned import plan
    from mtf_hetero.layout import Layout, split_by_share, split_by_time
    from mtf_hetero.lowering import Lowering
    from mtf_hetero.mesh import UnevenMeshImpl

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Layout",
    "Lowering",
    "ModeKeys",
    "RunConfig",
    "StepDiffersError",
    "TrainSpec",
    "UnevenMeshImpl",
    "batches",
    "function",
    "mtf",
    "plan",
    "session_config",
    "split_by_share",
    "split_by_time",
    "tf",
    "train_and_evaluate",
    "verify",
]

__version__ = "1.0.0rc1"

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        **dict.fromkeys(__all__, "estimator"),
        "Layout": "layout",
        "Lowering": "lowering",
        "StepDiffersError": "importer",
        "UnevenMeshImpl": "mesh",
        "batches": "data.batches",
        "function": "importer",
        "mtf": "_compat",
        "plan": "keras.planned",
        "session_config": "cluster",
        "split_by_share": "layout",
        "split_by_time": "layout",
        "tf": "_compat",
        "verify": "importer",
    },
)

sys.meta_path.insert(0, stand_ins.within("tensorflow", start_up.importing_tensorflow))
# Whoever writes `import mtf_hetero` may go on with `import mesh_tensorflow as mtf`, which does not import by itself
sys.meta_path.insert(0, lazy.ImportedBy("mesh_tensorflow", "mtf_hetero._compat"))
_MOVED = {  # name before: name now
    "mtf_hetero.checkpoints": "mtf_hetero.checkpoint",
    "mtf_hetero.collectives": "mtf_hetero.mesh.collectives",
    "mtf_hetero.cost.traffic": "mtf_hetero.mesh.traffic",
    "mtf_hetero.estimator.elastic": "mtf_hetero.training.elastic",
    "mtf_hetero.estimator.load": "mtf_hetero.training.load",
    "mtf_hetero.estimator.rebalance_hook": "mtf_hetero.training.rebalancing",
    "mtf_hetero.hooks": "mtf_hetero.estimator.hooks",
    "mtf_hetero.lowering.backend": "mtf_hetero.ops.backend",
    "mtf_hetero.lowering.registry": "mtf_hetero.ops.registry",
    "mtf_hetero.memory": "mtf_hetero.cost.memory",
    "mtf_hetero.mesh_impl": "mtf_hetero.mesh.mesh_impl",
    "mtf_hetero.partition": "mtf_hetero.layout.partition",
    "mtf_hetero.random_numbers": "mtf_hetero.mesh.random_numbers",
    "mtf_hetero.saver": "mtf_hetero.checkpoint",
    "mtf_hetero.trace": "mtf_hetero.cost.trace",
    "mtf_hetero.traffic": "mtf_hetero.mesh.traffic",
    "mtf_hetero.variables": "mtf_hetero.mesh",
}
sys.meta_path.append(lazy.Moved(_MOVED))

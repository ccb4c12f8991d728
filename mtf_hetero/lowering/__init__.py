"""Lowering of an mtf graph whose slices need not be equal: `Lowering`, and a rule per operation that needs one.

Example:
  >>> lowering = Lowering(graph, {mesh: mesh_impl})  # as mtf.Lowering, with an UnevenMeshImpl
  >>> train = tf.group([lowering.lowered_operation(op) for op in updates])
  >>> loss_value, _ = session.run([lowering.export_to_tf_tensor(loss), train])
"""

# Importing these modules registers their rules
from mtf_hetero.lowering import (  # noqa: F401
    batch_norm,
    conv,
    draws,
    local,
    lookup,
    loop,
    pool,
    reshape,
    rounds,
    shuffle,
    slices,
    sums,
    windows,
)
from mtf_hetero.lowering.lowering import Lowering

__all__ = ["Lowering"]

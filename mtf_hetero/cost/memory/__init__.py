"""Memory of a training step on each device: estimated before it runs, and measured.

There is one estimator. `executor` simulates the order in which TensorFlow runs operations, and `liveness` counts the
bytes that are alive. Two readers give them their operations: `graph` reads a lowered graph, `footprint` the operations
of mtf, for a search that compares thousands of layouts and can lower none of them.

Example:
  >>> lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
  >>> train = tf.group([lowering.lowered_operation(op) for op in updates])
  >>> print(memory.table(memory.estimate(lowering, [train])))
"""

from mtf_hetero.cost.memory.estimation import Estimate, estimate, estimate_layout, table
from mtf_hetero.cost.memory.measurement import ProcessPeaks

__all__ = ["Estimate", "ProcessPeaks", "estimate", "estimate_layout", "table"]

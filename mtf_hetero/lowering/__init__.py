"""Lowering of an mtf graph whose slices need not be equal: `Lowering`, and what only TensorFlow can carry out.

Example:
  >>> lowering = Lowering(graph, {mesh: mesh_impl})  # as mtf.Lowering, with an UnevenMeshImpl
  >>> train = tf.group([lowering.lowered_operation(op) for op in updates])
  >>> loss_value, _ = session.run([lowering.export_to_tf_tensor(loss), train])
"""

from mtf_hetero.lowering import draws, local, loop  # noqa: F401 - they register their rules
from mtf_hetero.lowering.lowering import Lowering

__all__ = ["Lowering"]

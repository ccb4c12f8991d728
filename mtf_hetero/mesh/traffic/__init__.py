r"""Messages of a step between devices: counted in the lowered graph, read from a trace, and made fewer.

TensorFlow sends a tensor if an operation on one device reads an operation on another, once to each such device.
`sends` finds these tensors in a graph, and runs nothing. `received` reads them from a trace. `arrange` sends small
tensors together (`fuse`), and first those for which others wait (`prioritize`), and has the slots of a device compute
one after another (`take_turns`).

Example:
  >>> expected = traffic.links(traffic.sends([loss, train_op], graph=lowering.graph))
  >>> session.run([loss, train_op], options=trace.run_options(), run_metadata=metadata)
  >>> print(traffic.table(expected), traffic.table(traffic.received(metadata)), sep="\n")
"""

from mtf_hetero.mesh.traffic.counting import (
    CHIEF,
    Link,
    Send,
    find_operation,
    links,
    received,
    sends,
    table,
)
from mtf_hetero.mesh.traffic.fusing import BUCKET_BYTES, fuse
from mtf_hetero.mesh.traffic.ordering import arrange, prioritize
from mtf_hetero.mesh.traffic.turns import take_turns

__all__ = [
    "BUCKET_BYTES",
    "CHIEF",
    "Link",
    "Send",
    "arrange",
    "find_operation",
    "fuse",
    "links",
    "prioritize",
    "received",
    "sends",
    "table",
    "take_turns",
]

r"""What a step sends from device to device: counted in the lowered graph, read from the trace of a step, made fewer.

TensorFlow sends a tensor where an operation on one device reads an operation on another, once to each device that
reads it. `sends` finds these tensors in a graph, and runs nothing. `received` reads from the trace of a step what was
sent in fact. `arrange` has small tensors travel together (`fuse`) and what others wait for come first
(`prioritize`).

Example:
  >>> expected = traffic.links(traffic.sends([loss, train_op], graph=lowering.graph))
  >>> session.run([loss, train_op], options=trace.run_options(), run_metadata=metadata)
  >>> print(traffic.table(expected), traffic.table(traffic.received(metadata)), sep="\n")
"""

from mtf_hetero.traffic.counting import (
    CHIEF,
    Link,
    Send,
    allreduce_bytes,
    find_operation,
    links,
    received,
    sends,
    table,
)
from mtf_hetero.traffic.fusing import BUCKET_BYTES, fuse
from mtf_hetero.traffic.ordering import arrange, prioritize

__all__ = [
    "BUCKET_BYTES",
    "CHIEF",
    "Link",
    "Send",
    "allreduce_bytes",
    "arrange",
    "find_operation",
    "fuse",
    "links",
    "prioritize",
    "received",
    "sends",
    "table",
]

"""Records operations as they are, for islands: on tensors of any shapes, and on lists; conditions and loops too.

Nothing is divided, computed or unrolled here. Variables are followed as everywhere: a read is the last value written.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero.importer import control, formulas, streams, variables
from mtf_hetero.importer.nodes import constant_array, is_stateful
from mtf_hetero.importer.program import Meaning, Value, literal
from mtf_hetero.importer.reader import Reader

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph


def record(reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: list[Meaning]) -> Sequence[Meaning]:
    """Record an operation; returns what its results mean."""
    kind = node.type
    assert reader.refused is not None
    if kind == "Const":
        return [literal(constant_array(node), node.outputs[0].dtype)]
    if kind in facts.RENAMING and kind != "EnsureShape":
        return inputs
    if (follow := control.control_rule(graph, kind)) is not None:
        return follow(reader, graph, node, inputs)
    if kind in formulas.STREAMS and (drawn := streams.draw(reader, node, inputs)) is not None:
        return drawn
    if any(isinstance(x, int) for x in inputs):
        return variables.follow(reader, node, inputs)
    if not node.outputs:  # it prints or checks something
        reader.program.effects.append(node)
        return []
    if is_stateful(node) or not all(isinstance(x, Value) and x.elements is None for x in inputs):
        raise reader.refused
    op = reader.operation(node, inputs)
    reader.append(op)
    return op.outputs

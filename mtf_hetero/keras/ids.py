"""Says in one line which id an Embedding does not have."""

import contextlib
import re
from collections.abc import Iterator

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import graphs
from mtf_hetero.layers import LookupOperation

_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
# As TensorFlow's gather says it, and as our own check of a table that is split
_WRONG = re.compile(r"(?:= |\[id\] \[)(-?\d+)\]? \[?is not in \[0, (\d+)\)")


@contextlib.contextmanager
def wrong_id_is_said(graph: mtf.Graph) -> Iterator[None]:
    """Says which layer has no row for an id, where that is why a step of a graph fails.

    Raises:
      ValueError: with the id, the layer, and what to do.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        line = _line(str(error.message), graph)
        if line is None:
            raise
        raise ValueError(line) from None  # TensorFlow's message is of a hundred lines


def _line(message: str, graph: mtf.Graph) -> str | None:
    node, wrong = _NODE.search(message), _WRONG.search(message)
    if node is None or wrong is None:
        return None
    for op in graph.operations:  # a graph that is lowered after another has numbers at the ends of its scopes
        if isinstance(op, LookupOperation) and re.match(rf"{re.escape(op.name)}(_\d+)?/", node[1]):
            found, size = int(wrong[1]), op.rows.size
            given, least = (found - size, -size) if found < 0 else (found, 0)  # a negative one counts from the end
            table = graphs.variable_of(op.inputs[0])
            layer = op.name if table is None else table.name.rpartition("/")[0]
            return (
                f"id {given} is not in [{least}, {size}) of layer {layer!r}; give ids below its input_dim, or make "
                "that larger"
            )
    return None

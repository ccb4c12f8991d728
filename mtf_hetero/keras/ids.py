"""Errors of one line for ids that an Embedding does not have."""

import contextlib
import re
from collections.abc import Iterator

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import graphs
from mtf_hetero.layers import LookupOperation

_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
# In the message of TensorFlow's gather, or in that of LookupOperation.check
_WRONG = re.compile(r"(?:= |\[id\] \[)(-?\d+)\]? \[?is not in \[0, (\d+)\)")


@contextlib.contextmanager
def explain_wrong_id(graph: mtf.Graph) -> Iterator[None]:
    """Turn TensorFlow's error about a wrong id into one line.

    Args:
      graph: mtf.Graph of the step that runs in this context.

    Raises:
      ValueError: a layer has no row for an id.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        line = _line(str(error.message), graph)
        if line is None:
            raise
        raise ValueError(line) from None  # TensorFlow's message has a hundred lines


def _line(message: str, graph: mtf.Graph) -> str | None:
    node, wrong = _NODE.search(message), _WRONG.search(message)
    if node is None or wrong is None:
        return None
    for op in graph.operations:  # the scopes of a second lowering end in numbers
        if isinstance(op, LookupOperation) and re.match(rf"{re.escape(op.name)}(_\d+)?/", node[1]):
            found, size = int(wrong[1]), op.rows.size
            given, least = (found - size, -size) if found < 0 else (found, 0)  # a negative one counts from the end
            table = graphs.variable_of(op.inputs[0])
            layer = op.name if table is None else table.name.rpartition("/")[0]
            return (
                f"id {given} is not in [{least}, {size}) of layer {layer!r}; give ids below its input_dim, or "
                "increase that"
            )
    return None

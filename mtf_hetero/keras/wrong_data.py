"""Errors of one line for ids that an Embedding does not have, and labels that the output does not have."""

import contextlib
import re
from collections.abc import Iterator

from mtf_hetero._compat import mtf, tf
from mtf_hetero.graph.walk import underlying_variable
from mtf_hetero.layers import LookupOperation

_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
# In the message of TensorFlow's gather, or in that of LookupOperation.check
_WRONG_ID = re.compile(r"(?:= |\[id\] \[)(-?\d+)\]? \[?is not in \[0, (\d+)\)")

_WRONG_LABEL = re.compile(r"Received a label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


@contextlib.contextmanager
def explain_wrong_data(graph: mtf.Graph) -> Iterator[None]:
    """Turn TensorFlow's error about a wrong id or label into one line.

    Raises:
      ValueError: a layer has no row for an id, or the output no class for a label.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        line = _label(str(error.message)) or _id(str(error.message), graph)
        if line is None:
            raise
        raise ValueError(line) from None  # TensorFlow's message has a hundred lines


def _label(message: str) -> str | None:
    wrong = _WRONG_LABEL.search(message)
    if wrong is None:
        return None
    return (
        f"a label is {wrong[1]}, but the model has the classes 0 to {int(wrong[2]) - 1}; correct the labels, "
        "or give the last layer more units"
    )


def _id(message: str, graph: mtf.Graph) -> str | None:
    node, wrong = _NODE.search(message), _WRONG_ID.search(message)
    if node is None or wrong is None:
        return None
    for op in graph.operations:  # the scopes of a second lowering end in numbers
        if isinstance(op, LookupOperation) and re.match(rf"{re.escape(op.name)}(_\d+)?/", node[1]):
            found, size = int(wrong[1]), op.rows.size
            given, least = (found - size, -size) if found < 0 else (found, 0)  # a negative one counts from the end
            table = underlying_variable(op.inputs[0])
            layer = op.name if table is None else table.name.rpartition("/")[0]
            return (
                f"id {given} is not in [{least}, {size}) of layer {layer!r}; give ids below its input_dim, or "
                "increase input_dim"
            )
    return None

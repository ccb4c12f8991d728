"""Operations of a traced graph: their attributes, which TensorFlow parses anew each time, and the user's lines."""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, functions
from mtf_hetero._support.ops import graph_cache

if TYPE_CHECKING:
    from mtf_hetero._compat import OpDef

OPEN_SHAPE = "gives a tensor whose shape depends on the data; give it a fixed shape, by a sum or tf.ensure_shape"
STRINGS = "works on strings, which no device divides; do it where the data are prepared"
_DEFINITIONS: dict[str, "OpDef"] = {}  # by type


def node_attributes(node: tf.Operation) -> Mapping[str, tf.AttrValue]:
    """Return the attributes that the type of a tf.Operation has. Its graph is read for several kinds of inputs."""
    made = graph_cache(node.graph, "attributes")
    if node.name not in made:
        names = {a.name for a in definition(node).attr}
        made[node.name] = {name: proto for name, proto in node.node_def.attr.items() if name in names}
    return made[node.name]


def constant_array(node: tf.Operation) -> np.ndarray:
    """Return the elements of a tf.Operation that is a constant."""
    made = graph_cache(node.graph, "arrays")
    if node.name not in made:
        made[node.name] = tf.make_ndarray(node.get_attr("value"))
    return made[node.name]


def definition(node: tf.Operation) -> "OpDef":
    """Return the OpDef of a tf.Operation, which TensorFlow parses anew each time that it is asked for it."""
    if node.type not in _DEFINITIONS:
        _DEFINITIONS[node.type] = node.op_def
    return _DEFINITIONS[node.type]


def is_stateful(node: tf.Operation) -> bool:
    """Return whether two runs of a tf.Operation may give different results."""
    return definition(node).is_stateful and node.type not in facts.CHECKS


class RefusedError(NotImplementedError):
    """An error that names a tf.Operation and the user's line.

    Args:
      node: the operation.
      why: it is refused.
    """

    def __init__(self, node: tf.Operation, why: str) -> None:
        self.node = node
        super().__init__(f"operation {node.type} {node.name!r} ({user_line(node)}) {why}")


def user_line(node: tf.Operation | None) -> str:
    """Return the user's line that made a tf.Operation; the operation's name if none did."""
    if node is None:
        return ""
    for frame in reversed(list(node.traceback or ())):
        path = pathlib.Path(frame.filename)
        if not functions.is_of_library(path):
            return f"{path.name}:{frame.lineno}"
    return node.name


def known_shape(name: str, shape: tf.TensorShape) -> tuple[int, ...]:
    """Return the sizes of what is fed, or of a variable.

    Raises:
      ValueError: they are not known.
    """
    if not shape.is_fully_defined():
        raise ValueError(f"{name} has the shape {shape}; give examples whose shapes are known")
    return tuple(shape.as_list())

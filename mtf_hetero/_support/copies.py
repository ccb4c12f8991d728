"""Copies of a step's operations in its graph, for several steps in one call of a session."""

import functools
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import facts


class Copier:
    """Copies operations in their graph, any number of times. Copies read each other as the operations do.

    Args:
      operations: of the default graph, in their order there.
    """

    def __init__(self, operations: Sequence[tf.Operation]) -> None:
        self._operations = operations

    def copy(self, name: str, given: Mapping[str, tf.Tensor] | None = None) -> dict[str, tf.Operation]:
        """Make copies; returns {name of an operation: its copy}.

        Args:
          name: of their scope.
          given: {name of a tensor of another operation: the one that the copies read in its place}.
        """
        graph, given = tf.get_default_graph(), given or {}
        outside: dict[str, tf.Tensor | tf.Operation] = {}
        for read in {read for node in self._definition.node for read in node.input} - self._within:
            full = read if ":" in read or read.startswith("^") else f"{read}:0"
            outside[full] = given[full] if full in given else graph.as_graph_element(full.removeprefix("^"))
        for node in self._definition.node:
            if node.op in facts.GRAPH_LOOPS:  # two loops of one name would be one
                node.attr["frame_name"].s += b"'"
        own = [op.name for op in self._operations]
        made = tf.import_graph_def(self._definition, outside, own, name=name)
        return dict(zip(own, made, strict=True))

    @functools.cached_property
    def _definition(self) -> tf.GraphDef:
        nodes = []
        for op in self._operations:
            node = op.node_def
            node.attr.pop("_class", None)  # each operation has a device
            if op.type == "MapUnstage":  # which does not tell the shapes
                shapes = tf.AttrValue.ListValue(shape=[x.shape.as_proto() for x in op.outputs])
                node.attr["_output_shapes"].CopyFrom(tf.AttrValue(list=shapes))
            nodes.append(node)
        return tf.GraphDef(node=nodes, versions=tf.get_default_graph().graph_def_versions)

    @functools.cached_property
    def _within(self) -> set[str]:
        """The names under which the operations read each other."""
        tensors = {f"{op.name}:{n}" for op in self._operations for n in range(len(op.outputs))}
        return tensors.union(*((op.name, f"^{op.name}") for op in self._operations))


def make_gate(device: str, operations: Iterable[tf.Operation]) -> tf.Operation:
    """Return an operation of a device that waits for others."""
    with tf.device(device):
        gate = tf.no_op()
    # tf.control_dependencies would set an attribute of operations that a session has run
    gate._add_control_inputs(list(operations))
    return gate

"""Shapes of a traced graph whose inputs have open sizes, for inputs of known sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

from mtf_hetero._compat import copy_handle_data, tf


def with_inputs(graph: Any, shapes: Sequence[Any]) -> Mapping[int, tf.TensorShape]:
    """Return {id of a tensor: its shape}, of tensors whose shapes the graph leaves open; TensorFlow infers them.

    Args:
      graph: a FuncGraph.
      shapes: of its first inputs; the others are captured.
    """
    if all(tensor.shape.is_fully_defined() for tensor in graph.inputs):
        return {}
    given: dict[str, tf.Tensor] = {}
    with tf.Graph().as_default() as copy:
        for number, tensor in enumerate(graph.inputs):
            shape = shapes[number] if number < len(shapes) else tensor.shape
            given[tensor.name] = tf.placeholder(tensor.dtype, shape)
            if tensor.dtype == tf.resource:
                copy_handle_data(tensor, given[tensor.name])
        tf.import_graph_def(graph.as_graph_def(), given, name="copy")
    found = {id(tensor): given[tensor.name].shape for tensor in graph.inputs}
    for op in graph.get_operations():
        for tensor in op.outputs:
            if id(tensor) not in found and not tensor.shape.is_fully_defined():
                found[id(tensor)] = copy.get_tensor_by_name(f"copy/{tensor.name}").shape
    return found

"""Reads and writes of variables: a read is the last value written, a write of a part is a new value of the whole."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute
from mtf_hetero.importer import formulas
from mtf_hetero.importer.program import Operation, Value, known, refusal, synthetic

_ADDITIONS = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
_SUMS = {"ResourceScatterAdd": "AddV2", "ResourceScatterSub": "Sub"}
_SCATTERS = {
    "ResourceScatterAdd": "TensorScatterAdd",
    "ResourceScatterSub": "TensorScatterSub",
    "ResourceScatterUpdate": "TensorScatterUpdate",
    "ResourceScatterMax": "TensorScatterMax",
    "ResourceScatterMin": "TensorScatterMin",
    "ResourceScatterNdAdd": "TensorScatterAdd",
    "ResourceScatterNdSub": "TensorScatterSub",
    "ResourceScatterNdUpdate": "TensorScatterUpdate",
}
_REMEDY = "use assign, assign_add or assign_sub"
_REMEDIES = {"ResourceSparse": "give the optimizer tf.convert_to_tensor(gradient)"}  # updates of rows by tf.compat.v1
_ANSWERS: dict[str, Callable[[Value, tf.DType], Value]] = {
    "ReadVariableOp": lambda current, dtype: current,
    "VariableShape": lambda current, dtype: known(current.shape, dtype),
    "VarIsInitializedOp": lambda current, dtype: known(np.array(True), dtype),
}
_PARTS = {"AssignVariableOp", "ResourceGather", "ResourceGatherNd", "ResourceStridedSliceAssign"}
KINDS = {*_ANSWERS, *_ADDITIONS, *_SCATTERS, *_PARTS}  # of operations of variables that are followed
Add = Callable[[Operation], list[Value]]


def follow(node: Any, inputs: Sequence[Any], now: list[Value], add: Add) -> list[Value]:
    """Follow an operation of a variable.

    Args:
      node: the tf.Operation.
      inputs: the number of the variable, and values.
      now: the value of each variable at this point, which a write changes.
      add: adds an operation on values to the program, and returns what it gives.

    Raises:
      NotImplementedError: the operation is not followed, by name and the user's line.
    """
    kind, (number, *values) = node.type, inputs
    current = now[number]
    if kind in _ANSWERS:
        return [_ANSWERS[kind](current, node.outputs[0].dtype)]
    if kind in formulas.UPDATES:
        formulas.follow_update(node, inputs, now, add)
        return []
    if kind == "AssignVariableOp":
        now[number] = values[0]
    elif kind in _ADDITIONS:
        (now[number],) = add(synthetic(_ADDITIONS[kind], [current, values[0]], [current.shape], node.name))
    elif kind == "ResourceGather":
        return add(_gather(node, current, values[0]))
    elif kind == "ResourceGatherNd":
        return add(_replaced(node, "GatherNd", [current, values[0]], ("Tindices",), "Tparams"))
    elif kind in _SCATTERS:
        (now[number],) = add(_scatter(node, add, current, *values))
    elif kind == "ResourceStridedSliceAssign":
        *corners, value = values
        names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask", "Index")
        op = _replaced(node, "TensorStridedSliceUpdate", [current, *corners, value], names, "T")
        (now[number],) = add(op)
    else:
        raise refusal(node, f"of a variable is not followed; {_REMEDIES.get(kind[:14], _REMEDY)}")
    return []


def _replaced(node: Any, kind: str, inputs: list[Value], names: Sequence[str], of_type: str) -> Operation:
    """Return an operation with some attributes of another; its result is like its first input or the node's."""
    attributes = {name: node.node_def.attr[name] for name in names}
    attributes[of_type] = attribute(inputs[0].dtype)
    shape = node.outputs[0].shape.as_list() if node.outputs else inputs[0].shape
    return Operation(kind, inputs, [Value(tuple(shape), inputs[0].dtype, name=node.name)], attributes)


def _gather(node: Any, table: Value, ids: Value) -> Operation:
    batch = node.get_attr("batch_dims")
    attributes = {
        "Tparams": attribute(table.dtype),
        "Tindices": attribute(ids.dtype),
        "Taxis": attribute(tf.int32),
        "batch_dims": attribute(batch),
    }
    shape = (*ids.shape, *table.shape[batch + 1 :])
    return Operation("GatherV2", [table, ids, known(batch)], [Value(shape, table.dtype, name=node.name)], attributes)


def _scatter(node: Any, add: Add, current: Value, indices: Value, updates: Value) -> Operation:
    if node.type in _SUMS and updates.shape:  # examples give addends of the sums of rows
        rows = synthetic(
            "UnsortedSegmentSum",
            [updates, indices, known(current.shape[0])],
            [current.shape],
            node.name,
            Tindices=indices.dtype,
            Tnumsegments=tf.int32,
        )
        return synthetic(_SUMS[node.type], [current, *add(rows)], [current.shape], node.name)
    if "Nd" not in node.type:  # its indices name rows, and have no last axis of their own
        shape = (*indices.shape, 1)
        column = synthetic("ExpandDims", [indices, known(-1)], [shape], node.name, Tdim=tf.int32)
        (indices,) = add(column)
    attributes = {"T": attribute(current.dtype), "Tindices": attribute(indices.dtype)}
    result = Value(current.shape, current.dtype, name=node.name)
    return Operation(_SCATTERS[node.type], [current, indices, updates], [result], attributes)


def variable_of(handle: Any) -> Any:
    """Return the tf.Variable of a captured handle; None if the tensor is anything else.

    A function that gives operations the handle alone, as tf_keras's optimizers do, does not know its variables.
    """
    owner = getattr(handle, "_parent_trackable", lambda: None)()
    return owner if isinstance(owner, tf.compat.v2.Variable) else None

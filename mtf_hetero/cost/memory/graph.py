"""Read a lowered graph: its operations as `liveness.Node`s, and its variables."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import facts, graphs, slicing
from mtf_hetero.cluster.devices import Device, complete
from mtf_hetero.cost.memory.liveness import Node, Output, Variable

WEIGHTS, OPTIMIZER, GRADIENTS, ACTIVATIONS = "weights", "optimizer", "gradients", "activations"

# About the rates of a core: they only decide which of two operations that run side by side ends first
_FLOPS_PER_SECOND = 5e10
_BYTES_PER_SECOND = 5e9
_ALIGNMENT = 64  # bytes: TensorFlow shares a slice of a tensor only where it begins and ends on such a boundary

_ACCESS = {**dict.fromkeys(facts.VARIABLE_WRITES, "update"), "AssignVariableOp": "assign", "ReadVariableOp": "read"}


def size_bytes(tensor: tf.Tensor) -> int:
    """Return the size of a tensor; 0 of a handle, of strings, and of an unknown shape that nothing reads.

    Raises:
      ValueError: its shape is not known.
    """
    dtype = tensor.dtype.base_dtype
    if dtype in (tf.resource, tf.variant, tf.string):
        return 0
    elements = tensor.shape.num_elements()
    if elements is None and not tensor.consumers():  # as what a fused batch norm keeps for cuDNN
        return 0
    if elements is None:
        raise ValueError(
            f"tensor {tensor.name!r} has the shape {tensor.shape}, whose size is unknown; give the input a fixed "
            "batch size"
        )
    return elements * dtype.size


def _static(tensor: tf.Tensor) -> np.ndarray | None:
    return tf.get_static_value(tensor)


def _is_aligned(x: tf.Tensor, begin: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether TensorFlow shares this box of a tensor: cut along the first dimension alone, and aligned there."""
    shape = x.shape.as_list()
    if not shape or list(size[1:]) != shape[1:]:
        return False
    row = math.prod(shape[1:]) * x.dtype.size
    return all(row * edge % _ALIGNMENT == 0 for edge in (begin[0], begin[0] + size[0]))


def _shares_slice(op: tf.Operation) -> bool:
    x, out = op.inputs[0], op.outputs[0].shape.as_list()
    known = [_static(tensor) for tensor in op.inputs[1:]]
    if op.type == "Slice":
        return x.shape.as_list() == out or (known[0] is not None and _is_aligned(x, [*map(int, known[0])], out))
    corners = [list(corner) for corner in known if corner is not None]
    if len(corners) < 3:
        return False
    ranges = slicing.list_ranges(x.shape.as_list(), corners, {name: op.get_attr(name) for name in slicing.MASKS})
    if any(each.is_new or not each.is_kept for each in ranges):
        return False
    is_full = all(each.is_full for each in ranges)
    return is_full or (ranges[0].step == 1 and _is_aligned(x, [each.begin for each in ranges], out))


def _shares_parts(op: tf.Operation) -> bool:
    """Return whether all parts of a split or an unstack are shared."""
    if len(op.outputs) == 1:
        return True
    x = op.inputs[1 if op.type == "Split" else 0]
    axis = op.get_attr("axis") if op.type == "Unpack" else _static(op.inputs[0 if op.type == "Split" else 2])
    return axis == 0 and math.prod(x.shape.as_list()[1:]) * x.dtype.size % _ALIGNMENT == 0


def _shares_transpose(op: tf.Operation) -> bool:
    permutation, shape = _static(op.inputs[1]), op.inputs[0].shape.as_list()
    if permutation is None:
        return False
    moved = [int(axis) for axis in permutation if shape[int(axis)] > 1]
    return moved == sorted(moved)


def _alias(op: tf.Operation, number: int) -> int | None:
    """Return the input whose buffer an output shares, if any."""
    if op.type in facts.ALIASES:
        return number if op.type == "IdentityN" else 0
    shared = {
        "BroadcastTo": lambda: op.inputs[0].shape.as_list() == op.outputs[0].shape.as_list(),
        "Slice": lambda: _shares_slice(op),
        "Split": lambda: _shares_parts(op),
        "SplitV": lambda: _shares_parts(op),
        "StridedSlice": lambda: _shares_slice(op),
        "Transpose": lambda: _shares_transpose(op),
        "Unpack": lambda: _shares_parts(op),
    }.get(op.type)
    if shared is None or not shared():
        return None
    return 1 if op.type == "Split" else 0


def _output(op: tf.Operation, number: int) -> Output:
    tensor = op.outputs[number]
    forwards: tuple[int, ...] = ()
    if op.type in facts.FORWARDING:
        forwards = tuple(
            position
            for position, x in enumerate(op.inputs)
            if x.dtype == tensor.dtype and x.shape.as_list() == tensor.shape.as_list()
        )
    return Output(size_bytes(tensor), _alias(op, number), forwards, permanent=op.type == "Const")


def _seconds(op: tf.Operation) -> float:
    """Return about how long an operation takes."""
    if op.type in facts.ALIASES or op.type in _ACCESS or op.type == "Const":
        return 0.0
    seconds = sum(map(size_bytes, [*op.inputs, *op.outputs])) / _BYTES_PER_SECOND
    if op.type in facts.CONVOLUTIONS:
        kernel = op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]
        windows = op.inputs[2] if "Backprop" in op.type else op.outputs[0]
        flops = 2 * windows.shape.num_elements() * kernel.shape.num_elements() / kernel.shape.as_list()[-1]
        seconds += flops / _FLOPS_PER_SECOND
    elif op.type in facts.PRODUCTS:  # (m x k) (k x n) = (m x n)
        elements = [x.shape.num_elements() for x in (*op.inputs[:2], op.outputs[0])]
        seconds += 2 * math.sqrt(math.prod(elements)) / _FLOPS_PER_SECOND
    return seconds


def _scratch_bytes(op: tf.Operation) -> int:
    """Return the bytes that an operation needs beside its outputs while it runs: transposed copies of an Einsum.

    An Einsum is a matrix product of the kept labels and the summed ones. An operand of any other order of
    labels is copied, and so is a product whose labels are wanted in another order.
    """
    if op.type != "Einsum" or len(op.inputs) != 2:
        return 0
    operands, _, output = op.get_attr("equation").decode().partition("->")
    left, right = operands.split(",")
    batch = [label for label in left if label in right and label in output]
    scratch = 0
    for tensor, labels, other in zip(op.inputs, (left, right), (right, left), strict=True):
        kept = [label for label in labels if label in output and label not in batch]
        summed = [label for label in other if label in labels and label not in output]
        if list(labels) not in ([*batch, *kept, *summed], [*batch, *summed, *kept]):
            scratch += size_bytes(tensor)
    product = [*batch, *(label for part in (left, right) for label in part if label in output and label not in batch)]
    return scratch + (size_bytes(op.outputs[0]) if list(output) != product else 0)


def _find_variable(op: tf.Operation) -> str | None:
    """Return the name of the variable that an operation reads or changes."""
    if op.type not in _ACCESS:
        return None
    handle = op.inputs[0].op
    while handle.type != "VarHandleOp" and handle.inputs:
        handle = handle.inputs[0].op
    return handle.name


def _device(op: tf.Operation) -> str:
    """Return the device of an operation, or of the one with which it is colocated."""
    if op.device:
        return op.device
    for group in op.colocation_groups():
        name = group.decode().removeprefix("loc:@")
        if name != op.name:
            return op.graph.get_operation_by_name(name).device
    return ""


class Places:
    """The devices of a run, under one name each.

    Args:
      devices: of the mesh, as their user names them.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._training = complete(["", *devices])[""]
        self._names = {self._complete(device): device for device in devices}

    def _complete(self, device: str) -> Device:
        return Device.parse(device or "").within(self._training)

    def name(self, device: str) -> str:
        """Return the name of a device; an empty one stands for the CPU of the training process."""
        completed = self._complete(device)
        if completed in self._names:
            return self._names[completed]
        return completed.short_name if completed.process == self._training.process else completed.name

    def process(self, device: str) -> str:
        """Return the process that a device belongs to."""
        return self._complete(device).process

    def is_cpu(self, device: str) -> bool:
        """Return whether a device is a CPU."""
        return self._complete(device).is_cpu

    def memory(self, device: str) -> str:
        """Return the memory of a device: the CPUs of a process share one."""
        return self.process(device) if self.is_cpu(device) else self.name(device)


def variables(lowering: mtf.Lowering, graph: tf.Graph, places: Places) -> dict[str, Variable]:
    """Return {name: Variable} of a tf.Graph: those that the mtf graph trains are weights."""
    trainable = {variable.name: variable.trainable for variable in lowering.graph.all_variables}
    with graph.as_default():
        of_graph = [*tf.global_variables(), *tf.local_variables()]
    result = {}
    for variable in of_graph:
        name = variable.op.name
        owners = [owner for owner in trainable if name == owner or name.startswith(f"{owner}/")]
        label = WEIGHTS if owners and trainable[max(owners, key=len)] else OPTIMIZER
        size = variable.shape.num_elements() * variable.dtype.base_dtype.size
        result[name] = Variable(places.name(variable.device), size, label)
    return result


class _Labels:
    """The labels of tensors, by the name scope in which they are made.

    An operation of mtf counts as a gradient if its outputs have a trainable variable's shape: it computes the gradient,
    or a step of the optimizer.

    Args:
      lowering: the Lowering.
    """

    def __init__(self, lowering: mtf.Lowering) -> None:
        shapes = {tuple(variable.shape) for variable in lowering.graph.trainable_variables}
        self._scopes: dict[str, str] = {}
        for op in lowering.graph.operations:
            shaped = bool(op.outputs) and all(tuple(x.shape) in shapes for x in op.outputs)
            gradient = isinstance(op, mtf.Assign) or (shaped and not isinstance(op, mtf.Variable))
            for scope in {op.name, *self._lowered_scopes(op, lowering)}:
                self._scopes[scope] = GRADIENTS if gradient else ACTIVATIONS

    @staticmethod
    def _lowered_scopes(op: mtf.Operation, lowering: mtf.Lowering) -> set[str]:
        """Return the scopes that TensorFlow has made of an operation's name, which was in use."""
        lowered = [lowering.operations[op]] if op in lowering.operations else []
        for output in op.outputs:
            if output in lowering.tensors:
                tensor = lowering.tensors[output]
                lazy = isinstance(tensor, mtf.LazyAllreduceSum)
                lowered += [x.op for x in (tensor.laid_out_input if lazy else tensor).tensor_list]
        pattern = re.compile(rf"({re.escape(op.name)}(_\d+)?)/")
        return {match[1] for match in (pattern.match(other.name) for other in lowered) if match}

    def of(self, name: str) -> str:
        """Return the label of a TensorFlow operation's outputs."""
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in self._scopes:
                return self._scopes[name]
        return ACTIVATIONS


def _same(operations: Sequence[tf.Operation]) -> dict[tf.Operation, tf.Operation]:
    """Map each operation to the first one that computes the same: TensorFlow runs only that.

    If a gradient begins as its operation did, the shared part is made once, and held in between.
    """
    first: dict[tuple, tf.Operation] = {}
    same: dict[tf.Operation, tf.Operation] = {}
    for op in operations:
        is_own = op.op_def.is_stateful or op.type.startswith("Placeholder")
        if is_own or any(other not in same for other in graphs.before(op)):  # a loop's way back is not there yet
            same[op] = op
            continue
        inputs = tuple((same[x.op], x.value_index) for x in op.inputs)
        after = frozenset(same[other] for other in op.control_inputs)
        attributes = tuple((name, value.SerializeToString()) for name, value in sorted(op.node_def.attr.items()))
        same[op] = first.setdefault((op.type, op.device, inputs, after, attributes), op)
    return same


def nodes(
    lowering: mtf.Lowering, operations: Sequence[tf.Operation], known: Mapping[str, Variable], places: Places
) -> list[Node]:
    """Return the operations of TensorFlow as nodes.

    Args:
      lowering: the Lowering.
      operations: as `graphs.needed` gives them.
      known: the variables.
      places: the devices.

    Raises:
      ValueError: a tensor whose size is not known.
    """
    labels, same = _Labels(lowering), _same(operations)
    operations = list(dict.fromkeys(same.values()))
    number_of = {op: index for index, op in enumerate(operations)}
    index_of = {op: number_of[first] for op, first in same.items()}
    result = []
    for index, op in enumerate(operations):
        variable = _find_variable(op)
        variable = variable if variable in known else None
        device = known[variable].device if variable else places.name(_device(op))
        result.append(
            Node(
                device=device,
                # a loop's way back is left out: one round of it counts
                inputs=tuple((index_of[x.op], x.value_index) for x in op.inputs if index_of[x.op] < index),
                after=tuple(index_of[other] for other in op.control_inputs if index_of[other] < index),
                outputs=tuple(_output(op, number) for number in range(len(op.outputs))),
                scratch_bytes=_scratch_bytes(op),
                seconds=_seconds(op),
                variable=variable,
                access=_ACCESS.get(op.type) if variable else None,
                label=labels.of(op.name),
                is_convolution=op.type in facts.CONVOLUTIONS,
            )
        )
    return result

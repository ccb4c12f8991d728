"""Rules that only count: for operations that only TensorFlow can carry out, and for those that mtf lowers."""

from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.cost.transfers.sketch import Sketch
from mtf_hetero.cost.transfers.values import CHIEF, Value
from mtf_hetero.layout import CannotSplitError, blocks
from mtf_hetero.lowering.choice import ChoiceOperation, ListOperation, LoopOperation
from mtf_hetero.mesh import random_numbers
from mtf_hetero.ops.functions import OnceOperation
from mtf_hetero.ops.registry import COUNTINGS, Rule, count_by, slice_by_slice
from mtf_hetero.ops.registry import find_rule as find_rule

count_by(mtf.BroadcastOperation, mtf.ScalarAddOperation, mtf.ImportLaidOutTensorOperation, ListOperation)(
    slice_by_slice
)


def find_counting_rule(op: mtf.Operation) -> Rule[Any, Any]:
    """Return the rule by which an operation is counted."""
    return find_rule(op, COUNTINGS) or _slice_by_slice_if_alike


def _slice_by_slice_if_alike(op: mtf.Operation, sketch: Sketch) -> None:
    """Count an operation of an unknown class.

    Raises:
      CannotSplitError: the layout does not split all its tensors along the same dimensions.
    """
    tensors = [*op.inputs, *op.outputs]
    split = {frozenset(dim for dim in t.shape.dims if sketch.layout.axis_of(dim) is not None) for t in tensors}
    if len(split) > 1:
        raise CannotSplitError(
            f"{type(op).__name__} {op.name!r}: the planner has no rule for the traffic of this class; do not "
            "split its dimensions, or split all its tensors along the same dimensions"
        )
    sketch.mtf_lower(op)


@count_by(OnceOperation)
def _once(op: OnceOperation, sketch: Sketch) -> None:
    """Let the training process draw and cut the slices; it reads the first processor's operands."""
    (output,) = op.outputs
    whole = sketch.value(CHIEF, output.shape.to_integer_list, output.dtype, [sketch.slices(x)[0] for x in op.inputs])
    _cut_up(output, sketch, whole)


@count_by(mtf.ImportOperation, mtf.RangeOperation)
def _import(op: mtf.Operation, sketch: Sketch) -> None:
    """Let the training process cut the slices."""
    (output,) = op.outputs
    _cut_up(output, sketch, sketch.value(CHIEF, output.shape.to_integer_list, output.dtype))


def _cut_up(output: mtf.Tensor, sketch: Sketch, whole: Value) -> None:
    sizes = [tuple(sketch.layout.slice_shape(output.shape, pnum)) for pnum in sketch.processors]
    values = [
        whole if size == whole.shape else sketch.value(whole.processor, size, whole.dtype, [whole]) for size in sizes
    ]
    sketch.set(output, values)


@count_by(mtf.RandomOperation)
def _random(op: mtf.RandomOperation, sketch: Sketch) -> None:
    """Let the first processor draw a key, or all numbers if only TensorFlow can draw them."""
    (output,) = op.outputs
    if not random_numbers.is_known(op._tf_fn, tf.as_dtype(op._kwargs.get("dtype", tf.float32))):
        _cut_up(output, sketch, sketch.value(0, output.shape.to_integer_list, output.dtype))
        return
    key = sketch.value(0, (), tf.uint64)
    sketch.set(output, sketch.make_like(output, [key] * sketch.layout.size))


@count_by(mtf.ScalarSummaryOperation)
def _summary(op: mtf.Operation, sketch: Sketch) -> None:
    sketch.set(op.outputs[0], sketch.slices(op.inputs[0]))


@count_by(mtf.PrintOperation)
def _print(op: mtf.PrintOperation, sketch: Sketch) -> None:
    """Let the first processor print the slices of all."""
    data = [value for tensor in op._data for value in sketch.slices(tensor)]
    slices = list(sketch.slices(op.inputs[0]))
    slices[0] = sketch.value(0, slices[0].shape, slices[0].dtype, [slices[0], *data])
    sketch.set(op.outputs[0], slices)


@count_by(mtf.Variable, mtf.ReadVariable)
def _read(op: mtf.Variable | mtf.ReadVariable, sketch: Sketch) -> None:
    """Read each slice where it is."""
    (output,) = op.outputs
    slices = sketch.make_like(output)
    users = _users(op._var if isinstance(op, mtf.ReadVariable) else op, sketch)
    sketch.set(output, [slices[user] for user in users])


def _users(variable: mtf.Variable, sketch: Sketch) -> list[int]:
    """Return whose variable each processor reads: that of a slot of its device, or else of the first with the slice."""
    if not sketch.layout.emptied and not sketch.layout.slots:  # of most layouts that a search compares
        return list(sketch.processors)
    boxes = [tuple(sketch.layout.slices(variable.outputs[0].shape.dims, pnum)) for pnum in sketch.processors]
    return blocks.find_users(boxes, sketch.first_slots, sketch.residents.holders(variable))


@count_by(mtf.Assign)
def _assign(op: mtf.Assign, sketch: Sketch) -> None:
    sketch.operations[op] = [
        sketch.value(pnum, (), tf.bool, [sketch.slices(x)[pnum]])
        for variable, x in zip(op.variables, op.inputs, strict=True)
        for pnum in sorted(set(_users(variable, sketch)))
    ]


@count_by(mtf.Depend)
def _depend(op: mtf.Depend, sketch: Sketch) -> None:
    waits = [
        value
        for d in op._dependencies
        for value in (sketch.operations.get(d, []) if isinstance(d, mtf.Operation) else sketch.slices(d))
    ]
    xs = enumerate(sketch.slices(op.inputs[0]))
    sketch.set(op.outputs[0], [sketch.value(pnum, x.shape, x.dtype, [x], waits) for pnum, x in xs])


@count_by(mtf.WhileLoopOperation)
def _loop(op: mtf.Operation, sketch: Sketch) -> None:
    raise NotImplementedError(f"{type(op).__name__} {op.name!r}: the planner cannot count the traffic of a loop")


@count_by(LoopOperation)
def _repeat(op: LoopOperation, sketch: Sketch) -> None:
    """Count one turn: only the data say how many there are."""
    for inputs in (op._cond_inputs, op._body_inputs):
        for x, start in zip(inputs, op.inputs, strict=True):
            sketch.set(x, sketch.slices(start))
    _run_all((*op._cond_ops, *op._body_ops), sketch)
    goes_on = sketch.slices(op._cond_output)
    for output, result in zip(op.outputs, op._body_outputs, strict=True):
        slices = sketch.slices(result)
        sketch.set(output, [sketch.value(x.processor, x.shape, x.dtype, [x], goes_on) for x in slices])


@count_by(ChoiceOperation)
def _choose(op: ChoiceOperation, sketch: Sketch) -> None:
    """Count all blocks: only the data say which one runs."""
    chosen, *_ = [sketch.slices(x) for x in op.inputs]
    for block in op.blocks:
        _run_all(block, sketch)
    for output, *results in zip(op.outputs, *op.results, strict=True):
        sketch.set(output, sketch.make_like(output, chosen, *map(sketch.slices, results)))


def _run_all(operations: Sequence[mtf.Operation], sketch: Sketch) -> None:
    around = sketch.operation
    for op in operations:
        sketch.operation = op.name
        find_counting_rule(op)(op, sketch)
    sketch.operation = around

"""The table of rules: which function sketches which class of mtf operation; and those of what is done slice by slice.

A rule is a function (operation, sketch) -> None that sets the values of the operation's outputs, as the rules of
`mtf_hetero.lowering` and the `lower` methods of mtf's own operations do.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero.lowering import local, lookup, registry, sums
from mtf_hetero.lowering.choice import ChoiceOperation, ListOperation, LoopOperation
from mtf_hetero.planner.transfers.sending import allreduce
from mtf_hetero.planner.transfers.sketch import CHIEF, Sketch, Sum, Value, Values, made
from mtf_hetero.variables import random_numbers

Rule = Callable[[Any, Sketch], None]
_RULES: dict[type, Rule] = {}


def register(*op_classes: type) -> Callable[[Rule], Rule]:
    """Decorator: the function sketches these classes of operation."""

    def add(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(op_classes, rule))
        return rule

    return add


def rule_of(op: mtf.Operation, sketch: Sketch) -> Rule:
    """The rule for an operation.

    Raises:
      NotImplementedError: there is none, and the layout does not split all its tensors alike.
    """
    rule = registry.rule_of(op, _RULES)
    if rule is not None:
        return rule
    tensors = [*op.inputs, *op.outputs]
    split = {frozenset(dim for dim in t.shape.dims if sketch.layout.axis_of(dim) is not None) for t in tensors}
    if len(split) > 1:
        raise NotImplementedError(
            f"{type(op).__name__} {op.name!r}: the planner has no rule for the traffic of this class; do not "
            "split its dimensions, or split all its tensors along the same dimensions"
        )
    return slice_by_slice


def set_output(op: mtf.Operation, sketch: Sketch, values: Values, dims: Sequence[mtf.Dimension] = ()) -> None:
    """Sets an operation's only output, a sum over the mesh axes of `dims` that is made when it is first needed."""
    _set_sum(op, sketch, values, registry.summed_axes(op, sketch.layout, dims), dims)


def _set_sum(
    op: mtf.Operation, sketch: Sketch, values: Values, axes: Sequence[int], dims: Sequence[mtf.Dimension]
) -> None:
    """As `set_output`, for axes in the order in which mtf names them."""
    absent = registry.absent_from(sketch.layout, dims)
    sketch.set(op.outputs[0], outstanding(sketch, values, axes, absent) if axes else values)


def outstanding(sketch: Sketch, partial: Values, axes: Sequence[int], absent: Collection[int]) -> Sum:
    """A sum of addends that the operation leaves outstanding."""
    return Sum(partial, axes, sketch.operation, lambda *arguments: allreduce(sketch, *arguments), absent)


@register(
    mtf.SlicewiseOperation,
    mtf.ScalarMultiplyOperation,
    mtf.ScalarAddOperation,
    mtf.BroadcastOperation,
    mtf.OneHotOperation,
    mtf.Variable,
    mtf.ReadVariable,
    mtf.Constant,
    mtf.ImportLaidOutTensorOperation,
    ListOperation,
)
def slice_by_slice(op: mtf.Operation, sketch: Sketch) -> None:
    """Each processor makes its own slices, of its own."""
    inputs = [sketch.slices(x) for x in op.inputs]
    for output in op.outputs:
        sketch.set(output, sketch.local(output, *inputs))


@register(mtf.GenericGradOperation)
def _generic_grad(op: mtf.Operation, sketch: Sketch) -> None:
    forward = op._forward_op
    inputs = [sketch.slices(x) for x in (*forward.inputs, *forward.outputs, *op._grad_ys)]
    for output in op.outputs:
        sketch.set(output, sketch.local(output, *inputs))


@register(layers.PartialSumOperation)
def _partial_sum(op: mtf.Operation, sketch: Sketch) -> None:
    set_output(op, sketch, sketch.local(op.outputs[0], *map(sketch.slices, op.inputs)), op.summed)


@register(layers.DrawOperation)
def _draw(op: mtf.Operation, sketch: Sketch) -> None:
    """A processor that has nothing of the numbers reads nothing."""
    (output,), inputs = op.outputs, [sketch.slices(x) for x in op.inputs]
    sizes = enumerate(sketch.layout.slice_shapes(output.shape))
    sketch.set(
        output,
        [sketch.value(p, size, output.dtype, [] if 0 in size else [x[p] for x in inputs]) for p, size in sizes],
    )


@register(layers.OnceOperation)
def _once(op: mtf.Operation, sketch: Sketch) -> None:
    """The training process draws and cuts the slices; it reads the operands where the first processor has them."""
    (output,) = op.outputs
    whole = sketch.value(CHIEF, output.shape.to_integer_list, output.dtype, [sketch.slices(x)[0] for x in op.inputs])
    _cut_up(output, sketch, whole)


@register(mtf.ImportOperation, mtf.RangeOperation)
def _import(op: mtf.Operation, sketch: Sketch) -> None:
    """The training process cuts the slices."""
    (output,) = op.outputs
    _cut_up(output, sketch, sketch.value(CHIEF, output.shape.to_integer_list, output.dtype))


def _cut_up(output: mtf.Tensor, sketch: Sketch, whole: Value) -> None:
    sizes = [tuple(sketch.layout.slice_shape(output.shape, pnum)) for pnum in sketch.processors]
    values = [
        whole if size == whole.shape else sketch.value(whole.processor, size, whole.dtype, [whole]) for size in sizes
    ]
    sketch.set(output, values)


@register(mtf.RandomOperation)
def _random(op: mtf.Operation, sketch: Sketch) -> None:
    """The first processor draws a key, or all numbers of what only TensorFlow can draw."""
    (output,) = op.outputs
    if not random_numbers.is_known(op._tf_fn, tf.as_dtype(op._kwargs.get("dtype", tf.float32))):
        _cut_up(output, sketch, sketch.value(0, output.shape.to_integer_list, output.dtype))
        return
    key = sketch.value(0, (), tf.uint64)
    sketch.set(output, sketch.local(output, [key] * sketch.layout.size))


@register(mtf.StopGradient)
def _pass_on(op: mtf.Operation, sketch: Sketch) -> None:
    sketch.set(op.outputs[0], sketch.laid_out(op.inputs[0]))


@register(mtf.CustomGradientOperation)
def _custom_gradient(op: mtf.Operation, sketch: Sketch) -> None:
    for inner, output in zip(op._fn_outputs, op.outputs, strict=True):
        sketch.set(output, sketch.laid_out(inner))


@register(mtf.ScalarSummaryOperation)
def _summary(op: mtf.Operation, sketch: Sketch) -> None:
    sketch.set(op.outputs[0], sketch.slices(op.inputs[0]))


@register(mtf.PrintOperation)
def _print(op: mtf.Operation, sketch: Sketch) -> None:
    """The first processor prints the slices of all."""
    data = [value for tensor in op._data for value in sketch.slices(tensor)]
    slices = list(sketch.slices(op.inputs[0]))
    slices[0] = sketch.value(0, slices[0].shape, slices[0].dtype, [slices[0], *data])
    sketch.set(op.outputs[0], slices)


@register(mtf.Assign)
def _assign(op: mtf.Operation, sketch: Sketch) -> None:
    values = [sketch.slices(x) for x in op.inputs]
    sketch.operations[op] = [
        sketch.value(pnum, (), tf.bool, [value[pnum] for value in values]) for pnum in sketch.processors
    ]


@register(mtf.Depend)
def _depend(op: mtf.Operation, sketch: Sketch) -> None:
    waits = [
        value
        for d in op._dependencies
        for value in (sketch.operations.get(d, []) if isinstance(d, mtf.Operation) else sketch.slices(d))
    ]
    _wait(op, sketch, sketch.slices(op.inputs[0]), [waits] * sketch.layout.size)


@register(layers.AfterOperation)
def _after(op: mtf.Operation, sketch: Sketch) -> None:
    x, y = (sketch.laid_out(t) for t in op.inputs)
    waited_for = y.partial if isinstance(y, Sum) else y
    _wait(op, sketch, made(x), [[value] for value in waited_for])
    sketch.set(op.outputs[1], y)


def _wait(op: mtf.Operation, sketch: Sketch, xs: Values, waits: Sequence[Values]) -> None:
    both = zip(sketch.processors, xs, waits, strict=True)
    sketch.set(op.outputs[0], [sketch.value(pnum, x.shape, x.dtype, [x], wait) for pnum, x, wait in both])


@register(mtf.BinaryOpWithBroadcasting)
def _binary(op: mtf.Operation, sketch: Sketch) -> None:
    """Two outstanding sums over the same axes are added up before they are made."""
    (output,) = op.outputs
    delays = op._tf_fn == tf.add and not (isinstance(op, mtf.AddOperation) and local.is_bias(op))
    laid_out = [sketch.laid_out(x) if delays and x.shape == output.shape else sketch.slices(x) for x in op.inputs]
    x, y = laid_out
    if isinstance(x, Sum) and isinstance(y, Sum) and x.axes == y.axes:
        partial = sketch.local(output, x.partial, y.partial)
        sketch.set(output, outstanding(sketch, partial, x.axes, x.absent & y.absent))
    else:
        sketch.set(output, sketch.local(output, *map(made, laid_out)))


@register(mtf.ReduceOperation)
def _reduce(op: mtf.Operation, sketch: Sketch) -> None:
    (x,), (y,) = op.inputs, op.outputs
    layout, kind = sketch.tensor_layout(x.shape), op._reduction_fn_string
    partial = sketch.local(y, sketch.slices(x))
    if sums.is_bias_gradient(op):
        set_output(op, sketch, partial, sums.summed_dims(op))
        return
    _, axes = mtf.ops._reduce_helper(x.shape, y.shape, layout, kind)
    if kind == "SUM":
        _set_sum(op, sketch, partial, axes, sums.summed_dims(op))
    else:
        sketch.set(y, allreduce(sketch, partial, axes, op.name))


@register(mtf.EinsumOperation)
def _einsum(op: mtf.Operation, sketch: Sketch) -> None:
    shapes, (output,) = [x.shape for x in op.inputs], op.outputs
    shape = mtf.Shape([dim for dim in output.shape.dims if any(dim in other.dims for other in shapes)])
    _, axes = mtf.ops._einsum_helper(shapes, shape, sketch)
    values = sketch.local_of(shape, output.dtype, *[sketch.slices(x) for x in op.inputs])
    if shape == output.shape:
        _set_sum(op, sketch, values, axes, sums.summed_dims(op))
    else:  # it has dimensions that no input has
        absent = registry.absent_from(sketch.layout, sums.summed_dims(op))
        sketch.set(output, sketch.local(output, allreduce(sketch, values, axes, op.name, absent)))


@register(layers.LookupOperation)
def _lookup(op: mtf.Operation, sketch: Sketch) -> None:
    """A processor that has nothing to gather reads nothing."""
    table, _ = op.inputs
    set_output(op, sketch, _unless_idle(op, sketch, table.shape), [op.rows])


@register(layers.LookupGradientOperation)
def _lookup_gradient(op: mtf.Operation, sketch: Sketch) -> None:
    dy, ids = op.inputs
    set_output(op, sketch, _unless_idle(op, sketch, dy.shape), ids.shape.dims)


def _unless_idle(op: mtf.Operation, sketch: Sketch, shape: mtf.Shape) -> Values:
    """Have each processor read its slices of both inputs, or nothing where `lookup.is_idle` holds."""
    (output,), inputs = op.outputs, [sketch.slices(x) for x in op.inputs]
    values = []
    for pnum, size in enumerate(sketch.layout.slice_shapes(output.shape)):
        reads = [] if lookup.is_idle(sketch.layout, pnum, shape, output.shape) else [x[pnum] for x in inputs]
        values.append(sketch.value(pnum, size, output.dtype, reads))
    return values


@register(mtf.WhileLoopOperation)
def _loop(op: mtf.Operation, sketch: Sketch) -> None:
    raise NotImplementedError(f"{type(op).__name__} {op.name!r}: the planner cannot count the traffic of a loop")


@register(LoopOperation)
def _repeat(op: LoopOperation, sketch: Sketch) -> None:
    """One turn: how many there are, only the data say."""
    for inputs in (op._cond_inputs, op._body_inputs):
        for x, start in zip(inputs, op.inputs, strict=True):
            sketch.set(x, sketch.slices(start))
    _run_all((*op._cond_ops, *op._body_ops), sketch)
    goes_on = sketch.slices(op._cond_output)
    for output, result in zip(op.outputs, op._body_outputs, strict=True):
        slices = sketch.slices(result)
        sketch.set(output, [sketch.value(x.processor, x.shape, x.dtype, [x], goes_on) for x in slices])


@register(ChoiceOperation)
def _choose(op: ChoiceOperation, sketch: Sketch) -> None:
    """All blocks: which one runs, only the data say."""
    chosen, *_ = [sketch.slices(x) for x in op.inputs]
    for block in op.blocks:
        _run_all(block, sketch)
    for output, *results in zip(op.outputs, *op.results, strict=True):
        sketch.set(output, sketch.local(output, chosen, *map(sketch.slices, results)))


def _run_all(operations: Sequence[mtf.Operation], sketch: Sketch) -> None:
    around = sketch.operation
    for op in operations:
        sketch.operation = op.name
        rule_of(op, sketch)(op, sketch)
    sketch.operation = around

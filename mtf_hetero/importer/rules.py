"""Emits each kind of operation: as mtf's own where mtf has it, else as a function of slices by its signature."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import facts
from mtf_hetero._support.ops import constant, reshape, zeros
from mtf_hetero.importer import clusters, draws, flow, images, table, windows, work
from mtf_hetero.importer.emitter import Axes, Emitter, flat, number, ordered
from mtf_hetero.importer.program import Operation, Value
from mtf_hetero.importer.replaying import replay
from mtf_hetero.importer.signature import Signature, elements, undivided
from mtf_hetero.layers import (
    BatchNormGradientOperation,
    BatchNormOperation,
    DrawOperation,
    Function,
    FunctionOperation,
    LookupGradientOperation,
    LookupOperation,
    MomentsOperation,
    OnceOperation,
    PartialSumOperation,
)


def emit(emitter: Emitter, op: Operation, is_needed: bool) -> None:
    """Emit an operation; one that joins a cluster waits for it, unless its results are needed now."""
    if (rule := flow.flow_rule(op)) is not None:
        rule(emitter, op)
    elif not is_needed and clusters.waits(emitter, op):
        return
    elif table.is_elementwise(op):
        clusters.emit(emitter, op)
    elif op.type in facts.REGROUPING:
        axes = emitter.axes(op.outputs[0])
        emitter.put(op.outputs[0], emitter.get(op.inputs[0], axes), axes)
    elif table.is_drawn(op):
        _draw(emitter, op, DrawOperation)
    elif op.is_stateful:
        _draw(emitter, op, OnceOperation)
    else:
        signature = table.find_signature(op)
        if signature is None:
            _slicewise(emitter, op, undivided(op))
        else:
            _choose_rule(op, signature)(emitter, op, signature)


def _choose_rule(op: Operation, signature: Signature) -> Callable[[Emitter, Operation, Signature], None]:
    if op.type in images.RULES and windows.is_plain(op):
        return images.RULES[op.type]
    if op.type == "GatherV2" and _is_lookup(op):
        return _look_up
    if op.type == "UnsortedSegmentSum" and _is_sparse(op):
        return _sum_rows
    if op.type in _NORMS:
        return _NORMS[op.type]
    if op.type == "Mean" and 0 in op.inputs[0].shape and op.inputs[0].dtype.is_floating:
        return _mean_of_none
    is_other_type = op.type in facts.PRODUCTS and op.inputs[0].dtype != op.outputs[0].dtype  # int8 to int32
    return _by_mtf if op.type in _MAKERS and not signature.unsplit_letters and not is_other_type else _slicewise


# --- by operations of mtf

Make = Callable[[list[mtf.Tensor], mtf.Shape], mtf.Tensor | list[mtf.Tensor]]  # the shape is a result's
_MAKERS: dict[str, Make] = {
    **dict.fromkeys(facts.PRODUCTS, mtf.einsum),
    "Max": lambda xs, shape: mtf.reduce_max(xs[0], output_shape=shape),
    "Mean": lambda xs, shape: mtf.reduce_mean(xs[0], output_shape=shape),
    "Min": lambda xs, shape: mtf.reduce_min(xs[0], output_shape=shape),
    **dict.fromkeys(("Sum", "BiasAddGrad"), lambda xs, shape: mtf.reduce_sum(xs[0], output_shape=shape)),
    table.MOMENTS: lambda xs, shape: (
        MomentsOperation(
            xs[0], mtf.Shape([dim for dim in xs[0].shape.dims if dim in shape.dims]), name=table.MOMENTS
        ).outputs
    ),
    "Transpose": lambda xs, shape: xs[0],  # mtf's dimensions have names and no order
    **dict.fromkeys(("BroadcastTo", "Fill", "Tile"), lambda xs, shape: mtf.broadcast(xs[0], shape)),
}


def _by_mtf(emitter: Emitter, op: Operation, signature: Signature) -> None:
    bound = emitter.bind(op, signature)
    results = emitter.results(signature, bound)
    tensors = [tensor for tensor, _ in emitter.operands(op, signature, bound)]
    if op.type not in facts.MOVING:
        emitter.worked_on(op, flat(list(bound.values())))
    made = _MAKERS[op.type](tensors, mtf.Shape(flat(results[0])))
    outputs = [made] if isinstance(made, mtf.Tensor) else made
    emitter.put_all(op, outputs, results)


def _mean_of_none(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit what TensorFlow has for a mean of no numbers, NaN; other axes may leave no results of it either."""
    (y,) = op.outputs
    shape = emitter.shape(y)
    emitter.worked_on(op, shape.dims)
    emitter.put(y, mtf.Constant(emitter.mesh, math.nan, shape, y.dtype).outputs[0], emitter.axes(y))


def _is_lookup(op: Operation) -> bool:
    """Return whether an operation looks up rows of a table of numbers."""
    table_, ids, axis = op.inputs
    return _is_table(table_) and ids.dtype.size >= 4 and not op.attr("batch_dims") and not np.any(axis.array)


def _is_table(value: Value) -> bool:
    return value.dtype.is_floating or value.dtype.is_integer


def _look_up(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit a lookup of rows, which a layout may split."""
    table_, ids, _ = op.inputs
    bound = emitter.bind(op, signature, gathers=False)
    (axes,) = emitter.results(signature, bound)
    rank = len(ids.shape)
    of_table = [emitter.single(bound.get("V"), table_.shape[0]), *axes[rank:]]
    rows, looked_up = emitter.laid(table_, of_table), emitter.laid(ids, axes[:rank])
    emitter.worked_on(op, flat(axes))
    made = LookupOperation(rows, looked_up, emitter.unique(op.outputs[0].name))
    emitter.put(op.outputs[0], made.outputs[0], axes)


def _is_sparse(op: Operation) -> bool:
    """Return whether an operation sums no more rows than the table has that it makes."""
    rows, ids, _ = op.inputs
    return _is_table(rows) and rows.dtype.size >= 4 and math.prod(ids.shape) <= op.outputs[0].shape[0]


def _sum_rows(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit a sum of rows, as of the gradient of an embedding: all devices get the rows, which are less than the table.

    Each device adds those that its slice of the table has. Nothing is all-reduced.
    """
    (rows, ids, _), (y,) = op.inputs, op.outputs
    (axes,) = emitter.results(signature, emitter.bind(op, signature, gathers=False))
    of_table = [emitter.single(axes[0], y.shape[0]), *axes[1:]]
    looked_up = [[emitter.fresh(n)] for n in ids.shape]
    tensors = emitter.laid(rows, [*looked_up, *axes[1:]]), emitter.laid(ids, looked_up)
    emitter.worked_on(op, flat(of_table))
    name = emitter.unique(y.name)
    made = LookupGradientOperation(*tensors, mtf.Shape(flat(of_table)), name, splits_ids=False)
    emitter.put(y, made.outputs[0], of_table)


def _batch_norm(emitter: Emitter, op: Operation, signature: Signature) -> None:
    bound = emitter.bind(op, signature)
    results = emitter.results(signature, bound)
    tensors = [ordered(tensor, flat(axes)) for tensor, axes in emitter.operands(op, signature, bound)]
    emitter.worked_on(op, flat(list(bound.values())))
    made = BatchNormOperation(*tensors, epsilon=float(elements(op.inputs[-1])), name=op.type)
    emitter.put_all(op, made.outputs, results)


def _batch_norm_gradient(emitter: Emitter, op: Operation, signature: Signature) -> None:
    dy, _, mean, *_ = op.inputs
    forward, bound = emitter.get(mean).operation, emitter.bind(op, signature)
    assert isinstance(forward, BatchNormOperation)
    axes = [forward.inputs[0].shape.dims]  # those of its stage, as the normalized tensor has them
    emitter.worked_on(op, flat([*axes, *bound.values()]))
    made = BatchNormGradientOperation(forward, emitter.laid(dy, axes))
    emitter.put_all(op, made.outputs, [axes, *emitter.results(signature, bound)[1:]])


_NORMS = {table.BATCH_NORM: _batch_norm, table.BATCH_NORM_GRADIENT: _batch_norm_gradient}


# --- random numbers


def _draw(emitter: Emitter, op: Operation, kind: type) -> None:
    """Emit an operation that is computed of whole operands, and whose result each device has a slice of.

    Seeds, keys and counters keep their dimensions, which no layout can split then.
    """
    (y,) = op.outputs
    known = [value for value in op.inputs if value.array is None]
    axes = [
        emitter.axes(value)
        if value.dtype.is_integer and len(value.shape) < 2
        else [[emitter.fresh(n)] for n in value.shape]
        for value in known
    ]
    tensors = [emitter.laid(value, a) for value, a in zip(known, axes, strict=True)]
    shape = emitter.shape(y)

    def inputs_of(slices: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        left = iter(slices)
        return [reshape(next(left), v.shape) if v.array is None else number(v) for v in op.inputs]

    def draw(*slices: tf.Tensor) -> tf.Tensor:
        return reshape(replay(op, inputs_of(slices))[0], shape.to_integer_list)

    def draw_part(*operands: Any) -> tf.Tensor:
        *slices, first, count = operands
        assert part is not None
        return part(inputs_of(slices), first, count)

    part = draws.partial_draw(op)
    rows = () if part is None else shape.dims[:1]
    function = Function(draw, work.of(op, rows), lambda: f"{work.describe(op)} {shape.to_integer_list}")
    options = {} if part is None else {"part": draw_part}
    made = kind(function, tensors, shape, y.dtype, emitter.mesh, op.type, **options)
    emitter.worked_on(op, rows)
    emitter.put(y, made.outputs[0], emitter.axes(y))


# --- by slices


_STATES = "StatelessRandomGet"  # keys and counters: their dimensions keep their names, and no layout can split them


def _slicewise(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit TensorFlow's operation on slices of what goes through, and on all of what it needs whole."""
    signature, arguments = _with_arguments(op, signature)
    bound = emitter.bind(op, signature, gathers=not op.type.startswith(_STATES))
    operands = emitter.operands(op, signature, bound)
    tensors = [ordered(tensor, flat(axes)) for tensor, axes in operands]
    results = emitter.results(signature, bound)

    def apply(*slices: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, ...]:
        sizes = {d: n for t, x in zip(tensors, slices, strict=True) for d, n in zip(t.shape.dims, x.shape.as_list())}

        def of(axes: Axes) -> list[int]:
            return [math.prod(sizes.get(d, d.size) for d in axis) for axis in axes]

        left = iter([reshape(x, of(axes)) for x, (_, axes) in zip(slices, operands, strict=True)])
        inputs = [number(v) if is_argument else next(left) for v, is_argument in zip(op.inputs, arguments, strict=True)]
        if signature.shape is not None:
            inputs[signature.shape] = constant(of(results[0]), op.inputs[signature.shape].dtype)
        extents = [of(axes) for axes in results]
        if all(0 in extent for extent in extents):  # some operations refuse an empty slice
            outputs = [zeros(extent, y.dtype) for extent, y in zip(extents, op.outputs, strict=True)]
        else:
            outputs = replay(op, inputs)
        outputs = [reshape(y, [sizes.get(d, d.size) for d in flat(a)]) for y, a in zip(outputs, results, strict=True)]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    shapes = [mtf.Shape(flat(axes)) for axes in results]
    summed = [d for letter in signature.summed for d in bound.get(letter, ())]
    split = {d for letter, dims in bound.items() if letter not in signature.unsplit_letters for d in dims}
    emitter.worked_on(op, split)
    function = Function(apply, work.of(op, split), lambda: work.describe(op, [axes for _, axes in operands], results))
    if summed:
        dtype = op.outputs[0].dtype
        made = PartialSumOperation(function, tensors, shapes[0], dtype, sorted(split), summed, op.type).outputs
    else:
        dtypes = [value.dtype for value in op.outputs]
        made = FunctionOperation(function, tensors, shapes, dtypes, sorted(split), op.type).outputs
    emitter.put_all(op, made, results)


def _with_arguments(op: Operation, signature: Signature) -> tuple[Signature, list[bool]]:
    """Return a signature in which operands that the step computes have letters, and which operands are known."""
    operands = list(signature.operands)
    for i, (value, letters) in enumerate(zip(op.inputs, operands, strict=True)):
        if letters is None and value.array is None and i != signature.shape:
            operands[i] = [None if n == 1 else f"ARGUMENT{i}/{axis}" for axis, n in enumerate(value.shape)]
    return dataclasses.replace(signature, operands=operands), [letters is None for letters in operands]

"""Emits each kind of operation: as mtf's own where mtf has it, else as a function of slices by its signature."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import constant, reshape
from mtf_hetero.importer import algebra, arrays, clusters, draws, flow, images, moments, table, windows, work
from mtf_hetero.importer.emitter import Axes, Emitter, flat, number, ordered
from mtf_hetero.importer.program import Operation, replay
from mtf_hetero.importer.signature import Signature, undivided
from mtf_hetero.layers import (
    DrawOperation,
    Function,
    FunctionOperation,
    LookupOperation,
    MomentsOperation,
    OnceOperation,
    PartialSumOperation,
)


def emit(emitter: Emitter, op: Operation, is_needed: bool) -> None:
    """Emit an operation.

    Args:
      emitter: the emitter.
      op: the operation.
      is_needed: whether its results are needed now; else one that joins a cluster waits for it.
    """
    if (rule := flow.rule_of(op)) is not None:
        rule(emitter, op)
    elif not is_needed and clusters.waits(emitter, op):
        return
    elif table.is_elementwise(op):
        clusters.emit(emitter, op)
    elif op.type in arrays.REGROUPED:
        emitter.put(op.outputs[0], emitter.get(op.inputs[0]), emitter.axes(op.inputs[0]))
    elif op.is_stateful and not table.is_drawn(op):
        _draw(emitter, op, OnceOperation)
    elif table.is_drawn(op):
        _draw(emitter, op, DrawOperation)
    else:
        signature = table.signature_of(op)
        if signature is None:
            _slicewise(emitter, op, undivided(op))
        else:
            _rule_of(op, signature)(emitter, op, signature)


def _rule_of(op: Operation, signature: Signature) -> Callable[[Emitter, Operation, Signature], None]:
    if op.type in algebra.CONTRACTIONS and op.inputs[0].dtype == op.outputs[0].dtype:  # not int8 to int32
        return _contract
    if op.type in algebra.REDUCTIONS and signature.summed:
        return _reduce
    if op.type in images.RULES and windows.is_plain(op):
        return images.RULES[op.type]
    if op.type == "GatherV2" and _is_lookup(op):
        return _look_up
    return _RULES.get(op.type, _slicewise)


def _contract(emitter: Emitter, op: Operation, signature: Signature) -> None:
    bound = emitter.bind(op, signature)
    (axes,) = emitter.results(signature, bound)
    tensors = [tensor for tensor, _ in emitter.operands(op, signature, bound)]
    emitter.worked_on(op, flat(list(bound.values())))
    emitter.put(op.outputs[0], mtf.einsum(tensors, mtf.Shape(flat(axes))), axes)


def _reduce(emitter: Emitter, op: Operation, signature: Signature) -> None:
    bound = emitter.bind(op, signature)
    (axes,) = emitter.results(signature, bound)
    ((x, _),) = emitter.operands(op, signature, bound)
    functions = {"SUM": mtf.reduce_sum, "MEAN": mtf.reduce_mean, "MAX": mtf.reduce_max, "MIN": mtf.reduce_min}
    emitter.worked_on(op, flat(list(bound.values())))
    made = functions[algebra.REDUCTIONS[op.type]](x, output_shape=mtf.Shape(flat(axes)))
    emitter.put(op.outputs[0], made, axes)


def _join_moments(emitter: Emitter, op: Operation, signature: Signature) -> None:
    bound = emitter.bind(op, signature)
    results = emitter.results(signature, bound)
    ((x, _),) = emitter.operands(op, signature, bound)
    kept = set(flat(results[0]))
    emitter.worked_on(op, flat(list(bound.values())))
    made = MomentsOperation(x, mtf.Shape([dim for dim in x.shape.dims if dim in kept]), name=op.type)
    for value, tensor, axes in zip(op.outputs, made.outputs, results, strict=True):
        emitter.put(value, tensor, axes)


def _transpose(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit nothing: mtf's dimensions have names and no order."""
    bound = emitter.bind(op, signature)
    ((x, _),) = emitter.operands(op, signature, bound)
    emitter.put(op.outputs[0], x, emitter.results(signature, bound)[0])


def _broadcast(emitter: Emitter, op: Operation, signature: Signature) -> None:
    if signature.whole:  # a Tile that repeats an axis
        _slicewise(emitter, op, signature)
        return
    bound = emitter.bind(op, signature)
    (axes,) = emitter.results(signature, bound)
    ((x, _),) = emitter.operands(op, signature, bound)
    emitter.put(op.outputs[0], mtf.broadcast(x, mtf.Shape(flat(axes))), axes)


_RULES = {
    moments.MOMENTS: _join_moments,
    "Transpose": _transpose,
    "BroadcastTo": _broadcast,
    "Tile": _broadcast,
    "Fill": _broadcast,
}


def _is_lookup(op: Operation) -> bool:
    """Return whether an operation looks up rows of a table of numbers."""
    table_, ids, axis = op.inputs
    are_numbers = table_.dtype.is_floating or table_.dtype.is_integer
    return are_numbers and ids.dtype.size >= 4 and not op.attr("batch_dims") and not np.any(axis.array)


def _look_up(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit a lookup of rows, which a layout may split."""
    table_, ids, _ = op.inputs
    bound = emitter.bind(op, signature, gathers=False)
    (axes,) = emitter.results(signature, bound)
    rank = len(ids.shape)
    of_table = [emitter.single(bound.get("v"), table_.shape[0]), *axes[rank:]]
    rows, looked_up = emitter.laid(table_, of_table), emitter.laid(ids, axes[:rank])
    emitter.worked_on(op, flat(axes))
    made = LookupOperation(rows, looked_up, emitter.unique(op.outputs[0].name))
    emitter.put(op.outputs[0], made.outputs[0], axes)


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

    part = draws.part_of(op)
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

    def apply(*slices: tf.Tensor) -> Any:
        sizes = {d: n for t, x in zip(tensors, slices, strict=True) for d, n in zip(t.shape.dims, x.shape.as_list())}

        def of(axes: Axes) -> list[int]:
            return [math.prod(sizes.get(d, d.size) for d in axis) for axis in axes]

        left = iter([reshape(x, of(axes)) for x, (_, axes) in zip(slices, operands, strict=True)])
        inputs = [number(v) if is_argument else next(left) for v, is_argument in zip(op.inputs, arguments, strict=True)]
        if signature.shape is not None:
            inputs[signature.shape] = constant(of(results[0]), op.inputs[signature.shape].dtype)
        outputs = replay(op, inputs)
        outputs = [reshape(y, [sizes.get(d, d.size) for d in flat(a)]) for y, a in zip(outputs, results, strict=True)]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    shapes = [mtf.Shape(flat(axes)) for axes in results]
    summed = [d for letter in signature.summed for d in bound.get(letter, ())]
    split = {d for letter, dims in bound.items() if letter not in signature.whole for d in dims}
    emitter.worked_on(op, split)
    function = Function(apply, work.of(op, split), lambda: work.describe(op, [axes for _, axes in operands], results))
    if summed:
        dtype = op.outputs[0].dtype
        made = PartialSumOperation(function, tensors, shapes[0], dtype, sorted(split), summed, op.type).outputs
    else:
        dtypes = [value.dtype for value in op.outputs]
        made = FunctionOperation(function, tensors, shapes, dtypes, sorted(split), op.type).outputs
    for value, tensor, axes in zip(op.outputs, made, results, strict=True):
        emitter.put(value, tensor, axes)


def _with_arguments(op: Operation, signature: Signature) -> tuple[Signature, list[bool]]:
    """Return a signature in which operands that the step computes have letters, and which operands are known."""
    operands = list(signature.operands)
    whole = set(signature.whole)
    for i, (value, letters) in enumerate(zip(op.inputs, operands, strict=True)):
        if letters is None and value.array is None and i != signature.shape:
            operands[i] = [None if n == 1 else f"argument{i}/{axis}" for axis, n in enumerate(value.shape)]
            whole |= {letter for letter in operands[i] or () if letter is not None}
    found = dataclasses.replace(signature, operands=operands, whole=frozenset(whole))
    return found, [letters is None for letters in operands]

"""While loops."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.lowering.draws import draw_keys, next_turn
from mtf_hetero.lowering.registry import register


def _lower_all(operations: Iterable[mtf.Operation], lowering: mtf.Lowering) -> None:
    for op in operations:
        with tf.name_scope(op.name):
            op.lower(lowering)


def _bind(placeholders: Sequence[mtf.Tensor], values: Sequence[Sequence[tf.Tensor]], lowering: mtf.Lowering) -> None:
    for placeholder, slices in zip(placeholders, values, strict=True):
        lowering.tensors[placeholder] = lowering.mesh_impl(placeholder).LaidOutTensor(list(slices))


def operations_within(operations: Iterable[mtf.Operation]) -> Iterator[mtf.Operation]:
    """Yield the operations, and those inside their loops and choices."""
    for op in operations:
        yield op
        for block in getattr(op, "blocks", ()):
            yield from operations_within(block)
        if isinstance(op, mtf.WhileLoopOperation):
            yield from operations_within(op._cond_ops)
            yield from operations_within(op._body_ops)


def _start(op: mtf.Operation, lowering: mtf.Lowering) -> list[list[tf.Tensor]]:
    """The number of the first turn, the slices of the loop variables before it, and zeros for the accumulators."""
    mesh_impl = lowering.mesh_impl(op)
    start = [mtf.parallel(mesh_impl.devices, lambda: tf.zeros([], tf.int64))]
    start += [lowering.tensors[x].to_laid_out_tensor().tensor_list for x in op.inputs]
    for output in op.outputs[len(op.inputs) :]:
        shapes = [mesh_impl.slice_shape(output.shape, pnum) for pnum in range(mesh_impl.size)]
        start.append(mtf.parallel(mesh_impl.devices, lambda shape, t=output.dtype: tf.zeros(shape, t), shapes))
    return start


@register(mtf.WhileLoopOperation)
def lower_while_loop(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """A tf.while_loop over the slices of all loop variables, and over the number of the turn on each processor.

    What the body adds to an accumulator may be a sum over mesh axes that is still outstanding: the parts are added up
    over the turns, and over the processors once, after the loop. A loop variable is whole before the next turn.
    """
    mesh_impl = lowering.mesh_impl(op)
    count = len(op.inputs)
    outstanding: dict[int, Any] = {}
    if not lowering.turns:
        draw_keys(operations_within([op]), lowering)

    def condition(turn: Sequence[tf.Tensor], *values: Sequence[tf.Tensor]) -> tf.Tensor:
        _bind(op._cond_inputs, values[:count], lowering)
        with lowering.in_turn(mesh_impl.LaidOutTensor(list(turn))):
            _lower_all(op._cond_ops, lowering)
        return lowering.tensors[op._cond_output].to_laid_out_tensor().tensor_list[0]

    def body(turn: Sequence[tf.Tensor], *values: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        results: list[list[tf.Tensor]] = []

        def lower_body() -> None:
            _bind(op._body_inputs, values[:count], lowering)
            _lower_all(op._body_ops, lowering)
            for i, output in enumerate(op._body_outputs):
                result = lowering.tensors[output]
                if i >= count and isinstance(result, mtf.LazyAllreduceSum):
                    outstanding[i] = result
                    result = result.laid_out_input
                slices = result.to_laid_out_tensor().tensor_list
                if i >= count:
                    slices = mtf.parallel(mesh_impl.devices, tf.add, list(values[i]), slices)
                results.append(slices)

        with lowering.in_turn(mesh_impl.LaidOutTensor(list(turn))):
            following = next_turn(turn, mesh_impl.devices, lower_body)
        return [following, *results]

    _, *ends = tf.while_loop(condition, body, _start(op, lowering), back_prop=False, **op._tf_kwargs)
    for i, (output, slices) in enumerate(zip(op.outputs, ends, strict=True)):
        result = mesh_impl.LaidOutTensor(slices)
        if i in outstanding:
            lazy = outstanding[i]
            addends = mesh_impl.LaidOutTensor(slices, lazy.laid_out_input.absent)
            result = mtf.LazyAllreduceSum(mesh_impl, addends, lazy.mesh_axes, lazy.add_counter_fn)
        lowering.set_tensor_lowering(output, result)

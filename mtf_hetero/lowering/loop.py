"""While loops."""

from collections.abc import Iterable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero.graph import within
from mtf_hetero.lowering.draws import draw_keys, next_turn
from mtf_hetero.lowering.lowering import Lowering
from mtf_hetero.mesh.tensors import LaidOutTensor, LazySum
from mtf_hetero.ops.registry import register_lowering


def lower_all(operations: Iterable[mtf.Operation], lowering: Lowering) -> None:
    """Lower operations, each in a name scope of its own."""
    for op in operations:
        with tf.name_scope(op.name):
            op.lower(lowering)


def _bind(placeholders: Sequence[mtf.Tensor], values: Sequence[Sequence[tf.Tensor]], lowering: Lowering) -> None:
    for placeholder, slices in zip(placeholders, values, strict=True):
        lowering.tensors[placeholder] = LaidOutTensor(list(slices))


def _start(op: mtf.WhileLoopOperation, lowering: Lowering) -> list[list[tf.Tensor]]:
    """Return the number of the first turn, the slices of the loop variables, and zeros for the accumulators."""
    mesh_impl = lowering.uneven(op)
    start = [mtf.parallel(mesh_impl.devices, lambda: tf.zeros([], tf.int64))]
    start += [lowering.tensors[x].to_laid_out_tensor().tensor_list for x in op.inputs]
    for output in op.outputs[len(op.inputs) :]:
        shapes = [mesh_impl.slice_shape(output.shape, pnum) for pnum in range(mesh_impl.size)]
        start.append(mtf.parallel(mesh_impl.devices, lambda shape, t=output.dtype: tf.zeros(shape, t), shapes))
    return start


@register_lowering(mtf.WhileLoopOperation)
def lower_while_loop(op: mtf.WhileLoopOperation, lowering: Lowering) -> None:
    """Return a tf.while_loop over the slices of all loop variables, and over the number of the turn on each processor.

    What the body adds to an accumulator may be a sum over mesh axes that is still outstanding: the parts are added up
    over the turns, and over the processors once, after the loop. A loop variable is whole before the next turn.
    """
    mesh_impl = lowering.uneven(op)
    count = len(op.inputs)
    outstanding: dict[int, LazySum] = {}
    if not lowering.turns:
        draw_keys(within([op]), lowering)

    def condition(turn: Sequence[tf.Tensor], *values: Sequence[tf.Tensor]) -> tf.Tensor:
        _bind(op._cond_inputs, values[:count], lowering)
        with lowering.in_turn(LaidOutTensor(list(turn))):
            lower_all(op._cond_ops, lowering)
        return lowering.tensors[op._cond_output].to_laid_out_tensor().tensor_list[0]

    def body(turn: Sequence[tf.Tensor], *values: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        results: list[list[tf.Tensor]] = []

        def lower_body() -> None:
            _bind(op._body_inputs, values[:count], lowering)
            lower_all(op._body_ops, lowering)
            for i, output in enumerate(op._body_outputs):
                result = lowering.tensors[output]
                if i >= count and isinstance(result, LazySum):
                    outstanding[i] = result
                    result = result.laid_out_input
                slices = result.to_laid_out_tensor().tensor_list
                if i >= count:
                    slices = mtf.parallel(mesh_impl.devices, tf.add, list(values[i]), slices)
                results.append(slices)

        with lowering.in_turn(LaidOutTensor(list(turn))):
            following = next_turn(turn, mesh_impl.devices, lower_body)
        return [following, *results]

    _, *ends = tf.while_loop(condition, body, _start(op, lowering), back_prop=False, **op._tf_kwargs)
    for i, (output, slices) in enumerate(zip(op.outputs, ends, strict=True)):
        result = LaidOutTensor(slices)
        if i in outstanding:
            lazy = outstanding[i]
            addends = LaidOutTensor(slices, lazy.laid_out_input.absent)
            result = LazySum(mesh_impl, addends, lazy.mesh_axes, lazy.add_counter_fn)
        lowering.set_tensor_lowering(output, result)

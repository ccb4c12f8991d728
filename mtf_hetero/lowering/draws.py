"""Random numbers, which differ between the turns of a loop.

TensorFlow runs a loop's turns in any order as far as their inputs allow, and a random operation has no input. So each
key is drawn before the outermost loop, and a turn derives its own key from it and from the number of the turn. Other
operations that draw from a state of their own, in a function of slices for instance, are put in the order of the turns.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import facts
from mtf_hetero.lowering.lowering import Lowering
from mtf_hetero.mesh.tensors import LaidOutTensor
from mtf_hetero.ops.functions import OnceOperation, require_splittable
from mtf_hetero.ops.registry import register_lowering

if TYPE_CHECKING:
    from mtf_hetero._compat import ControlFlowContext

_CALLS = facts.CALLS | facts.CONDITIONS | facts.LOOPS  # of functions, which may draw
_DRAWING = (*facts.PYTHON, "Rng", "Stateful")  # how the names of other operations with a state begin


def _operation_seed(op: mtf.Operation) -> int | None:
    return None if tf.get_default_graph().seed is None else crc32(op.name.encode()) & 0x7FFFFFFF


@register_lowering(OnceOperation)
def lower_once(op: OnceOperation, lowering: Lowering) -> None:
    """Draw all numbers in the process that trains."""
    require_splittable(op, lowering.uneven(op).layout, "the state of random numbers")
    (output,) = op.outputs
    with tf.device("/cpu:0"):
        tensor = op.function.apply(*[lowering.export_to_tf_tensor(x) for x in op.inputs])
    lowering.set_tensor_lowering(output, LaidOutTensor(lowering.uneven(op).make_slices(tensor, output.shape)))


@register_lowering(mtf.RandomOperation)
def lower_random(op: mtf.RandomOperation, lowering: Lowering) -> None:
    """Draw numbers that depend on the graph's seed and the operation's name, not on the layout or other operations."""
    mesh_impl, key, turns = lowering.uneven(op), lowering.keys.get(op), lowering.turns
    shape = op.outputs[0].shape
    slices = mesh_impl.random(
        shape, op._tf_fn, op._kwargs, seed=_operation_seed(op), key=key, turns=turns if key else ()
    )
    lowering.set_tensor_lowering(op.outputs[0], slices)


def draw_keys(operations: Iterable[mtf.Operation], lowering: Lowering) -> None:
    """Draw the keys of a loop's random operations, before the loop.

    An operation that a recomputation uses a second time has its first key.
    """
    for op in operations:
        if isinstance(op, mtf.RandomOperation) and op not in lowering.keys:
            lowering.keys[op] = lowering.uneven(op).random_key(_operation_seed(op))


def next_turn(turn: Sequence[tf.Tensor], devices: Sequence[str], lower_body: Callable[[], None]) -> list[tf.Tensor]:
    """Lower the body of a loop; returns the number of the next turn, which waits for what the body draws.

    Args:
      turn: int64 [] of each processor, the number of the present turn.
      devices: of the processors.
      lower_body: makes the operations of the body.
    """
    graph = tf.get_default_graph()
    before = len(graph.get_operations())
    lower_body()
    new_operations = graph.get_operations()[before:]
    following = mtf.parallel(list(devices), lambda number: number + 1, list(turn))
    places = {number.op.device: pnum for pnum, number in reversed(list(enumerate(following)))}
    for op in new_operations:
        pnum = places.get(op.device, 0)
        if _loop_around(op) is graph._get_control_flow_context() and _draws(op):
            op._add_control_input(turn[pnum].op)
        for end in _ends(op):
            following[pnum].op._add_control_input(end)
    return following


def _loop_around(op: tf.Operation) -> "ControlFlowContext | None":
    """Return the loop that an operation is in, of TensorFlow's old control flow; conditions around it do not count."""
    context = op._get_control_flow_context()
    while context is not None and context.IsCondContext():
        context = context.outer_context
    return context


def _ends(op: tf.Operation) -> list[tf.Operation]:
    """Return the operations that end after an operation of a loop's body has drawn; none if it does not draw.

    In a graph of TensorFlow's old control flow an operation within a condition, or an inner loop, may be skipped. What
    leaves these is done in any case: it waits for them.
    """
    context, own = tf.get_default_graph()._get_control_flow_context(), op._get_control_flow_context()
    if op.type == "Exit":
        return [op] if own is not None and own.outer_context is context else []
    if own is not context:
        return []
    if op.type == "Merge":
        return [op]
    if not _draws(op):
        return []
    if op.type in _CALLS and op.outputs:  # a condition does not keep its control edges when TensorFlow takes it apart
        return [tf.identity(op.outputs[0]).op]
    return [op]


def _draws(op: tf.Operation) -> bool:
    """Return whether an operation's result depends on how often it, or its state, was used before."""
    if not op.op_def.is_stateful:
        return False
    return op.type in _CALLS or op.type.startswith(_DRAWING) or "seed" in op.node_def.attr

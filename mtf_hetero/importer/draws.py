"""Random numbers of a part of a tensor, the same bits as in the whole: TensorFlow's generator can skip those before.

Philox makes blocks of 128 bits, each of a key and a counter. So the block that number n is in is n divided by the
numbers of a block, and a part begins with the counter of its first block.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from collections.abc import Callable, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import constant, cut
from mtf_hetero.importer.program import Operation
from mtf_hetero.importer.replaying import replay
from mtf_hetero.mesh.initial import PHILOX

_KINDS = {"StatelessRandomUniformV2", "StatelessRandomNormalV2"}
ALGORITHMS = {PHILOX, 3}  # and TensorFlow's choice for the device, which is Philox on CPUs and GPUs
_IN_A_BLOCK = {tf.float16: 4, tf.bfloat16: 4, tf.float32: 4, tf.float64: 2}  # numbers of 128 bits of Philox

Part = Callable[[Sequence[tf.Tensor], int, int], tf.Tensor]


def partial_draw(op: Operation) -> Part | None:
    """Return a function that draws some of an operation's numbers; None if only the whole can be drawn.

    Its arguments are the operation's inputs, the number of the first one in row-major order, and how many.
    """
    if op.type not in _KINDS or op.inputs[3].array is None or int(op.inputs[3].array) not in ALGORITHMS:
        return None
    in_a_block = _IN_A_BLOCK[op.outputs[0].dtype]

    def draw(inputs: Sequence[tf.Tensor], first: int, count: int) -> tf.Tensor:
        _, key, counter, algorithm = inputs
        block, skipped = divmod(first, in_a_block)
        shape = constant([skipped + count], op.inputs[0].dtype)
        counter = advanced(counter, constant(block, tf.uint64)) if block else counter
        (numbers,) = replay(op, [shape, key, counter, algorithm])
        return cut(numbers, [skipped], [count])

    return draw


def advanced(counter: tf.Tensor, blocks: tf.Tensor) -> tf.Tensor:
    """Return a counter after some blocks: 128 bits, of which the lower half comes first."""
    low, high = tf.unstack(counter)
    after = low + blocks
    return tf.stack([after, high + tf.cast(after < low, tf.uint64)])

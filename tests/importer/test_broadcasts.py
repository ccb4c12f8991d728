"""A value that is the same for all elements is computed before its broadcast."""

import numpy as np

from mtf_hetero import tf
from mtf_hetero.importer.divided import Traced

X = np.random.default_rng(0).standard_normal((6, 5, 4))


def gradient_of_mean(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.reduce_mean(x, [0, 1], keepdims=True) ** 3)
    return 2.0 * tape.gradient(y, x) + x


STEPS = {
    "a gradient of a mean": gradient_of_mean,
    "two broadcasts": lambda x: tf.broadcast_to(x[:1], [6, 5, 4]) * tf.tile(x[1:2], [6, 1, 1]) + x,
    "one after another": lambda x: tf.exp(tf.broadcast_to(tf.broadcast_to(x[0, 0], [1, 5, 4]), [6, 5, 4])) - x,
    "a sum of many": lambda x: tf.add_n([x, tf.broadcast_to(x[:, :1], [6, 5, 4]), tf.sin(x)]),
}


def elements(step, *kinds):
    program = Traced(tf.compat.v2.function(step)).program((X,))
    return {op.type: int(np.prod(op.outputs[0].shape)) for op in program.operations if op.type in kinds}


def test_what_is_broadcast_is_computed_once():
    assert elements(gradient_of_mean, "RealDiv") == {"RealDiv": 4}
    assert elements(STEPS["two broadcasts"], "Mul", "Tile") == {"Mul": 20}
    assert elements(STEPS["one after another"], "Exp", "BroadcastTo") == {"Exp": 4, "BroadcastTo": 120}
    assert "AddN" not in elements(STEPS["a sum of many"], "AddN")


def test_a_repetition_is_no_broadcast():
    assert elements(lambda x: -tf.tile(x[:2], [3, 1, 1]), "Neg", "Tile") == {"Tile": 120, "Neg": 120}

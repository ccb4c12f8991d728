"""Examples that are joined and parted again are split by a layout of the batch, and give what TensorFlow gives."""

import numpy as np
import pytest
from import_oracle import BATCH, ONE, check

from mtf_hetero import tf

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((14, 6)), RNG.standard_normal((14, 6))
W = RNG.standard_normal((6, 5))


def matrix():
    return tf.Variable(W)


def trained(function):
    """Make a step on joined examples, which are multiplied by a weight matrix."""

    def make():
        w = matrix()

        def step(x, y):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_mean(tf.square(function(x, y, w)))
            of_x, of_w = tape.gradient(loss, [x, w])
            w.assign_sub(0.1 * of_w)
            return loss, of_x

        return step, [w], [(X, Y), (Y, X)]

    return make


def kinds(divided):
    """Types of the replicated operations that have examples."""
    return {entry.kind for entry in divided.undivided.entries if entry.share > 0.03}


PARTED = {
    "joined": lambda x, y, w: tf.concat([x, y, 2.0 * x], 0) @ w,
    "a range": lambda x, y, w: (tf.concat([x, y, x + y], 0) @ w)[14:] * 2.0,
    "ranges of ranges": lambda x, y, w: (tf.concat([x, y, x + y, y], 0) @ w)[14:][:28] * 2.0,
    "slice": lambda x, y, w: tf.slice(tf.concat([x, y, x], 0) @ w, [14, 0], [14, 5]),
    "split": lambda x, y, w: tf.add_n(tf.split(tf.concat([x, y], 0) @ w, 2)),
    "padded": lambda x, y, w: tf.pad(x, [[14, 28], [0, 0]]) @ w + 1.0,
    "vectors": lambda x, y, w: tf.concat([x, y], 0)[:, 0] * tf.concat([x[:, 1], y[:, 1]], 0) * w[0, 0],
}


@pytest.mark.parametrize("name", PARTED)
def test_whole_pieces_are_split_with_the_batch(name):
    _, divided = check(trained(PARTED[name]), ONE, BATCH, steps=2)
    assert not kinds(divided)


def test_a_half_of_the_batch_leaves_it_one_dimension():
    _, divided = check(trained(lambda x, y, w: (x @ w)[:7]), ONE, BATCH, steps=1)
    assert divided.layout.split("batch", 14) == (8, 4, 2)


def similar(a, b):
    scores = tf.matmul(a, b, transpose_b=True)
    return tf.nn.softmax(scores) - tf.eye(14, dtype=tf.float64)


def test_rows_of_the_batch_against_each_other():
    _, divided = check(trained(lambda x, y, w: similar(tf.tanh(x @ w), tf.tanh((x + y) @ w))), ONE, BATCH, steps=2)
    assert "MatMul" not in kinds(divided)


def test_all_of_the_first_argument_has_the_batch():
    step, variables, inputs = trained(lambda x, y, w: similar(x @ w, y @ w))()
    made = lambda: (lambda pair: step(*pair), variables, [(pair,) for pair in inputs])  # noqa: E731
    _, divided = check(made, ONE, BATCH, steps=2)
    assert "MatMul" not in kinds(divided)


def test_noise_for_each_example_is_split_though_it_meets_no_input():
    def noisy(x, y, w):
        seed = tf.stack([1, tf.cast(100.0 * y[0, 0], tf.int32)])
        noise = tf.random.stateless_normal((14, 6), seed, dtype=tf.float64)
        return tf.concat([x, y], 0) @ w, tf.tanh(noise @ w)

    step = trained(lambda x, y, w: sum(tf.reduce_mean(z**2) for z in noisy(x, y, w)))
    _, divided = check(step, ONE, BATCH, steps=2)
    assert not kinds(divided) & {"MatMul", "Tanh"}

"""Steps that use no Keras: a solver, clustering, a Gaussian process, and loops of TensorFlow."""

import numpy as np
from import_oracle import STEPS as COUNT
from import_oracle import Made

from mtf_hetero import tf

function = tf.compat.v2.function


def inputs(*shapes):
    rng = np.random.default_rng(1)
    return [tuple(rng.standard_normal(shape) for shape in shapes) for _ in range(COUNT)]


def variable(name, *shape):
    return tf.Variable(np.random.default_rng(2).standard_normal(shape), name=name)


def heat() -> Made:
    """Three explicit steps of the heat equation on a torus."""
    u = variable("u", 21, 14)

    @function
    def step(source):
        for _ in range(3):
            around = tf.roll(u, 1, 0) + tf.roll(u, -1, 0) + tf.roll(u, 1, 1) + tf.roll(u, -1, 1)
            u.assign(u + 0.1 * (around - 4.0 * u) + 0.01 * source)
        return tf.reduce_sum(u), tf.math.reduce_std(u)

    return step, [u], inputs((21, 14))


def clusters() -> Made:
    """K-means."""
    centres = variable("centres", 5, 3)

    @function
    def step(x):
        distances = tf.reduce_sum((x[:, None] - centres[None]) ** 2, -1)
        nearest = tf.argmin(distances, 1)
        sums = tf.math.unsorted_segment_sum(x, nearest, 5)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(x[:, 0]), nearest, 5)
        centres.assign(tf.math.divide_no_nan(sums, counts[:, None]))
        return tf.reduce_mean(tf.reduce_min(distances, 1)), nearest

    return step, [centres], inputs((14, 3))


def iteration() -> Made:
    """Power iteration, in a loop of TensorFlow that writes a variable."""
    v = variable("v", 12, 1)

    @function
    def step(a):
        m = tf.matmul(a, a, transpose_a=True)
        for _ in tf.range(5):
            v.assign(m @ v)
            v.assign(v / tf.norm(v))
        return tf.matmul(v, m @ v, transpose_a=True)

    return step, [v], inputs((14, 12))


def process() -> Made:
    """The likelihood of a Gaussian process, and its gradient."""
    length = variable("length")

    @function
    def step(x, y):
        with tf.GradientTape() as tape:
            distances = tf.reduce_sum((x[:, None] - x[None]) ** 2, -1)
            root = tf.linalg.cholesky(tf.exp(-distances / tf.exp(length)) + 0.1 * tf.eye(14, dtype=tf.float64))
            fit = tf.reduce_sum(y[:, None] * tf.linalg.cholesky_solve(root, y[:, None]))
            loss = 0.5 * fit + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(root)))
        length.assign_sub(0.01 * tape.gradient(loss, length))
        return loss

    return step, [length], inputs((14, 3), (14,))


def jacobian() -> Made:
    """A Jacobian of each example, by a vectorized map."""
    w = variable("w", 3, 3)

    @function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x @ w)
        slopes = tape.batch_jacobian(y, x)
        w.assign_sub(0.01 * tf.reduce_mean(slopes, 0))
        return slopes

    return step, [w], inputs((14, 3))


def scan() -> Made:
    """A scan over time and a map over examples."""
    w = variable("w", 6)

    @function
    def step(x):
        zeros = tf.zeros((14, 6), tf.float64)
        y = tf.scan(lambda a, b: 0.9 * a + b * w, tf.transpose(x, [1, 0, 2]), initializer=zeros)
        w.assign_add(tf.reduce_mean(y, [0, 1]))
        return y, tf.map_fn(lambda rows: tf.reduce_max(rows, 0), x)

    return step, [w], inputs((14, 4, 6))


def alignment() -> Made:
    """The loss of alignments: loops over functions that TensorFlow makes in an older way, and rows written in place."""
    w = variable("w", 6, 4)

    @function
    def step(x):
        labels = tf.constant(np.random.default_rng(3).integers(1, 4, (14, 2)), tf.int32)
        with tf.GradientTape() as tape:
            lengths = tf.fill([14], 2), tf.fill([14], 5)
            logits = tf.cast(tf.transpose(x @ w, [1, 0, 2]), tf.float32)  # it has no other type
            loss = tf.compat.v2.nn.ctc_loss(labels, logits, *lengths, blank_index=0)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    return step, [w], inputs((14, 5, 6))


LOOPS = {
    "heat": heat,
    "clusters": clusters,
    "iteration": iteration,
    "process": process,
    "jacobian": jacobian,
    "scan": scan,
}

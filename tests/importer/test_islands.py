"""Shapes that depend on the data: what lies between tensors of fixed shapes is computed whole on each device."""

import keras
import numpy as np
import pytest
import tiers
from import_oracle import BATCH, ONE, arrays, check, same, split

import mtf_hetero
import mtf_hetero.keras
from mtf_hetero import tf

RNG = np.random.default_rng(0)
INPUTS = [
    (RNG.standard_normal((14, 6)), RNG.integers(0, 5, 14).astype("int32"), RNG.integers(0, 11, (14, 4)).astype("int32"))
    for _ in range(3)
]


def cross_entropy(logits, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def masked(w, table, x, y, ids):
    return cross_entropy(tf.boolean_mask(x @ w, y > 1), tf.boolean_mask(y, y > 1))


def masked_inputs(w, table, x, y, ids):
    return tf.reduce_sum(tf.tanh(tf.boolean_mask(x, tf.reduce_sum(x, 1) > 0) @ w))


def masked_tokens(w, table, x, y, ids):
    return cross_entropy(tf.boolean_mask(tf.gather(table, ids), ids > 4) @ w, tf.boolean_mask(ids % 5, ids > 4))


def numbers_of_rows(w, table, x, y, ids):
    chosen = tf.boolean_mask(x @ w, x[:, 0] > 0)
    return tf.reduce_sum(chosen**2) / tf.cast(tf.shape(chosen)[0], tf.float64)


def places(w, table, x, y, ids):
    return tf.reduce_mean(tf.gather(x @ w, tf.where(y > 1)[:, 0]) ** 2)


def different_rows(w, table, x, y, ids):
    different, number = tf.unique(tf.reshape(ids, [-1]))
    return tf.reduce_sum(tf.gather(tf.gather(table, different), number) ** 2)


def sums_of_different_rows(w, table, x, y, ids):
    different, number = tf.unique(y)
    return tf.reduce_sum(tf.tanh(tf.math.unsorted_segment_sum(x @ w, number, tf.size(different))))


def parts(w, table, x, y, ids):
    one, other = tf.dynamic_partition(x @ w, tf.cast(y > 1, tf.int32), 2)
    return tf.reduce_sum(one**2) + tf.reduce_sum(other)


def stitched(w, table, x, y, ids):
    part = tf.cast(y > 1, tf.int32)
    rows, numbers = tf.dynamic_partition(x @ w, part, 2), tf.dynamic_partition(tf.range(14), part, 2)
    whole = tf.ensure_shape(tf.dynamic_stitch(numbers, [2 * rows[0], tf.tanh(rows[1])]), (14, 5))
    return tf.reduce_sum(whole * np.arange(70.0).reshape(14, 5) / 70)


def sparse(w, table, x, y, ids):
    return tf.reduce_sum(tf.tanh(tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(tf.nn.relu(x)), w)))


def embedded_sparse(w, table, x, y, ids):
    some = tf.sparse.from_dense(tf.cast(ids, tf.int64))
    return tf.reduce_sum(tf.nn.safe_embedding_lookup_sparse(table, some) ** 2)


def ragged(w, table, x, y, ids):
    rows = tf.RaggedTensor.from_tensor(tf.gather(table, ids), lengths=tf.minimum(y + 1, 4))
    return tf.reduce_sum(tf.tanh(tf.reduce_mean(rows, 1)))


def padded(w, table, x, y, ids):
    first = tf.boolean_mask(x @ w, x[:, 0] > 0)[:7]
    return tf.reduce_sum(tf.ensure_shape(tf.pad(first, [[0, 7 - tf.shape(first)[0]], [0, 0]]), (7, 5)) ** 2)


def suppressed(w, table, x, y, ids):
    boxes = tf.cast(tf.stack([x[:, 0], x[:, 1], x[:, 0] + 1, x[:, 1] + 1], 1), tf.float32)
    return tf.reduce_sum(tf.gather(x @ w, tf.image.non_max_suppression(boxes, tf.cast(x[:, 2], tf.float32), 5)))


def decoded(w, table, x, y, ids):
    logits = tf.cast(tf.transpose(tf.reshape(tf.tile(x @ w, [1, 3]), (14, 3, 5)), (1, 0, 2)), tf.float32)
    (texts,), _ = tf.nn.ctc_greedy_decoder(logits, tf.fill([14], 3))
    return tf.reduce_sum(x @ w) + tf.cast(tf.reduce_sum(tf.sparse.to_dense(texts)), tf.float64)


def in_condition(w, table, x, y, ids):
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: tf.reduce_sum(tf.boolean_mask(x @ w, y > 1) ** 2), lambda: tf.reduce_sum(x @ w)
    )


def of_condition(w, table, x, y, ids):
    more, less = lambda: tf.boolean_mask(x @ w, y > 1), lambda: tf.boolean_mask(x @ w, y < 4)
    return tf.reduce_sum(tf.cond(tf.reduce_sum(x) > 0, more, less) ** 2)


def into_condition(w, table, x, y, ids):
    rows = tf.boolean_mask(x @ w, y > 3)
    return tf.cond(tf.shape(rows)[0] > 0, lambda: tf.reduce_mean(rows**2), lambda: tf.zeros([], tf.float64))


def chosen(w, table, x, y, ids):
    number = tf.cast(tf.math.floormod(tf.reduce_sum(x) * 7, 3), tf.int32)
    branches = [lambda: tf.boolean_mask(x @ w, y > 1), lambda: (x @ w)[:4] * 2, lambda: tf.tanh(x @ w)]
    return tf.reduce_sum(tf.switch_case(number, branches) ** 3)


def in_turns(w, table, x, y, ids):
    total = tf.zeros([], tf.float64)
    for i in range(3):
        total += tf.reduce_sum(tf.boolean_mask(x @ w, y > i) ** 2)
    return total


def in_loop(w, table, x, y, ids):
    def turn(i, total):
        return i + 1, total + tf.reduce_sum(tf.boolean_mask(x @ w, y > i) ** 2)

    return tf.while_loop(lambda i, _: i < tf.reduce_max(y), turn, (0, tf.zeros([], tf.float64)))[1]


def into_loop(w, table, x, y, ids):
    rows = tf.boolean_mask(x @ w, y > 1)

    def turn(i, total):
        return i + 1, total + tf.reduce_sum(rows**2) * tf.cast(i, total.dtype)

    return tf.while_loop(lambda i, _: i < tf.reduce_max(y), turn, (0, tf.zeros([], tf.float64)))[1]


def growing(w, table, x, y, ids):
    """As a decoder adds to a text until its end."""

    def turn(i, rows):
        return i + 1, tf.concat([rows, (x @ w)[:2] * tf.cast(i, rows.dtype)], 0)

    shapes = tf.TensorShape([]), tf.TensorShape([None, 5])
    return tf.reduce_sum(tf.while_loop(lambda i, _: i < tf.reduce_max(y), turn, (0, (x @ w)[:1]), shapes)[1] ** 2)


def shrinking(w, table, x, y, ids):
    def turn(rows):
        return tf.boolean_mask(rows, rows[:, 0] > tf.reduce_mean(rows[:, 0]))

    rows = tf.boolean_mask(x @ w, y > 0)
    rows = tf.while_loop(lambda rows: tf.shape(rows)[0] > 3, turn, [rows], [tf.TensorShape([None, 5])])
    return tf.reduce_sum(tf.tanh(rows))


def loop_in_condition_in_loop(w, table, x, y, ids):
    def add_rows(rows):
        def turn(i, total):
            return i + 1, total + tf.tanh(rows[i])

        return tf.while_loop(lambda i, _: i < tf.shape(rows)[0], turn, (0, tf.zeros(5, tf.float64)))[1]

    def turn(i, total):
        rows = tf.boolean_mask(x @ w * tf.cast(i + 1, tf.float64), x[:, 0] > total / 100)
        more = tf.cond(
            tf.shape(rows)[0] > 3, lambda: tf.reduce_sum(add_rows(rows) ** 2), lambda: tf.constant(50.0, tf.float64)
        )
        return i + 1, total + more

    return tf.while_loop(lambda _, total: total < 200.0, turn, (0, tf.zeros([], tf.float64)))[1]


def scanned(w, table, x, y, ids):
    rows = tf.boolean_mask(x @ w, y > 1)
    states = tf.scan(lambda state, row: tf.tanh(state + row), rows, tf.zeros(5, tf.float64))
    return tf.reduce_sum(states) + tf.reduce_mean(tf.map_fn(lambda row: tf.reduce_sum(row**2), rows))


def array_of_parts(w, table, x, y, ids):
    parts = tf.TensorArray(tf.float64, 0, dynamic_size=True, infer_shape=False, element_shape=[None, 5])
    for i in tf.range(tf.reduce_max(y)):
        parts = parts.write(i, tf.boolean_mask(x @ w, y > i))
    return tf.reduce_sum(parts.concat() ** 2)


IN_FLOW = [
    *(in_condition, of_condition, into_condition, chosen, in_turns, in_loop, into_loop, growing, shrinking),
    *(loop_in_condition_in_loop, scanned, array_of_parts),
]


def chained(w, table, x, y, ids):
    """Each operation reads the one before it twice: what looks at all paths to the first one never ends."""
    rows = tf.boolean_mask(x @ w, y > 1)
    for _ in range(30):
        rows = tf.tanh(rows * rows + rows)
    return tf.reduce_sum(rows)


STEPS = [
    *(masked, masked_inputs, masked_tokens, numbers_of_rows, places, different_rows, sums_of_different_rows, parts),
    *(stitched, sparse, embedded_sparse, ragged, padded, suppressed, decoded, chained),
]


FIRST = [masked, different_rows, embedded_sparse, in_loop]


@tiers.parametrize("loss", [*STEPS, *IN_FLOW], first=FIRST)
def test_losses_and_gradients(loss):
    def make():
        w, table = (tf.Variable(RNG.standard_normal(shape), name=n) for shape, n in (((6, 5), "w"), ((11, 6), "table")))

        def step(*inputs):
            with tf.GradientTape() as tape:
                value = loss(w, table, *inputs)
            gradients = tape.gradient(value, [w, table])
            for variable, gradient in zip([w, table], gradients, strict=True):
                if gradient is not None:
                    variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            return value

        return step, [w, table], INPUTS

    one, three = check(make, ONE, BATCH)
    assert not one.undivided.entries
    assert any(entry.kind == "Island" and "conftest.py" in entry.line for entry in three.undivided.entries)


def variables_of_flow():
    """Make a step whose condition and loop write variables, of rows of open shapes; the loop draws too."""
    w, sums, count = (
        tf.Variable(x, name=n) for x, n in ((np.ones((6, 5)), "w"), (np.zeros((3, 5)), "sums"), (0, "count"))
    )

    def step(x, y, ids):
        def write():
            sums.assign_add(rows[:3])
            sums[1].assign(rows[0])
            return rows * 2

        def turn(i, total):
            kept = tf.nn.dropout(x @ w, 0.3)
            count.assign_add(tf.size(tf.boolean_mask(kept, kept[:, 0] > 0)))
            return i + 1, total + tf.reduce_sum(tf.boolean_mask(kept, kept[:, 0] > 0) ** 2)

        with tf.GradientTape() as tape:
            rows = tf.boolean_mask(x @ w, x[:, 0] > 0)
            loss = tf.reduce_sum(tf.cond(tf.reduce_sum(x) > 0, write, lambda: rows + sums[0]) ** 2)
            loss += tf.while_loop(lambda _, total: total < 200.0, turn, (0, tf.zeros([], tf.float64)))[1]
        w.assign_sub(0.001 * tape.gradient(loss, w))
        return loss

    return step, [w, sums, count], INPUTS


@pytest.mark.full
def test_variables_and_draws_in_conditions_and_loops(seeded):
    check(variables_of_flow, ONE, BATCH, split("w/1"))


def test_drawn_numbers_of_an_open_shape():
    def step(x):
        return tf.reduce_sum(tf.random.stateless_uniform(tf.shape(tf.boolean_mask(x, x[:, 0] > 0)), [1, 2]))

    x = INPUTS[0][0]
    expected = arrays(tf.compat.v2.function(step)(x))
    with mtf_hetero.function(step, x, **BATCH) as divided:
        same(arrays(divided(x)), expected, 1e-9)


class MaskedTokens(keras.Model):
    """Predicts some of its tokens."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = keras.layers.Embedding(11, 6), keras.layers.LayerNormalization()
        self.drop, self.head = keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(11)
        self.embedding.build((None, 4))
        self.norm.build((None, 4, 6))
        self.head.build((None, 6))

    def train_step(self, ids):
        with tf.GradientTape() as tape:
            x = self.drop(self.norm(self.embedding(ids)), training=True)
            loss = cross_entropy(self.head(tf.boolean_mask(x, ids > 4)), tf.boolean_mask(ids, ids > 4))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}


@pytest.mark.full
def test_a_masked_language_model_trains_as_in_keras():
    ids = np.random.default_rng(0).integers(0, 11, (33, 4)).astype("int32")  # the last batch is smaller

    def train(fit, **place):
        keras.utils.set_random_seed(1)
        model = MaskedTokens()
        model.compile(keras.optimizers.Adam(0.01))
        losses = fit(model, ids, batch_size=8, epochs=2, shuffle=False, verbose=0, **place).history["loss"]
        return [*losses, *(v.numpy() for v in model.trainable_variables)]

    expected = train(keras.Model.fit)
    for one, other in zip(train(mtf_hetero.keras.fit, **BATCH), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)

"""Rows of an embedding that an optimizer updates once each, however often a batch has them: as TensorFlow does."""

import numpy as np
import pytest
import tiers
from import_oracle import BATCH, ONE, Made, check, split

import mtf_hetero
from mtf_hetero import tf

function = tf.compat.v2.function
IDS = [(np.random.default_rng(step).integers(0, 11, (14, 3)).astype("int32"),) for step in range(3)]


def summed(gradient):
    """The different rows of a gradient, and the sum of each."""
    different, places = tf.unique(gradient.indices)
    return different, tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(different)[0])


def descend(table, gradient, momentum):
    rows, sums = summed(gradient)
    table.scatter_sub(tf.IndexedSlices(0.1 * sums, rows))


def adapt(table, gradient, momentum):
    """The update of a row depends on its state, and is not zero for a gradient of zeros."""
    rows, sums = summed(gradient)
    after = 0.9 * momentum.sparse_read(rows) + 0.1 * tf.square(sums) + 0.01
    momentum.scatter_update(tf.IndexedSlices(after, rows))
    table.scatter_add(tf.IndexedSlices(-0.1 * sums / (tf.sqrt(after) + 1e-3), rows))


def bound(table, gradient, momentum):
    rows, sums = summed(gradient)
    momentum.scatter_max(tf.IndexedSlices(tf.abs(sums), rows))
    table.assign(tf.tensor_scatter_nd_sub(table, tf.expand_dims(rows, 1), 0.1 * sums / tf.gather(momentum, rows)))


def spread(table, gradient, momentum):
    """The sums go back to the occurrences."""
    different, places = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_max(gradient.values, places, tf.size(different))
    table.scatter_sub(tf.IndexedSlices(0.1 * tf.gather(tf.tanh(sums), places), gradient.indices))


def training(update, *, drawn=False):
    """A step on an embedding; its ids are arguments, or the devices make them."""

    def make() -> Made:
        table = tf.Variable(np.random.default_rng(7).standard_normal((11, 8)), name="table")
        momentum = tf.Variable(np.zeros((11, 8)), name="momentum")

        @function
        def step(ids):
            if drawn:
                ids = (ids + tf.cast(tf.reduce_sum(table) * 100.0, tf.int32)) % 11
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.tanh(tf.gather(table, ids)) ** 2)
            update(table, tape.gradient(loss, table), momentum)
            return loss

        return step, [table, momentum], IDS

    return make


UPDATES = [(descend, False), (adapt, False), (adapt, True), (bound, True), (spread, False)]


@tiers.parametrize(("update", "drawn"), UPDATES, first=[(adapt, True)])
def test_each_row_is_updated_once(update, drawn):
    check(training(update, drawn=drawn), BATCH, split("table/0"), split("table/1"))


@pytest.mark.user_lines
def test_the_number_of_rows_is_not_known():
    table = tf.Variable(np.zeros((11, 8)), name="table")

    def step(ids):
        ids = tf.reshape(ids + tf.cast(table[0, 0], tf.int32), [-1])
        rows, _ = summed(tf.IndexedSlices(tf.gather(table, ids), ids))
        return rows

    match = r"^operation \w+ '.*' \(test_different_rows.py:\d+\) gives a tensor whose shape depends on the data;"
    with pytest.raises(NotImplementedError, match=match):
        mtf_hetero.function(step, IDS[0], **ONE)

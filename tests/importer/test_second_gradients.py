"""Gradients of gradients give what TensorFlow gives: through loops, conditions, and what both keep for the first."""

import keras
import numpy as np
import pytest
import tiers
from import_oracle import BATCH, check, split

from mtf_hetero import tf

ZEROS = tf.zeros((14, 3), tf.float64)


def scan(w, x):
    """Keras's scan, which keeps a list within a list."""

    def body(state, row):
        return (tf.tanh(state @ w + row),) * 2

    return keras.ops.scan(body, ZEROS, tf.transpose(x, (1, 0, 2)), reverse=True)[1]


def rows(w, x):
    """A loop over the examples."""
    return tf.map_fn(lambda row: tf.cumsum(tf.tanh(row @ w)), x)


def branches(w, x):
    """A condition."""
    return tf.cond(tf.reduce_mean(x) > 0, lambda: (x @ w) ** 3, lambda: tf.tanh(x @ w) + 0 * tf.reduce_sum(x))


def branches_in_a_loop(w, x):
    """A loop that takes another branch in some of its turns."""
    state = ZEROS
    for i in tf.range(4):
        state = tf.tanh(state @ w + x[:, i]) if tf.reduce_sum(state) > 0.1 else tf.sin(state @ w - x[:, i])
    return state


def nested(w, x):
    """A loop in a loop, whose states go through a TensorArray."""
    state, states = ZEROS, tf.TensorArray(tf.float64, 2)
    for i in tf.range(2):
        for j in tf.range(2):
            state = tf.tanh(state @ w + x[:, 2 * i + j])
        states = states.write(i, state)
    return states.stack()


def loop_in_a_branch(w, x):
    """A condition whose one branch keeps a list, of which the other has none."""

    def loop():
        state = ZEROS
        for i in tf.range(4):
            state = tf.tanh(state @ w + x[:, i])
        return state

    return tf.cond(tf.reduce_mean(x) > 0, loop, lambda: tf.sin(x[:, 0] @ w))


def branches_in_a_branch(w, x):
    """A condition of three branches, of which one has a condition."""

    def inner():
        return tf.cond(tf.reduce_mean(x) > 0, lambda: tf.sin(x @ w), lambda: tf.exp(x @ w))

    number = tf.cast(tf.reduce_sum(x) * 10, tf.int32) % 3
    return tf.switch_case(number, [lambda: (x @ w) ** 3, inner, lambda: tf.tanh(x @ w)])


CONDITIONS = [branches, branches_in_a_loop, loop_in_a_branch, branches_in_a_branch]
BODIES = [nested, scan, rows, *CONDITIONS]


def penalized(body):
    """A step that descends a loss and the square of its gradient for the inputs."""

    def make():
        w = tf.Variable(np.random.default_rng(3).standard_normal((3, 3)) / 2.0, name="w")

        @tf.compat.v2.function
        def step(x):
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_mean(body(w, x) ** 2)
                penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
                total = loss + penalty
            w.assign_sub(0.1 * outer.gradient(total, w))
            return loss, penalty

        return step, [w], [(np.random.default_rng(step).standard_normal((14, 4, 3)),) for step in range(3)]

    return make


@tiers.parametrize("body", BODIES, first=[scan])
def test_penalties(body):
    check(penalized(body), BATCH, split("x/2"))


@pytest.mark.full
@pytest.mark.parametrize("body", CONDITIONS)
def test_penalties_of_conditions_that_stay(body, real_conditions):
    check(penalized(body), BATCH)


@pytest.mark.full
@pytest.mark.parametrize("body", [nested, scan, rows, loop_in_a_branch])
def test_penalties_of_loops_that_stay(body, real_loops):
    check(penalized(body), BATCH)


@pytest.mark.full
def test_third_gradients_of_a_condition_that_writes():
    """A condition within two tapes writes a variable, twice in a step, and its gradients are differentiated twice."""

    def make():
        state = tf.Variable(np.float64(0.3), name="state")

        def write_and_differentiate(x):
            def write():
                state.assign_add(0.1)
                return tf.sin(x) * state

            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.cond(tf.reduce_sum(x) > 0.0, write, lambda: tf.cos(x) * x)
                penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
            return outer.gradient(penalty, x)

        def step(x):
            y = write_and_differentiate(x)
            z = write_and_differentiate(tf.tanh(y))
            (third,) = tf.gradients(tf.reduce_sum(z**2), [x])
            return y, z, third

        step = tf.compat.v2.function(step, autograph=False)
        return step, [state], [(np.random.default_rng(i).standard_normal((7, 4)),) for i in range(3)]

    check(make, BATCH)

"""A branch that is not taken ends no step: divisions by zero, numbers beyond a tensor, singular matrices."""

import numpy as np
import pytest
from import_oracle import BATCH, ONE, arrays, same

import mtf_hetero
from mtf_hetero import tf

X = np.random.default_rng(0).standard_normal((14, 4))
NONE, SINGULAR = np.zeros(14, np.int32), np.zeros((4, 4))


def of_numbers(branch, other=lambda x, n: tf.constant(-1)):
    """A branch that is taken if there are examples, of which there are none: (x, n) -> tensor."""

    def step(x, n):
        total = tf.reduce_sum(n)
        return tf.cond(total > 0, lambda: branch(x, total), lambda: other(x, total))

    return step, NONE


def of_rows(branch, other=lambda x, rows: x):
    """A branch that is taken for rows of the tensor; they are beyond it: (x, rows) -> tensor."""

    def step(x, n):
        rows = n + 20
        return tf.cond(tf.reduce_max(rows) < 14, lambda: branch(x, rows), lambda: other(x, rows))

    return step, NONE


def of_matrix(branch, other=lambda z: z):
    """A branch that is taken for a matrix that is not zero; it is: z -> tensor."""
    return lambda x, z: tf.cond(tf.reduce_max(tf.abs(z)) > 0, lambda: branch(z), lambda: other(z)), SINGULAR


def gradient(x, z):
    inverse = tf.cond(tf.reduce_max(z) > 0, lambda: tf.reduce_sum(tf.linalg.inv(z)), lambda: tf.reduce_sum(z * z))
    return tf.compat.v1.gradients(inverse, z)


def in_loop(x, n):
    def turn(i, found):
        count = i + tf.reduce_sum(n)
        return i + 1, found + tf.cond(count > 0, lambda: 7 // count, lambda: 0)

    return tf.while_loop(lambda i, found: i < 3, turn, (0, 0))[1]


def nested(x, n):
    total = tf.reduce_sum(n)
    inner = lambda: tf.cond(total > 0, lambda: 7 // total, lambda: 1)  # noqa: E731
    return tf.cond(total >= 0, inner, lambda: tf.constant(-1))


def switched(x, n):
    total = tf.reduce_sum(n)
    return tf.switch_case(total, [lambda: tf.constant(5), lambda: tf.math.floormod(7, total)])


STEPS = {
    "quotient": of_numbers(lambda x, n: 7 // n),
    "remainder": of_numbers(lambda x, n: tf.truncatemod(7, n)),
    "power": of_numbers(lambda x, n: tf.pow(n + 2, n - 1)),
    "constant zero": of_numbers(lambda x, n: n // tf.constant(0)),
    "row": of_rows(lambda x, rows: x[rows[0]], lambda x, rows: x[0]),
    "slice": of_rows(lambda x, rows: tf.slice(x, [rows[0], 0], [3, 4]), lambda x, rows: x[:3]),
    "gather": of_rows(tf.gather),
    "gather_nd": of_rows(lambda x, rows: tf.gather_nd(x, rows[:, None])),
    "scatter": of_rows(lambda x, rows: tf.tensor_scatter_nd_add(x, rows[:, None], x)),
    "permutation": of_rows(lambda x, rows: tf.math.invert_permutation(rows), lambda x, rows: rows),
    "inverse": of_matrix(tf.linalg.inv),
    "solution": of_matrix(lambda z: tf.linalg.solve(z, z)),
    "cholesky": of_matrix(lambda z: tf.linalg.cholesky(z - 1)),
    "numerics": of_matrix(lambda z: tf.debugging.check_numerics(z / tf.reduce_max(z), "of the branch")),
    "gradient": (gradient, SINGULAR),
    "in a loop": (in_loop, NONE),
    "nested": (nested, NONE),
    "switched": (switched, NONE),
}


@pytest.mark.parametrize("place", [ONE, BATCH], ids=["one", "three"])
@pytest.mark.parametrize("name", STEPS)
def test_a_branch_that_is_not_taken_ends_no_step(name, place):
    step, argument = STEPS[name]
    expected = arrays(tf.compat.v2.function(step)(X, argument))
    with mtf_hetero.function(step, (X, argument), **place) as divided:
        same(arrays(divided(X, argument)), expected, 1e-9)


def test_a_branch_that_is_taken_is_computed():
    step, argument = STEPS["quotient"]
    with mtf_hetero.function(step, (X, argument), **BATCH) as divided:
        assert int(divided(X, argument + 1)) == 0

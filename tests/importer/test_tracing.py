"""The tracing of steps: how often, and variables that are made on the way."""

import re

import numpy as np
import pytest

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.importer import reading

ONE = {"devices": "cpu:0", "layout": "batch"}


class Lazy:
    """A step that makes its variables on the first call."""

    def __init__(self):
        self.traces, self.weights = 0, []

    def __call__(self, x):
        self.traces += 1
        if not self.weights:
            self.weights.append(tf.compat.v2.Variable(lambda: tf.ones([3, 2]), name="first"))
            self.weights.append(tf.compat.v2.Variable(np.full([2], 2.0, "float32"), name="second"))
        first, second = self.weights
        first.assign_add(x[:3, :2])
        return tf.reduce_sum(first * second)


@pytest.mark.parametrize("is_function", [True, False])
def test_a_step_that_makes_variables_is_traced_again_as_by_tensorflow(is_function):
    step = Lazy()
    traced = tf.compat.v2.function(step) if is_function else step
    x = np.ones([4, 2], "float32")
    with mtf_hetero.function(traced, x, **ONE) as divided:
        assert [float(divided(x)) for _ in range(2)] == [24.0, 36.0]
    assert step.traces == 2
    assert step.weights[0].name == "first:0"
    np.testing.assert_array_equal(step.weights[0].numpy(), np.full([3, 2], 3.0))


def test_a_variable_that_starts_with_a_value_of_the_step():
    made = []

    def step(x):
        if not made:
            made.append(tf.compat.v2.Variable(2 * tf.ones([2])))
        return made[0].assign_add(x)

    x = np.ones([2], "float32")
    expected = [3.0, 4.0]
    with mtf_hetero.function(step, x, **ONE) as divided:
        assert [float(divided(x)[0]) for _ in range(2)] == expected


def test_a_variable_that_nothing_keeps_is_refused():
    def step(x):
        return tf.compat.v2.Variable(lambda: tf.ones([2])) + x

    with pytest.raises(ValueError, match="^the step makes a tf.Variable that nothing keeps; make it before the step$"):
        mtf_hetero.function(step, np.ones([2], "float32"), **ONE)


@pytest.mark.user_lines
def test_a_fault_says_at_which_operation(monkeypatch):
    follow = reading._follow

    def fail(reader, node, inputs):
        return {}[21] if node.type == "Tanh" else follow(reader, node, inputs)

    @tf.compat.v2.function
    def step(x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, tf.tanh(x)), (0, x))[1]

    monkeypatch.setattr(reading, "_follow", fail)
    with pytest.raises(KeyError) as caught:
        mtf_hetero.function(step, np.ones([2], "float32"), **ONE)
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"at operation Tanh 'while/Tanh' \(test_tracing.py:\d+\)", note)

"""The first step is compared with TensorFlow's own: faults put in are found and named, and no exact step is refused."""

import itertools

import keras
import numpy as np
import pytest
from import_oracle import BATCH, ONE, begins_of_old
from tiers import parametrize

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.importer import pieces, verifying

RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((14, 6, 4)), RNG.standard_normal(14)


def make_step(dtype="float64", *, draws=False):
    """A training step with slices that are turned, joined and cut; its variables, and its inputs."""
    w, b = tf.Variable(RNG.standard_normal((4, 5)), dtype=dtype, name="w"), tf.Variable(np.zeros(5, dtype), name="b")
    optimizer = keras.optimizers.Adam()
    optimizer.build([w, b])

    def step(x, y):
        with tf.GradientTape() as tape:
            h = tf.tensordot(x[:, ::-1], w, 1) + b
            h = (h - tf.reduce_mean(h, 0)) * w[0]  # the gradient of b is noise, of which Adam takes the sign
            h += tf.random.uniform(h.shape, dtype=dtype) if draws else 0
            both = tf.concat([h, 2 * h], 0)[:, ::-1]
            loss = tf.reduce_mean((tf.reduce_sum(both[:14] * both[14:] * x[..., :1], [1, 2]) - y) ** 2)
        gradients = tape.gradient(loss, [w, b])
        optimizer.apply(gradients, [w, b])
        return {"loss": loss, "h": h}

    return step, [w, b], (X.astype(dtype), Y.astype(dtype))


@parametrize(
    ("place", "dtype"), list(itertools.product([ONE, BATCH], ["float32", "float64"])), first=[(BATCH, "float32")]
)
def test_an_exact_step_passes(place, dtype):
    step, variables, inputs = make_step(dtype)
    before = [v.numpy() for v in variables]
    assert mtf_hetero.verify(step, inputs, **place).startswith("first step equals TensorFlow's, ")
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_sum_that_tensorflow_takes_in_another_order_passes():
    small = tf.Variable(np.full(4, 1e-18))
    state = tf.Variable(np.zeros(4))

    def step(x):
        one = tf.reduce_mean(tf.reshape(x, [-1, 4, 1]), 2)
        state.assign(tf.reduce_mean(x + (-one + small), 0))  # TensorFlow makes it (x - one) + small

    assert mtf_hetero.verify(step, X[:, 0], **BATCH).startswith("first step equals TensorFlow's, ")


@pytest.mark.user_lines
@pytest.mark.parametrize("place", [ONE, pytest.param(BATCH, marks=pytest.mark.full)], ids=["one", "three"])
def test_a_slice_that_is_read_wrong_is_named_with_its_line(monkeypatch, place):
    step, variables, inputs = make_step()
    before = [v.numpy() for v in variables]
    monkeypatch.setattr(pieces, "_begin", begins_of_old)
    with mtf_hetero.function(step, inputs, **place) as divided:
        with pytest.raises(mtf_hetero.StepDiffersError) as error:
            divided(*inputs)
        divided.pull()  # the devices took the step, and got their values back
    assert "they part at operation StridedSlice 'strided_slice" in str(error.value)
    assert "test_verifying.py:" in str(error.value)
    assert "where rounding explains" in str(error.value)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    with mtf_hetero.function(step, inputs, verify=False, **place) as divided:
        divided(*inputs)
    assert np.abs(variables[0].numpy() - before[0]).max() > 1e-4


@pytest.mark.user_lines
def test_random_numbers_of_tensorflow_are_not_compared_and_that_is_said():
    step, _, inputs = make_step(draws=True)
    line = mtf_hetero.verify(step, inputs, **BATCH)
    assert "2 of 2 results and 6 of 8 variables are not compared" in line
    assert "random numbers from a state of TensorFlow's own (test_verifying.py:" in line


def test_a_comparison_that_costs_too_much_is_left_out(monkeypatch):
    step, _, inputs = make_step()
    monkeypatch.setattr(verifying, "_SECONDS", 0.0)
    with mtf_hetero.function(step, inputs, steps=0, **ONE) as divided:
        divided(*inputs)
        divided(*inputs)
    assert divided.verified.startswith("first step not compared with TensorFlow's: that would take about ")
    assert divided.verified.count("\n") == 0
    monkeypatch.setattr(verifying, "_SECONDS", 5.0)
    monkeypatch.setattr(verifying, "free_bytes", lambda: 1000)
    with mtf_hetero.function(step, inputs, **ONE) as divided:
        divided(*inputs)
    assert "GiB of this host's memory" in divided.verified


def test_each_kind_of_inputs_is_compared_once():
    def step(x):
        return tf.reduce_sum(x * x)

    rows = [14, 14, 9, 14, 9]
    with mtf_hetero.function(step, X, **BATCH) as divided:
        for count in rows:
            divided(X[:count])
    assert divided.verified.count("equals TensorFlow's") == 2


def test_mistakes_are_named():
    step, _, inputs = make_step()
    with pytest.raises(ValueError, match=r"^verify is 'yes'; it must be True, False or 'auto'$"):
        mtf_hetero.function(step, inputs, verify="yes", **ONE)

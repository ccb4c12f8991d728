"""Loops that stay loops, and conditions of which one branch runs, give what TensorFlow gives."""

import keras
import numpy as np
import pytest
import tiers
from import_oracle import BATCH, ONE, check, ids, split
from steps import L, adam, of_keras

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.importer import conditions
from mtf_hetero.importer.program import within

function = tf.compat.v2.function
INPUTS = [(np.random.default_rng(step).standard_normal((14, 6, 3)),) for step in range(3)]
PLACES = [BATCH, split("x/2")]


def trained(body, *more):
    """A step that descends a loss: body(w, x, *more variables)."""

    def make():
        w = tf.Variable(np.random.default_rng(3).standard_normal((3, 3)) / 2.0, name="w")
        others = [tf.Variable(value, trainable=False) for value in more]

        @function
        def step(x):
            with tf.GradientTape() as tape:
                loss = body(w, x, *others)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, [w, *others], INPUTS

    return make


def array(w, x):
    """A recurrence, whose states go through a TensorArray."""
    state, states = tf.zeros((14, 3), tf.float64), tf.TensorArray(tf.float64, 6)
    for i in tf.range(6):
        state = tf.tanh(state @ w + x[:, i])
        states = states.write(i, state)
    return tf.reduce_mean(states.stack() ** 2)


def grown(w, x):
    """The same backwards, with an array that grows, of which some elements are read and some are not written."""
    state, states = tf.zeros((14, 3), tf.float64), tf.TensorArray(tf.float64, 0, dynamic_size=True)
    for i in tf.range(6):
        state = tf.tanh(state @ w + x[:, i])
        states = states.write(8 - i, state)
    read = states.gather([8, 3, 8]), states.stack()[::2], states.concat()[:, :2]
    return tf.add_n([tf.reduce_mean(part**2) for part in read]) * tf.cast(states.size(), tf.float64)


def gathered(w, x):
    """An array of a size that may grow, and does not."""
    states = tf.TensorArray(tf.float64, 6, dynamic_size=True, clear_after_read=False)
    for i in tf.range(6):
        states = states.write(i, tf.tanh(x[:, i] @ w))
    return tf.reduce_mean(states.gather([5, 0]) ** 2) + tf.reduce_mean(states.concat() * 2.0)


def parted(w, x):
    """An array of rows of a tensor, of which each has another number, and rows that are written over others."""
    parts = tf.TensorArray(tf.float64, 3, infer_shape=False).split(tf.reshape(x @ w, (-1, 3)), [50, 4, 30])
    rows = tf.TensorArray(tf.float64, 5, element_shape=(3,)).scatter([4, 0], tf.stack([parts.read(1)[0], w[1]]))
    return tf.reduce_mean(parts.concat() ** 2) + tf.reduce_sum(rows.stack() ** 3)


def ending(w, x):
    """Ends when a sum over the batch is small."""
    x = x[:, 0]
    while tf.reduce_sum(x**2) > 2.0:
        x = 0.8 * (x @ w)
    return tf.reduce_mean(x**2 + tf.reduce_sum(w**2))


def nested(w, x):
    """A loop that ends by its data, in a loop."""
    x, total = x[:, 0], tf.zeros((), tf.float64)
    for i in tf.range(3):
        while tf.reduce_sum(x**2) > 3.0 - tf.cast(i, tf.float64):
            x = 0.7 * tf.tanh(x @ w)
        total += tf.reduce_sum(x**2)
    return total


def turning(w, x):
    """A condition in a loop that ends by its data."""
    y = x[:, 0]
    while tf.reduce_sum(y**2) > 2.0:
        y = tf.cond(tf.reduce_sum(y) > 2.0, lambda y=y: 0.5 * tf.tanh(y @ w), lambda y=y: 0.7 * tf.sin(y))
    return tf.reduce_mean((y @ w) ** 2)


def broken(w, x):
    """A break, and a condition in a loop."""
    y = x[:, 0]
    for i in tf.range(6):
        if tf.reduce_sum(y) > 2.0:
            y = tf.tanh(y @ w)
        elif i > 4:
            break
        else:
            y = y + tf.sin(x[:, i] @ w)
    return tf.reduce_mean(y**2)


def write_in_loop(w, x, count, total):
    """Variables that a loop reads and writes."""
    for i in tf.range(6):
        count.assign_add(1)
        total.assign(total * 0.5 + tf.reduce_sum(x[:, i], 0))
    return tf.reduce_sum(w**2) * tf.cast(count, tf.float64) + tf.reduce_sum(total)


LOOPS = {
    "array": trained(array),
    "gathered": trained(gathered),
    "ending": trained(ending),
    "nested": trained(nested),
    "turning": trained(turning),
    "grown": trained(grown),
    "broken": trained(broken),
    "written": trained(write_in_loop, np.int32(0), np.zeros(3)),
}


@tiers.parametrize("name", LOOPS, first=["array", "ending"])
def test_loops_that_stay(name, real_loops):
    check(LOOPS[name], *PLACES)


@tiers.parametrize("body", [grown, parted], first=[grown])
def test_arrays_of_which_nothing_is_left(body):
    found = check(trained(body), *PLACES)
    kinds = {op.type for op in found[0].step.program.operations}
    assert "While" not in kinds and not any(kind.startswith("TensorList") for kind in kinds)


def branches(w, x, count):
    """A condition that the step's own state decides, with a gradient through both branches."""
    count.assign_add(1)
    if count % 2 == 0:
        return tf.reduce_mean(tf.tanh(x @ w) ** 2)
    return tf.reduce_mean(tf.sin(x[:, 0] @ w) + 1.0)


def write_in_branch(w, x, count, total):
    """Variables that one branch writes."""
    count.assign_add(1)
    if count % 3 == 1:
        total.assign_add(tf.reduce_mean(x, 0))
        count.assign(count + 3)
    else:
        total.assign(total * 0.5)
    return tf.reduce_sum(w**2) + tf.reduce_sum(total)


CONDITIONS = {
    "branches": trained(branches, np.int32(0)),
    "kept": trained(write_in_branch, np.int32(0), np.zeros((6, 3))),
    "turning": trained(turning),
}


@tiers.parametrize("name", CONDITIONS, first=["branches"])
def test_conditions_of_which_one_branch_runs(name, real_conditions):
    check(CONDITIONS[name], *PLACES)


@tiers.parametrize("name", CONDITIONS, first=["kept"])
def test_small_conditions_are_selected(name):
    found = check(CONDITIONS[name], *PLACES)
    kinds = {op.type for op in within(found[0].step.program.operations)}
    assert "Case" not in kinds and "SelectV2" in kinds


def test_a_condition_saves_work(real_conditions):
    """The devices run no operation of the other branch."""
    _, _, inputs = make = trained(write_in_branch, np.int32(0), np.zeros((6, 3)))()
    with mtf_hetero.function(make[0], inputs[0], **BATCH) as divided:
        program = divided.step.program
    (choice,) = [op for op in program.operations if op.type == "Case"]
    assert not {op for block in choice.blocks for op in block.operations} & set(program.operations)
    assert any(op.type == "Mean" for block in choice.blocks for op in block.operations)


@pytest.mark.slow
def test_a_long_recurrent_network():
    """500 steps, with masks and dropout: a loop is lowered once, whatever its length."""

    def build():
        cell = L.LSTM(7, name="cell", dropout=0.2, recurrent_dropout=0.1)
        embedding = L.Embedding(11, 8, mask_zero=True)
        return keras.Sequential([keras.Input((500,), dtype="int32"), embedding, cell, L.Dense(5)])

    make = of_keras(build, adam(), lambda: ids(length=500))
    first, second = check(make, ONE, BATCH, steps=2)
    assert sum(op.type == "While" for op in first.step.program.operations) == 2
    assert len(second.graph.operations) < 1000
    kinds = {entry.kind for entry in second.undivided.entries}
    assert not kinds & {"MatMul", "TensorListSetItem"}


def of_python(x):
    return tf.ensure_shape(tf.numpy_function(np.sort, [x], x.dtype), x.shape)


@pytest.mark.user_lines
def test_the_only_branch_that_is_followed():
    """The other one calls Python: a step that takes it is an error."""

    def make():
        w = tf.Variable(np.zeros(3), name="w")

        @function
        def step(x):
            w.assign_add(tf.cond(tf.reduce_all(x < 9.0), lambda: x[0, 0], lambda: of_python(x[0, 0])))
            return w + 1.0

        return step, [w], INPUTS

    (divided,) = check(make, BATCH)
    assert len(divided.step.program.guards) == 1
    step, (variable,), inputs = make()
    before = variable.numpy()
    with mtf_hetero.function(step, inputs[0], **BATCH) as divided:
        match = r"^the step took branch 0 of \w*If '.*' \(test_control.py:\d+\), but operation PyFunc .* calls Python"
        with pytest.raises(ValueError, match=match):
            divided(10.0 + inputs[0][0])
    np.testing.assert_array_equal(variable.numpy(), before)  # the refused step changed nothing


def test_a_refused_step_that_updates_nothing_on_the_devices():
    """Its only variable is of this process."""
    count = tf.Variable(0)

    @function
    def step(x):
        count.assign_add(tf.cond(tf.reduce_all(x < 9.0), lambda: 1, lambda: tf.size(of_python(x[0, 0]))))
        return tf.reduce_sum(x)

    with mtf_hetero.function(step, INPUTS[0], **BATCH) as divided:
        divided(*INPUTS[0])
        with pytest.raises(ValueError, match=r"^the step took branch 0 of "):
            divided(10.0 + INPUTS[0][0])
        divided(*INPUTS[0])
    assert count.numpy() == 2


def guarded_in_a_branch():
    """A condition of which one branch alone can be followed, in the branch that positive means take."""
    w = tf.Variable(np.zeros(3), name="w")

    def within(x):
        return tf.cond(tf.reduce_all(x < 9.0), lambda: x[0, 0], lambda: of_python(x[0, 0]))

    @function
    def step(x):
        w.assign_add(tf.cond(tf.reduce_mean(x) > 0.0, lambda: within(x), lambda: x[0, 1]))
        return w + 1.0

    return step, [w], [(sign * x,) for sign, (x,) in zip((1.0, -1.0, 1.0), INPUTS, strict=True)]


@pytest.mark.parametrize("least_work", [conditions._LEAST_WORK, 0], ids=["selected", "stays"])
def test_the_only_branch_of_a_condition_in_a_branch(least_work, monkeypatch):
    """A step that takes the other one is an error, if it takes the branch around it."""
    monkeypatch.setattr(conditions, "_LEAST_WORK", least_work)
    check(guarded_in_a_branch, ONE, BATCH)
    step, (variable,), inputs = guarded_in_a_branch()
    beyond = np.ones((14, 6, 3))
    beyond[0, 0, 0] = 10.0
    with mtf_hetero.function(step, inputs[0], **BATCH) as divided:
        assert len(divided.step.program.guards) == 1
        assert any(op.type == "Case" for op in divided.step.program.operations) == (least_work == 0)
        with pytest.raises(ValueError, match=r"^the step took branch 0 of .*If .*PyFunc"):
            divided(beyond)
        divided(beyond - 8.0)  # the mean is negative
    np.testing.assert_array_equal(variable.numpy(), beyond[0, 1] - 8.0)


def pair(x):
    return tf.TensorArray(tf.float64, 2).unstack(x[:2])


GUARDED, _, _ = guarded_in_a_branch()
OF_TWO = {  # of a TensorArray of two elements
    "a write beyond": lambda x: pair(x).write(2, x[0]).stack(),
    "a read beyond": lambda x: pair(x).read(-1),
    "a gather beyond": lambda x: pair(x).gather([1, 3]),
}


@pytest.mark.full
@pytest.mark.parametrize("name", OF_TWO)
def test_an_element_beyond_a_list(name):
    with (
        mtf_hetero.function(OF_TWO[name], INPUTS[0], **ONE) as divided,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"2 elements|out o range"),
    ):
        divided(*INPUTS[0])


@pytest.mark.user_lines
def test_python_in_a_loop_is_refused():
    with pytest.raises(NotImplementedError, match="^operation PyFunc .* calls Python"):
        mtf_hetero.function(
            lambda x: tf.while_loop(
                lambda y: tf.reduce_sum(y) < 9.0, lambda y: y + GUARDED(x), [tf.zeros(3, tf.float64)]
            ),
            INPUTS[0],
            **ONE,
        )


@pytest.mark.full
def test_recomputation_stays():
    """Operations of a forward pass that is computed again for the gradient are not merged with the first ones."""

    def make():
        w = tf.Variable(np.eye(3), name="w")

        @function
        def step(x):
            again = tf.recompute_grad(lambda x: tf.tanh(tf.tanh(x @ w) @ w))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(again(x) ** 2)
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss

        return step, [w], INPUTS

    one, _ = check(make, ONE, BATCH)
    assert sum(op.type == "Tanh" for op in one.step.program.operations) == 4

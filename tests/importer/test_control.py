"""Loops that stay loops, and conditions of which one branch runs, give what TensorFlow gives."""

import keras
import numpy as np
import pytest
import tiers
from import_oracle import BATCH, ONE, check, ids, split
from steps import adam, of_keras

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.cost.transfers import of_step
from mtf_hetero.graph import walk
from mtf_hetero.importer import control
from mtf_hetero.importer.program import within

function = tf.compat.v2.function
INPUTS = [(np.random.default_rng(step).standard_normal((14, 6, 3)),) for step in range(3)]
PLACES = [ONE, BATCH, split("x/2")]


def trained(body, *more, inputs=INPUTS):
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

        return step, [w, *others], inputs

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


def scanned(w, x):
    y = tf.scan(lambda a, b: tf.tanh(a @ w) + b, tf.transpose(x, [1, 0, 2]), initializer=tf.zeros((14, 3), tf.float64))
    return tf.reduce_mean(y**2) + tf.reduce_sum(tf.map_fn(lambda row: tf.reduce_max(row @ w, 0), x))


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


def turning(w, x):
    """A condition in a loop that ends by its data."""
    y = x[:, 0]
    while tf.reduce_sum(y**2) > 2.0:
        y = tf.cond(tf.reduce_sum(y) > 2.0, lambda y=y: 0.5 * tf.tanh(y @ w), lambda y=y: 0.7 * tf.sin(y))
    return tf.reduce_mean((y @ w) ** 2)


def write_in_loop(w, x, count, total):
    """Variables that a loop reads and writes."""
    for i in tf.range(6):
        count.assign_add(1)
        total.assign(total * 0.5 + tf.reduce_sum(x[:, i], 0))
    return tf.reduce_sum(w**2) * tf.cast(count, tf.float64) + tf.reduce_sum(total)


LOOPS = {
    "array": trained(array),
    "gathered": trained(gathered),
    "scanned": trained(scanned),
    "ending": trained(ending),
    "nested": trained(nested),
    "turning": trained(turning),
    "written": trained(write_in_loop, np.int32(0), np.zeros(3)),
}


@tiers.parametrize("name", LOOPS, first=["array", "ending"])
def test_loops_that_stay(name, real_loops):
    check(LOOPS[name], *PLACES)


@pytest.mark.parametrize("body", [grown, gathered, parted])
def test_arrays_of_which_nothing_is_left(body):
    found = check(trained(body), *PLACES)
    assert not any(op.type.startswith("TensorList") for op in found[0].step.program.operations)


def test_an_array_that_grows_in_a_loop_that_stays_is_refused(real_loops):
    step, _, inputs = trained(grown)()
    with pytest.raises(NotImplementedError, match=r"^operation TensorListSetItem .* give the TensorArray its size$"):
        mtf_hetero.function(step, inputs[0], **ONE)


@pytest.mark.parametrize(
    ("kind", "number", "use"),
    [
        ("SetItem", 2, lambda array, x: array.write(2, x[0, 0]).stack()),
        ("GetItem", -1, lambda array, x: array.unstack(x[:2]).read(-1)),
        ("Gather", 3, lambda array, x: array.unstack(x[:2]).gather([1, 3])),
    ],
)
def test_an_element_beyond_the_array_is_refused(kind, number, use):
    def step(x):
        return use(tf.TensorArray(tf.float64, 2), x)

    match = f"^operation TensorList{kind} .* element {number} of a TensorArray of size 2; give it another size$"
    with pytest.raises(NotImplementedError, match=match):
        mtf_hetero.function(step, INPUTS[0], **ONE)


def branches(w, x, count):
    """A condition that the step's own state decides, with a gradient through both branches."""
    count.assign_add(1)
    if count % 2 == 0:
        return tf.reduce_mean(tf.tanh(x @ w) ** 2)
    return tf.reduce_mean(tf.sin(x[:, 0] @ w) + 1.0)


def cases(w, x, count):
    count.assign_add(1)
    turns = [lambda: tf.reduce_sum(w**2), lambda: tf.reduce_mean(x @ w), lambda: tf.reduce_mean(tf.exp(x[:, 1] @ w))]
    return tf.switch_case(count.read_value(), turns)


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
    "cases": trained(cases, np.int32(-1)),
    "kept": trained(write_in_branch, np.int32(0), np.zeros((6, 3))),
    "turning": trained(turning),
}


@tiers.parametrize("name", CONDITIONS, first=["branches"])
def test_conditions_of_which_one_branch_runs(name, real_conditions):
    check(CONDITIONS[name], *PLACES)


@pytest.mark.full
@pytest.mark.parametrize("name", CONDITIONS)
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


@pytest.mark.parametrize("name", ["ending", "branches"])
def test_the_planner_knows_their_traffic(name, real_conditions):
    step, _, inputs = {**LOOPS, **CONDITIONS}[name]()
    with mtf_hetero.function(step, inputs[0], **BATCH) as divided:
        transfers = of_step(divided.graph, divided.layout)
        inside = {op.name for op in walk.within(divided.graph.operations)} - {
            op.name for op in divided.graph.operations
        }
    assert any(transfer.operation in inside for transfer in transfers)


@pytest.mark.parametrize("in_loop", [True, False])
def test_random_numbers_with_a_state(in_loop, seeded):
    """Each turn, and each step that takes a branch, draws new numbers, which are TensorFlow's own for a seed."""

    def make():
        total = tf.Variable(np.zeros((14, 3)), name="total")
        count = tf.Variable(0, name="count")

        @function
        def step(x):
            count.assign_add(1)
            if in_loop:
                for _ in tf.range(3):
                    total.assign_add(tf.random.normal((14, 3), dtype=tf.float64, seed=3))
            elif count % 2 == 1:
                total.assign_add(tf.random.uniform((14, 3), dtype=tf.float64, seed=4))
            return total + tf.reduce_sum(x, [0, 1])

        return step, [total, count], INPUTS

    check(make, ONE, BATCH, split("x/2"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_long_recurrent_networks(kind):
    """500 steps, with masks and dropout: a loop is lowered once, whatever its length."""

    def build():
        cell = getattr(keras.layers, kind)(7, name="cell", dropout=0.2, recurrent_dropout=0.1)
        embedding = keras.layers.Embedding(11, 8, mask_zero=True)
        return keras.Sequential([keras.Input((500,), dtype="int32"), embedding, cell, keras.layers.Dense(5)])

    make = of_keras(build, adam(), lambda: ids(length=500, steps=2))
    first, second = check(make, ONE, BATCH, steps=2)
    assert sum(op.type == "While" for op in first.step.program.operations) == 2
    assert len(second.graph.operations) < 1000
    kinds = {entry.kind for entry in second.undivided.entries}
    assert not kinds & {"MatMul", "TensorListSetItem"}


def test_what_conditions_in_loops_keep_is_refused():
    """Each branch keeps tensors for its gradient; a TensorList has those of one shape."""
    step, _, inputs = trained(broken)()
    match = r"^operation TensorListPushBack .* keeps tensors of several shapes .*; write the condition with tf.where$"
    with pytest.raises(NotImplementedError, match=match):
        mtf_hetero.function(step, inputs[0], **ONE)


@pytest.mark.user_lines
def test_the_only_branch_that_is_followed():
    """The other one has a shape that depends on the data: a step that takes it is an error."""

    def make():
        w = tf.Variable(np.zeros(3), name="w")

        @function
        def step(x):
            w.assign_add(tf.cond(tf.reduce_all(x < 9.0), lambda: x[0, 0], lambda: tf.unique(x[0, 0])[0]))
            return w + 1.0

        return step, [w], INPUTS

    (divided,) = check(make, BATCH)
    assert len(divided.step.program.guards) == 1
    for place in (ONE, BATCH):
        step, (variable,), inputs = make()
        before = variable.numpy()
        with mtf_hetero.function(step, inputs[0], **place) as divided:
            match = r"^the step took branch 0 of \w*If '.*' \(test_control.py:\d+\), but operation Unique .* data; give"
            with pytest.raises(ValueError, match=match):
                divided(10.0 + inputs[0][0])
        np.testing.assert_array_equal(variable.numpy(), before)  # the refused step changed nothing


def test_a_refused_step_that_updates_nothing_on_the_devices():
    """Its only variable is of this process."""
    count = tf.Variable(0)

    @function
    def step(x):
        count.assign_add(tf.cond(tf.reduce_all(x < 9.0), lambda: 1, lambda: tf.size(tf.unique(x[0, 0])[0])))
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
        return tf.cond(tf.reduce_all(x < 9.0), lambda: x[0, 0], lambda: tf.unique(x[0, 0])[0])

    @function
    def step(x):
        w.assign_add(tf.cond(tf.reduce_mean(x) > 0.0, lambda: within(x), lambda: x[0, 1]))
        return w + 1.0

    return step, [w], [(sign * x,) for sign, (x,) in zip((1.0, -1.0, 1.0), INPUTS, strict=True)]


@pytest.mark.parametrize("least_work", [control._LEAST_WORK, 0], ids=["selected", "stays"])
def test_the_only_branch_of_a_condition_in_a_branch(least_work, monkeypatch):
    """A step that takes the other one is an error, if it takes the branch around it."""
    monkeypatch.setattr(control, "_LEAST_WORK", least_work)
    check(guarded_in_a_branch, ONE, BATCH)
    step, (variable,), inputs = guarded_in_a_branch()
    beyond = np.ones((14, 6, 3))
    beyond[0, 0, 0] = 10.0
    with mtf_hetero.function(step, inputs[0], **BATCH) as divided:
        assert len(divided.step.program.guards) == 1
        assert any(op.type == "Case" for op in divided.step.program.operations) == (least_work == 0)
        with pytest.raises(ValueError, match=r"^the step took branch 0 of .*If .*Unique"):
            divided(beyond)
        divided(beyond - 8.0)  # the mean is negative
    np.testing.assert_array_equal(variable.numpy(), beyond[0, 1] - 8.0)


def test_a_branch_that_cannot_be_followed_is_refused_in_a_loop(real_loops):
    step, _, inputs = guarded_in_a_branch()

    def turns(x):
        return tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: y + step(x), [tf.zeros(3, tf.float64)])

    with pytest.raises(NotImplementedError, match="Unique .* depends on the data"):
        mtf_hetero.function(turns, inputs[0], **ONE)


@pytest.mark.full
def test_the_rows_of_an_embedding_with_rmsprop():
    def build():
        layers = keras.layers
        return keras.Sequential(
            [keras.Input((6,), dtype="int32"), layers.Embedding(11, 8), layers.Flatten(), layers.Dense(5)]
        )

    check(of_keras(build, lambda: keras.optimizers.RMSprop(0.01), ids), ONE, BATCH)


@pytest.mark.user_lines
def test_a_shape_that_changes_is_refused():
    def step(x):
        def turn(x):
            return [tf.concat([x, x], 0)]

        return tf.while_loop(lambda x: tf.reduce_sum(x) < 9.0, turn, [x], [tf.TensorShape([None, 6, 3])])[0]

    with pytest.raises(NotImplementedError, match=r"^operation \w*While .* \(test_control.py:\d+\) .*changes|depends"):
        mtf_hetero.function(step, INPUTS[0], **ONE)


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

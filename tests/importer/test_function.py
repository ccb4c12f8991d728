"""Arguments and results of `mtf_hetero.function`: values of variables, kinds of inputs, reports, refusals."""

import contextlib
import functools
import re

import numpy as np
import pytest
from import_oracle import BATCH, ONE, arrays, check, rows, same, split
from steps import STEPS

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.importer import report
from mtf_hetero.mesh import traffic

function = tf.compat.v2.function
INPUTS = rows()


def variable(shape=(12, 5), name="w", seed=0):
    return tf.Variable(np.random.default_rng(seed).standard_normal(shape), name=name)


def descent(w, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w))
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


def simple(w=None):
    w = variable() if w is None else w
    return w, lambda x, y: descent(w, x, y)


def test_names_that_graphs_do_not_allow():
    variables = [variable(name=name) for name in ("_private/kernel", "größe", "_")]
    check(lambda: (lambda x, y: [descent(w, x, y) for w in variables], variables, INPUTS), ONE, steps=1)


def test_values_go_to_the_variables_and_back():
    w, step = simple()
    divided = mtf_hetero.function(step, INPUTS[0], **BATCH)
    before = w.numpy()
    first = float(divided(*INPUTS[0]))
    np.testing.assert_array_equal(w.numpy(), before)
    divided.pull()
    assert np.abs(w.numpy() - before).max() > 1e-3
    w.assign(before)
    divided.push()
    assert float(divided(*INPUTS[0])) == first
    divided.close()
    with pytest.raises(ValueError, match="^the divided step is closed; call mtf_hetero.function again$"):
        divided(*INPUTS[0])


def test_at_an_error_the_variables_keep_their_values():
    w, step = simple()
    before = w.numpy()
    with contextlib.suppress(KeyError), mtf_hetero.function(step, INPUTS[0], **ONE) as divided:
        divided(*INPUTS[0])
        raise KeyError
    np.testing.assert_array_equal(w.numpy(), before)


def test_batches_of_other_sizes():
    """The dimensions of a variable are those of the first batch, whatever a later one says of them."""
    w, step = simple(variable((12, 7)))
    inputs = [(x[:n], y[:n]) for (x, y), n in zip(INPUTS, (14, 5, 1, 12, 14))]
    check(lambda: (step, [w], inputs), BATCH, split("w/1"), tolerance=1e-12, steps=5)


def test_messages_of_each_kind_of_inputs_travel_together(monkeypatch):
    """Also those of a kind that comes after a session ran another one."""
    monkeypatch.setattr("mtf_hetero.mesh.collectives.share_memory", lambda devices: False)
    saved, fuse = [], traffic.fuse
    monkeypatch.setattr("mtf_hetero.mesh.traffic.ordering.fuse", lambda *a, **b: saved.append(fuse(*a, **b)))
    step, variables, inputs = STEPS["tape"]()
    inputs = [(x[:n], y[:n]) for (x, y), n in zip(inputs, (14, 7, 14, 7))]
    check(lambda: (step, variables, inputs), BATCH, tolerance=1e-12, steps=4)
    assert len(saved) == 2 and min(saved) > 0


def grows(w, bias):
    """A step that uses one more variable for some inputs."""

    def step(x, biased):
        w.assign_add(tf.ones_like(w))
        if biased:
            bias.assign_add(tf.ones_like(bias))
            return x @ w + bias
        return x @ w

    return step


def test_a_later_kind_of_inputs_may_use_more_variables():
    variables = variable(), variable((5,), "bias")
    inputs = [(INPUTS[0][0], biased) for biased in (False, True, True)]
    check(lambda: (grows(*variables), variables, inputs), BATCH, tolerance=1e-12)


def test_a_session_makes_room_for_more_kinds(monkeypatch):
    """Variables of a kind of inputs that the new session has not seen keep their values."""
    monkeypatch.setattr("mtf_hetero.training.runtime._LEAST_KINDS", 2)
    monkeypatch.setattr("mtf_hetero.training.runtime._MOST_OPERATIONS", 10)
    variables = variable(), variable((5,), "bias")
    kinds = (14, True), (7, True), (5, False), (14, False), (7, True), (3, False)
    inputs = [(INPUTS[number % 3][0][:n], biased) for number, (n, biased) in enumerate(kinds)]
    check(lambda: (grows(*variables), variables, inputs), BATCH, tolerance=1e-12, steps=6)


def test_structures_and_types():
    """Arguments and results are structures; None stays, and constants are results too."""

    def make():
        count = tf.Variable(0, dtype=tf.int64, name="count")

        def step(data, flag):
            count.assign_add(1)
            numbers = tf.cast(data["ids"], tf.float64) + data["x"][0]
            kept = tf.where(data["ids"] > 4, numbers, -numbers)
            return {
                "sum": tf.reduce_sum(kept, 1),
                "none": None,
                "both": (count + 1, kept > 0.0),
                "flag": tf.constant(flag),
            }

        rng = np.random.default_rng(0)
        data = {"ids": rng.integers(0, 9, (7, 4)), "x": (rng.standard_normal((7, 4)),)}
        return function(step), [count], [(data, True)] * 3

    check(make, ONE, BATCH)


@pytest.mark.parametrize("is_function", [False, True])
def test_an_argument_whose_default_is_an_array(is_function):
    (x, y), *_ = INPUTS

    def make():
        w, step = simple()
        scales = np.arange(1.0, 13.0)

        def scaled(x, y, scale=scales):
            return step(x * scale, y)

        partial = functools.partial(scaled, y=y)
        return function(scaled) if is_function else partial, [w], [(x, y) if is_function else (x,)] * 3

    check(make, ONE, BATCH)


def test_a_variable_is_read_before_it_is_written():
    """A value that does not come from the variable's own may not overtake those who read it."""

    def make():
        a, b, last = variable(name="a"), variable(name="b", seed=1), variable((14, 12), name="last")

        def step(x, y):
            slope = x - last
            last.assign(x)
            old = a.read_value()
            a.assign(b)
            b.assign(old)
            return tf.reduce_sum(slope @ a, 1) + tf.reduce_sum(slope @ old, 1)

        return function(step), [a, b, last], INPUTS

    check(make, ONE, BATCH, split("x/1"), steps=5)


def test_parts_of_variables_are_read_and_written():
    def make():
        table, rank3 = variable((11, 6), "table"), variable((3, 4, 5), "rank3")

        def step(x, y):
            rows = tf.gather(table, y)
            table.scatter_add(tf.IndexedSlices(0.1 * rows, y))
            table.scatter_update(tf.IndexedSlices(tf.ones([2, 6], tf.float64), [7, 9]))
            rank3[1, 1:3].assign(rank3[1, 1:3] + 1.0)
            return rows, tf.gather_nd(rank3, [[0, 1], [1, 2]])

        return function(step), [table, rank3], INPUTS

    check(make, ONE, BATCH, split("table/1"))


class Pair(tf.experimental.ExtensionType):
    """Two tensors, as a user's own type."""

    first: tf.Tensor
    second: tf.Tensor


def test_tensors_of_parts_are_taken_and_returned():
    x, y = INPUTS[0]
    rows = tf.RaggedTensor.from_row_lengths(tf.constant(x[:, 0]), [3, 0, 11])
    w = variable((12, 12))

    @function
    def step(pair, rows):
        z = pair.first @ w
        slices = tf.IndexedSlices(z[:2], tf.constant([1, 0]), tf.constant([9, 12]))
        sparse = tf.sparse.SparseTensor(tf.constant([[0, 1], [2, 0]], tf.int64), z[0, :2], [3, 2])
        doubled = rows.with_flat_values(rows.flat_values * 2.0 + tf.reduce_sum(z))
        return slices, {"sparse": sparse, "rows": doubled}, Pair(first=z, second=pair.second)

    expected = step(Pair(first=x, second=y), rows)
    with mtf_hetero.function(step, (Pair(first=x, second=y), rows), **BATCH) as divided:
        found = divided(Pair(first=x, second=y), rows)
    tf.nest.assert_same_structure(found, expected, expand_composites=True)
    same(arrays(found), arrays(expected), 1e-12)


REFUSED = {  # {name: (step, options, message)}; `test_refusals` has those of operations
    "no function": (3, {}, "step is 3; give a tf.function or a function of tensors"),
    "an open shape": (
        simple()[1],
        {"example_inputs": (tf.TensorSpec([None, 12], tf.float64), INPUTS[0][1])},
        r".* has the shape \(None, 12\); give examples whose shapes are known",
    ),
    "a misspelt layout": (simple()[1], {"layout": "bach"}, "layout is 'bach'; it must be one of batch, .*"),
    "a misspelt rule": (
        simple()[1],
        {"layout": "w/2:all"},
        ".*layout rule w/2:all names dimension 'w/2', which no tensor .*; the nearest is 'w/[01]'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    step, options, message = REFUSED[name]
    with pytest.raises((NotImplementedError, ValueError)) as caught:
        mtf_hetero.function(step, **{"example_inputs": INPUTS[0], **ONE, **options})
    assert re.fullmatch(message, str(caught.value))  # of one line


@pytest.mark.parametrize(("progress", "is_printed"), [(None, True), (True, True), (False, False)])
def test_the_chosen_layout_is_printed(progress, is_printed, capsys):
    _, step = simple()
    with mtf_hetero.function(step, INPUTS[0], devices=["cpu:0", "cpu:1"], progress=progress):
        printed = capsys.readouterr().out
    assert ("Layout: cpu:0 alone; cpu:1 shares the cores of cpu:0; chosen in " in printed) == is_printed


class TestReport:
    @pytest.mark.user_lines
    def test_it_names_operations_and_lines(self):
        def step(x, y):
            return tf.linalg.tensor_diag(tf.reduce_sum(x @ tf.transpose(x), 1))

        with mtf_hetero.function(step, INPUTS[0], **BATCH) as divided:
            text, share = str(divided.undivided), divided.undivided.share
        assert text.startswith("replicated on every device: ")
        line = step.__code__.co_firstlineno + 1
        assert re.search(
            rf"^ +\d+\.\d%  Diag  test_function.py:{line}, which no layout splits$", text, flags=re.MULTILINE
        )
        assert 0 < share < 1

    def test_the_largest_shares_are_shown(self):
        entries = [report.Entry("Diag", f"model.py:{line}", 1, 0.05, has_rule=True) for line in range(11)]
        lines = str(report.Undivided(tuple(entries), 0.55)).splitlines()
        assert len(lines) == 10 and lines[-1] == "  and 3 more"

    @pytest.mark.parametrize(
        ("shares", "text"),
        [
            ((), "no operation is replicated"),
            ((0.0,) * 21, "replicated on every device: less than 0.05% of the FLOPs"),
            ((0.0002, 0.0004), "replicated on every device: 0.1% of the FLOPs"),
        ],
    )
    def test_negligible_shares_are_not_listed(self, shares, text):
        entries = tuple(report.Entry("Sub", f"model.py:{n}", 1, share, has_rule=True) for n, share in enumerate(shares))
        assert str(report.Undivided(entries, sum(shares))) == text

    def test_what_is_divided_is_not_in_it(self):
        _, step = simple()
        with mtf_hetero.function(step, INPUTS[0], **BATCH) as divided:
            kinds = {entry.kind for entry in divided.undivided.entries}
        assert "MatMul" not in kinds and "Sub" in kinds
        with mtf_hetero.function(step, INPUTS[0], **ONE) as divided:
            assert divided.undivided.entries == ()  # one device computes nothing twice

    def test_effects_are_left_out(self, caplog):
        def step(x, y):
            tf.print("x is", x)
            tf.debugging.assert_less(x, 100.0 + tf.abs(x))
            tf.debugging.check_numerics(x * 2.0, "nobody reads this")
            return x + 1.0

        with mtf_hetero.function(step, INPUTS[0], **ONE) as divided:
            np.testing.assert_array_equal(divided(*INPUTS[0]), INPUTS[0][0] + 1.0)
        assert sorted(effect.type for effect in divided.effects) == ["Assert", "CheckNumerics", "PrintV2"]

    def test_numbers_are_checked_on_each_device(self):
        def make():
            w = variable((12, 5))

            def step(x, y):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.debugging.check_numerics(x @ w, "x is bad") ** 2)
                w.assign_sub(tape.gradient(loss, w))
                return loss

            return step, [w], INPUTS

        check(make, ONE, BATCH)
        step, _, _ = make()
        x, y = INPUTS[0]
        with mtf_hetero.function(step, (x, y), **BATCH) as divided:
            divided(x, y)
            with pytest.raises(tf.errors.InvalidArgumentError, match="x is bad : Tensor had"):
                divided(np.where(np.arange(14)[:, None] == 13, np.inf, x), y)

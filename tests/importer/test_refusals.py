"""All refusals of a step come in one error: each cause once, in the order of the program, with the user's line."""

import re

import keras
import numpy as np
import pytest
from import_oracle import BATCH, ONE, arrays, rows, same

import mtf_hetero
import mtf_hetero.keras
from mtf_hetero import tf

INPUTS = rows()[0]
W, GENERATOR = tf.Variable(np.ones(12), name="w"), tf.random.Generator.from_seed(1)
HELD = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
PYTHON, STRINGS = "calls Python, .*; write it with Te", "works on strings, .* data are prepared"
RETURNED = "the step returns strings, which no device has; return numbers"
SHAPE, BINOMIAL = (
    "whose shape depends on the data; give it a fixed",
    "is not followed; use tf.random.stateless_binomial",
)


def in_python(x, stateful=True):
    return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], x.dtype, stateful=stateful), x.shape)


@tf.compat.v2.function
def called(x):
    return in_python(x) * 2.0


def unlike(x, y):
    """Five operations, each of which is refused for another reason."""
    z, numbers = x * W, tf.cast(y, tf.int64)
    HELD.insert(numbers, numbers)
    drawn = GENERATOR.binomial((3,), 3.0, 0.5)
    return in_python(z), tf.strings.length(tf.strings.as_string(z)), drawn, tf.boolean_mask(z, y > 2)


def in_both_branches(x, y):
    total = tf.reduce_sum(x * W)
    return tf.cond(total > 0, lambda: in_python(x) + 1.0, lambda: x * GENERATOR.binomial((12,), 3.0, 0.5, x.dtype))


def chosen_in_python(x, y):
    """The condition itself is refused, and an operation of a branch."""
    return tf.cond(in_python(y)[0] > 0, lambda: x, lambda: in_python(x))


def in_loop(x, y):
    def turn(i, total):
        return i + 1, in_python(total) + GENERATOR.binomial((), 3.0, 0.5, tf.float64)

    return tf.while_loop(lambda i, _: i < tf.reduce_max(y), turn, (0, tf.reduce_sum(x * W)))[1]


def into_loop(x, y):
    """A loop begins with a refused tensor, and has an operation that is refused by itself."""
    start = tf.reduce_sum(in_python(x))

    def turn(i, total):
        return i + 1, total + tf.reduce_sum(in_python(x))

    return tf.while_loop(lambda i, _: i < tf.reduce_max(y), turn, (0, start))[1]


def in_turns(x, y):
    """A loop that is unrolled has the operation once."""
    return tf.while_loop(lambda i, _: i < 4, lambda i, z: (i + 1, in_python(z)), (0, x))[1]


def called_twice(x, y):
    return called(x) + called(x + 1.0)


def behind(x, y):
    """A shape follows from a refused tensor, and so does the crop: neither is a cause. A call of Python is."""
    crop = tf.boolean_mask(x, in_python(x)[:, 0] > 0)
    return tf.reduce_sum(crop), tf.reduce_sum(in_python(in_python(x)))


def written(x, y):
    W.assign(in_python(x)[0])
    return tf.reduce_sum(W), tf.strings.length(tf.strings.as_string(x * W))


def of_results(x, y):
    return in_python(x), tf.strings.as_string(x * W), tf.boolean_mask(x * W, y > 2)


STEPS = {  # {name: (step, causes)}
    "unlike": (unlike, ["reads a resource", BINOMIAL, PYTHON, STRINGS, SHAPE]),
    "in both branches": (in_both_branches, [BINOMIAL, PYTHON]),
    "a condition": (chosen_in_python, [PYTHON, PYTHON]),
    "in a loop": (in_loop, [PYTHON, BINOMIAL]),
    "into a loop": (into_loop, [PYTHON, PYTHON]),
    "in turns": (in_turns, [PYTHON]),
    "called twice": (called_twice, [PYTHON]),
    "behind": (behind, [PYTHON, PYTHON, PYTHON]),
    "written": (written, [PYTHON, STRINGS]),
    "a text": (lambda x, y: tf.strings.as_string(x * W), [RETURNED]),
    "results": (of_results, [PYTHON, SHAPE, RETURNED]),
}


def refused(call, *arguments, **options):
    with pytest.raises(NotImplementedError) as caught:
        call(*arguments, **options)
    return str(caught.value)


@pytest.mark.user_lines
@pytest.mark.parametrize("name", STEPS)
def test_each_cause_is_named_once_in_the_order_of_the_program(name):
    step, causes = STEPS[name]
    first, *lines = refused(mtf_hetero.function, step, INPUTS, **ONE).splitlines()
    if len(causes) == 1:
        assert not lines and re.fullmatch(rf"(operation \w+ '.*' \(test_refusals.py:\d+\) )?.*{causes[0]}.*", first)
        return
    assert first == f"the step is refused for {len(causes)} reasons:"
    assert len(set(lines)) == len(lines) == len(causes)
    for line, cause in zip(lines, causes, strict=True):
        assert re.search(cause, line)
        assert line.startswith("  the step") or re.match(r"  operation \w+ '.*' \(test_refusals.py:\d+\) ", line)


def test_the_first_ten_of_many():
    def step(x, y):
        return tf.add_n([in_python(x) for _ in range(12)])

    first, *lines = refused(mtf_hetero.function, step, INPUTS, **ONE).splitlines()
    assert first == "the step is refused for 12 reasons; the first 10 are:"
    assert len(lines) == 10 and "'PyFunc'" in lines[0] and "'PyFunc_9'" in lines[-1]


def unused(x, y):
    unread = in_python(x, stateful=False)
    return x * W + tf.cond(tf.reduce_sum(x) > 0, lambda: (tf.tanh(unread), x)[1], lambda: (in_python(x, False), -x)[1])


def printed(x, y):
    tf.print(in_python(x, stateful=False))
    return x * W


@pytest.mark.parametrize("step", [unused, printed])
def test_an_operation_whose_result_is_not_used_is_not_refused(step):
    W.assign(tf.ones_like(W))
    expected = arrays(tf.compat.v2.function(step)(*INPUTS))
    with mtf_hetero.function(step, INPUTS, **BATCH) as divided:
        same(arrays(divided(*INPUTS)), expected, 1e-9)


def test_an_operation_that_changes_something_is_refused_without_a_use():
    def step(x, y):
        in_python(x)
        return x * W

    assert re.search(PYTHON, refused(mtf_hetero.function, step, INPUTS, **ONE))


def test_a_branch_that_a_step_must_not_take_names_all_its_causes():
    def step(x, y):
        both = lambda: in_python(x) + tf.reduce_sum(in_python(x * W))  # noqa: E731
        return tf.cond(tf.reduce_sum(x) > 1e9, both, lambda: x * W)

    with mtf_hetero.function(step, INPUTS, **ONE) as divided:
        divided(*INPUTS)
        x, y = INPUTS
        with pytest.raises(ValueError, match="(?s)the step took branch 1 of .* but the step is refused for 2 reasons"):
            divided(x + 1e9, y)


class Refused(keras.Model):
    """A model with two layers that no device can run."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(5)

    def call(self, x):
        return self.dense(in_python(x)) + tf.cast(tf.strings.length(tf.strings.as_string(self.dense(x))), x.dtype)


def compiled():
    model = Refused()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


X, Y = INPUTS[0].astype("float32"), INPUTS[1]
CALLS = {
    "fit": lambda: mtf_hetero.keras.fit(compiled(), X, Y, batch_size=14, **ONE),
    "verify": lambda: mtf_hetero.verify(unlike, INPUTS, **ONE),
    "plan": lambda: mtf_hetero.plan(unlike, INPUTS, devices="2 x RTX 3090"),
    "plan of a model": lambda: mtf_hetero.plan(compiled(), (X, Y), devices="2 x RTX 3090"),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_way_into_a_step_lists_all(name):
    text = refused(CALLS[name])
    assert re.match(r"the step is refused for \d reasons:\n  operation ", text)
    assert re.search(PYTHON, text) and re.search(STRINGS, text)

"""Random numbers of a step are TensorFlow's own: of generators, and of operations that count what they drew."""

import re

import numpy as np
import pytest
from import_oracle import BATCH, ONE, check, rows, split

import mtf_hetero
from mtf_hetero import tf

function = tf.compat.v2.function
INPUTS = rows()


GENERATORS = [  # (algorithm, state, what is drawn); the second one carries from the lower half of its count
    ("philox", (5, 0, 7), lambda g, x: g.normal(x.shape, dtype=tf.float64) + g.uniform((), dtype=tf.float64)),
    ("philox", (-300, -1, 7), lambda g, x: tf.cast(g.uniform(x.shape, 0, 9, tf.int32), tf.float64)),
    ("auto_select", (5, 0, 7), lambda g, x: (g.skip(3), tf.cast(g.make_seeds(12)[0], tf.float64) * x / 1e18)[1]),
]


def test_generators_draw_what_tensorflow_draws():
    """In a loop too, which is not unrolled."""

    def make():
        generators = [tf.random.Generator.from_state(np.array(state), alg=name) for name, state, _ in GENERATORS]

        @function
        def step(x, y):
            def draw():
                return [draw_one(g, x) for g, (_, _, draw_one) in zip(generators, GENERATORS, strict=True)]

            total = tf.reduce_sum(x)
            while total < 100.0:
                total += 1.0 + tf.add_n([tf.reduce_mean(drawn) ** 2 for drawn in draw()])
            return draw(), total, [g.state for g in generators]

        return step, [g.state for g in generators], INPUTS

    check(make, ONE, BATCH)


def test_numbers_of_operations_that_count_what_they_have_drawn(seeded):
    """In calls, loops and branches too: they are TensorFlow's own."""
    draw = tf.compat.v2.random
    inner = function(lambda x: draw.normal(x.shape, dtype=tf.float64, seed=9) * x)

    def make():
        @function
        def step(x, y):
            noise = draw.normal(x.shape, dtype=tf.float64, seed=3) + draw.truncated_normal(x.shape, dtype=tf.float64)
            whole = draw.uniform(x.shape, 0, 9, tf.int32), draw.uniform(x.shape, 0, 1 << 40, tf.int64, seed=6)
            called = inner(x) + 2.0 * inner(x)
            for _ in tf.range(3):
                called += draw.normal(x.shape, dtype=tf.float64)
            total = tf.reduce_sum(x)
            while total < 30.0:
                total += 1.0 + tf.reduce_mean(draw.uniform(x.shape, dtype=tf.float64))
            branches = [lambda s=s: tf.reduce_sum(draw.normal(s, dtype=tf.float16)) for s in ((), (2,))]
            chosen = tf.cond(tf.reduce_sum(x) > 0.0, *branches)  # in the second step the other one
            return noise, whole, called, total, chosen, tf.random.shuffle(x, seed=4)

        return step, [], INPUTS

    check(make, BATCH, split("x/1"))


@pytest.mark.parametrize("size", [None, 14])
def test_batches_of_other_sizes_draw_as_in_tensorflow(size, seeded):
    """They count together if they share a trace."""
    options = {} if size else {"input_signature": [tf.TensorSpec([size, 12], tf.float64)]}

    def make():
        step = function(lambda x: x + tf.random.normal(tf.shape(x), dtype=tf.float64), **options)
        return step, [], [(np.zeros((count, 12)),) for count in (14, 9, 14)]

    check(make, ONE, BATCH)


@pytest.mark.user_lines
def test_numbers_that_may_begin_again_are_a_warning(seeded, caplog):
    step = function(lambda x, y: tf.random.shuffle(x) + tf.random.normal((), dtype=tf.float64))
    with mtf_hetero.function(step, INPUTS[0], **ONE) as divided:
        divided(*INPUTS[0])
    match = r"begin again .*; use a stateless function .* in place of: RandomShuffle \(test_draws.py:\d+\)$"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert re.search(match, warning)

"""Random programs give what TensorFlow gives: reads and writes of variables in any order, and any operations."""

import math
import random

import numpy as np
import pytest
import tiers
from hypothesis import strategies as st
from import_oracle import ONE, check, split

from mtf_hetero import tf

function = tf.compat.v2.function
SIZE = 7


# --- reads and writes

NUMBERS = st.integers(0, 2)
SOURCES = st.tuples(st.sampled_from(["variable", "read", "input"]), NUMBERS)
WRITES = st.tuples(st.sampled_from(["assign", "assign_add", "assign_sub"]), NUMBERS, SOURCES, SOURCES)
READS = st.tuples(st.just("read"), NUMBERS)
PLAIN = WRITES | READS
CONDITIONS = st.tuples(st.just("if"), NUMBERS, st.lists(WRITES, max_size=3), st.lists(WRITES, max_size=3))


def accesses(commands):
    """A step that reads and writes three variables as the commands say."""

    def make():
        variables = [tf.Variable(np.linspace(i - 1.0, i, SIZE), name=f"v{i}") for i in range(3)]

        @function
        def step(x):
            results = [x]

            def source(kind, number):
                return {"variable": variables[number], "read": results[number % len(results)], "input": x}[kind] + 0.0

            def run(command):
                kind, number, *rest = command
                if kind == "read":
                    results.append(variables[number].read_value())
                elif kind == "if":
                    branches = [lambda part=part: ([run(inner) for inner in part], 0)[1] for part in rest]
                    tf.cond(tf.reduce_sum(variables[number]) > 0.0, *branches)
                else:
                    one, other = rest
                    getattr(variables[number], kind)(0.5 * source(*one) - 0.25 * source(*other))

            for command in commands:
                run(command)
            return results

        return step, variables, [(np.linspace(0.0, 1.0 + i, SIZE),) for i in range(3)]

    return make


@tiers.given_in_tiers(st.lists(PLAIN | CONDITIONS, min_size=1, max_size=8), first=3, every=40)
def test_reads_and_writes(commands):
    check(accesses(commands), ONE, split("batch"), steps=2)


@pytest.mark.full
@pytest.mark.usefixtures("real_conditions")
@tiers.given_in_tiers(st.lists(PLAIN | CONDITIONS, min_size=1, max_size=8), first=1, every=40)
def test_reads_and_writes_in_conditions_that_stay(commands):
    check(accesses(commands), ONE, split("batch"), steps=2)


# --- operations


UNARY = [tf.tanh, tf.sin, tf.abs, tf.square, tf.sigmoid, tf.zeros_like, tf.sign, lambda x: x * 2.0 - 1.0]
ON_AXES = [
    lambda x, a: tf.cumsum(x, a, reverse=True),
    lambda x, a: tf.reverse(x, [a]),
    lambda x, a: tf.roll(x, 2, a),
    lambda x, a: tf.sort(x, a),
    lambda x, a: tf.nn.softmax(x, a),
    lambda x, a: tf.reduce_sum(x, a, keepdims=True) + x,
    lambda x, a: x - tf.reduce_max(x, a, keepdims=True),
    lambda x, a: tf.gather(x, list(range(x.shape[a]))[::-1], axis=a),
    lambda x, a: tf.concat([x, x], a)[tuple(slice(x.shape[a]) if i == a else slice(None) for i in range(len(x.shape)))],
    lambda x, a: tf.pad(x, [[int(i == a)] * 2 for i in range(len(x.shape))]),
    lambda x, a: tf.stack(tf.unstack(x, axis=a), a),
    lambda x, a: tf.split(x, [1, x.shape[a] - 1], a)[1] if x.shape[a] > 1 else x,
    lambda x, a: tf.cast(tf.argmax(x, a), tf.float64)[..., None],
    lambda x, a: tf.math.reduce_std(x, a, keepdims=True) * x,
    lambda x, a: tf.repeat(x, 2, a),
]
JOINED = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    tf.maximum,
    lambda x, y: tf.where(x > y, x, y * 0.5),
    lambda x, y: tf.matmul(x, y, transpose_b=True) if len(x.shape) > 1 else x * y,
    lambda x, y: tf.tensordot(x, y, [[len(x.shape) - 1], [len(y.shape) - 1]]),
    lambda x, y: tf.math.unsorted_segment_sum(y, [i % 3 for i in range(y.shape[0])], 3),
    lambda x, y: tf.stack([x, y], 1),
]


def _step(rng, pool):
    """Append what a random operation makes of tensors of the pool."""
    x = rng.choice(pool)
    kind = rng.choice(["unary", "axis", "axis", "joined", "joined", "transpose", "reshape", "gradient"])
    if kind == "unary":
        y = rng.choice(UNARY)(x)
    elif kind == "axis" and x.shape.rank:
        y = rng.choice(ON_AXES)(x, rng.randrange(x.shape.rank))
    elif kind == "joined" and x.shape.rank:
        y = rng.choice(JOINED)(x, rng.choice([t for t in pool if t.shape == x.shape]))
    elif kind == "transpose":
        y = tf.transpose(x, rng.sample(range(x.shape.rank), x.shape.rank))
    elif kind == "gradient":
        y = tf.gradients(tf.reduce_sum(x**2), [pool[0]])[0]
    else:
        y = tf.reshape(x, rng.choice([[-1], [*x.shape.as_list(), 1], [x.shape[0] if x.shape.rank else 1, -1]]))
    if y is not None and 0 < math.prod(y.shape.as_list()) <= 4000 and y.shape.rank <= 4:
        pool.append(y / (1.0 + tf.reduce_max(tf.abs(y))) if kind in ("joined", "gradient") else y)


def operations(seed):
    """A step of some random operations, which its seed decides."""

    def make():
        w = tf.Variable(np.random.default_rng(1).standard_normal((7, 9)), name="w")

        @function
        def step(x):
            rng = random.Random(seed)
            pool = [x, w + 0.0, x + w]
            for _ in range(rng.randint(1, 10)):
                _step(rng, pool)
            w.assign(0.9 * w + 0.01 * tf.reduce_sum(pool[-1]))
            return pool[3:]

        return step, [w], [(np.random.default_rng(i).standard_normal((7, 9)),) for i in range(2)]

    return make


@pytest.mark.full
@tiers.given_in_tiers(st.tuples(st.integers(0, 10**6), st.sampled_from(["batch", "x/1"])), first=1, every=60)
def test_operations(case):
    seed, dimension = case
    check(operations(seed), ONE, split(dimension), tolerance=1e-8, steps=2)

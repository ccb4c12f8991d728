"""Random programs give what TensorFlow gives: reads and writes of variables in any order, and any operations."""

import math
import random

import numpy as np
import pytest
import tiers
from hypothesis import strategies as st
from import_oracle import BATCH, ONE, check, split

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


def on(x, axis, part):
    """A part of an axis."""
    return x[tuple(part if i == axis else slice(None) for i in range(x.shape.rank))]


def merge(x, axis):
    """An axis and the next one as one."""
    shape, axis = x.shape.as_list(), min(axis, x.shape.rank - 2)
    return x if axis < 0 else tf.reshape(x, [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]])


def halve(x, axis):
    """Two halves of an axis, as examples of a batch of two."""
    return tf.reshape(tf.stack(tf.split(x, 2, axis)), [2, -1]) if x.shape[axis] % 2 == 0 else x


UNARY = [tf.tanh, tf.sin, tf.abs, tf.square, tf.sigmoid, tf.zeros_like, tf.sign, lambda x: x * 2.0 - 1.0]
ON_AXES = [
    lambda x, a: tf.cumsum(x, a, reverse=True),
    lambda x, a: tf.reverse(x, [a]),
    lambda x, a: tf.roll(x, [2, -3], [a, 0]),
    lambda x, a: tf.sort(x, a),
    lambda x, a: tf.nn.softmax(x, a),
    lambda x, a: tf.reduce_sum(x, a, keepdims=True) + x,
    lambda x, a: x - tf.reduce_max(x, a, keepdims=True),
    lambda x, a: tf.gather(x, list(range(x.shape[a]))[::-1], axis=a),
    lambda x, a: tf.pad(x, [[int(i == a)] * 2 for i in range(len(x.shape))]),
    lambda x, a: tf.pad(x, [[0, int(i == a)] for i in range(len(x.shape))], "SYMMETRIC"),
    lambda x, a: tf.stack(tf.unstack(x, axis=a), a),
    lambda x, a: tf.split(x, [1, x.shape[a] - 1], a)[1] if x.shape[a] > 1 else x,
    lambda x, a: tf.concat(tf.split(x, [1, x.shape[a] - 1], a)[::-1], a),
    lambda x, a: tf.cast(tf.argmax(x, a), tf.float64)[..., None],
    lambda x, a: tf.math.reduce_std(x, a, keepdims=True) * x,
    lambda x, a: tf.repeat(x, 2, a),
    lambda x, a: tf.concat([on(x, a, slice(0, 0)), x], a),
    lambda x, a: x + tf.math.multiply_no_nan(tf.reduce_mean(on(x, a, slice(0, 0)), a, keepdims=True), 0.0 * x),
    halve,
]
PARTS = [slice(None, None, -1), slice(1, None, 2), slice(None, None, -2), slice(-3, None), slice(-24, 8), slice(0, -1)]
WHOLES = [  # of which a part is taken
    lambda x, a: x,
    lambda x, a: tf.concat([x, tf.sin(x)], a),
    lambda x, a: tf.concat([x, on(x, a, slice(None, None, -1))], a),
    lambda x, a: tf.repeat(x, 3, a),
    lambda x, a: tf.tile(x, [1 + (i == a) for i in range(x.shape.rank)]),
    merge,
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
    lambda x, y: tf.einsum("bii->bi", tf.einsum("bi,bj->bij", x, y)) if len(x.shape) == 2 else x,
]
OF_ROWS = [  # guarded conditions, loops, and shapes that depend on the data
    lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: x / tf.reduce_sum(x), lambda: x),
    lambda x: tf.switch_case(tf.cast(x[0] * 9.0, tf.int32) % 3, [lambda: x[::-1], lambda: 1.0 / (1.5 + x), lambda: x]),
    lambda x: tf.cond(x[0] > 0.0, lambda: tf.debugging.check_numerics(tf.sqrt(x[:1]), "") * x, lambda: x),
    lambda x: tf.cond(x[0] > 0.0, lambda: tf.linalg.inv(x[0] * tf.eye(2, dtype=x.dtype))[0, 0] * x, lambda: x),
    lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y[::-1]) + x), (0, x))[1],
    lambda x: tf.scan(lambda total, y: tf.tanh(total + y), x, reverse=True),
    lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0.0)) * x,
    lambda x: tf.stop_gradient(tf.gather(*tf.unique(tf.floor(x)))),
    lambda x: tf.scatter_nd(tf.where(x > 0.0), tf.boolean_mask(x, x > 0.0), tf.shape(x, out_type=tf.int64)),
    lambda x: tf.reduce_sum(tf.RaggedTensor.from_value_rowids(x, tf.range(x.shape[0]) // 2), 1),
    lambda x: tf.einsum("ii->i", x[:, None] * x),
]


def _step(rng, pool):
    """Append what a random operation makes of tensors of the pool."""
    x = rng.choice(pool)
    kind = rng.choice(
        ["unary", "axis", "axis", "part", "part", "joined", "joined", "rows", "transpose", "reshape", "gradient"]
    )
    if kind == "unary":
        y = rng.choice(UNARY)(x)
    elif kind == "axis" and x.shape.rank:
        y = rng.choice(ON_AXES)(x, rng.randrange(x.shape.rank))
    elif kind == "part" and x.shape.rank:
        whole = rng.choice(WHOLES)(x, rng.randrange(x.shape.rank))
        y = on(whole, rng.randrange(whole.shape.rank), rng.choice(PARTS))
    elif kind == "rows":
        y = rng.choice(OF_ROWS)(tf.reshape(x, [-1])[:24])
    elif kind == "joined" and x.shape.rank:
        y = rng.choice(JOINED)(x, rng.choice([t for t in pool if t.shape == x.shape]))
    elif kind == "transpose":
        y = tf.transpose(x, rng.sample(range(x.shape.rank), x.shape.rank))
    elif kind == "gradient":
        y = tf.gradients(tf.reduce_sum(x**2), [pool[0]])[0]
    else:
        y = tf.reshape(x, rng.choice([[-1], [*x.shape.as_list(), 1], [x.shape[0] if x.shape.rank else 1, -1]]))
    if y is not None and y.shape.is_fully_defined() and 0 < math.prod(y.shape.as_list()) <= 4000 and y.shape.rank <= 4:
        pool.append(y / (1.0 + tf.reduce_max(tf.abs(y))) if kind in ("joined", "gradient", "rows") else y)


def operations(seed, rows):
    """A step of some random operations, which its seed decides."""

    def make():
        w = tf.Variable(np.random.default_rng(1).standard_normal((rows, 9)), name="w")
        none = tf.Variable(np.zeros((0, 9)), name="none")

        @function
        def step(x):
            rng = random.Random(seed)
            pool = [x, w + 0.0, x + w, tf.concat([none, x], 0)]
            for _ in range(rng.randint(1, 10)):
                _step(rng, pool)
            w.assign(0.9 * w + 0.01 * tf.reduce_sum(pool[-1]))
            none.assign(2.0 * none)
            return pool[3:]

        return step, [w, none], [(np.random.default_rng(i).standard_normal((rows, 9)),) for i in range(3)]

    return make


SLOTS = {**BATCH, "slots": [3, 2, 1]}
# Of two rows, one of three devices has none
PLACES = st.sampled_from([(2, BATCH), *((n, split("batch")) for n in (7, 8, 24)), (7, split("x/1")), (13, SLOTS)])


@pytest.mark.full
@tiers.given_in_tiers(st.tuples(st.integers(0, 10**6), PLACES), first=1, every=60)
def test_operations(case):
    seed, (rows, place) = case
    check(operations(seed, rows), ONE, place, tolerance=1e-8)

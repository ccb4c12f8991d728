"""Functions of slices: called once for each kind of slice, and copied only where nothing but the slice enters."""

import functools

import numpy as np
import pytest

from mtf_hetero._compat import tf
from mtf_hetero._support.alike import Processor, forget_numbers, parallel
from mtf_hetero._support.ops import constant, reshape
from mtf_hetero._support.sameness import function_key
from mtf_hetero.ops.pooling import PoolWindows

DEVICES = [f"cpu:{number}" for number in range(4)]
SIZES = [3, 2, 3, 3]  # of the slices: two kinds


@tf.custom_gradient
def doubled(x):
    return 2 * x, lambda dy: 2 * dy


def on_the_host(x):
    with tf.device("cpu:1"):
        return x + 1


def after_another(x):
    with tf.control_dependencies([tf.negative(x)]):
        return tf.identity(x)


def drawn_twice(x):
    shuffled = tf.random.shuffle(x)
    return shuffled - shuffled + x


def outside_its_scope(x):
    with tf.name_scope("elsewhere/"):
        return x + 1


COPIED = {
    "one operation": lambda x: x + 1.0,
    "several": lambda x: tf.nn.relu(tf.reshape(tf.stack([x, x], 1), [-1])),
    "a tuple": lambda x: (x + 1, tf.reduce_sum(x)),
    "the argument itself": lambda x: x,
    "a shared constant": lambda x: x + constant(1, tf.float64),
    "a gradient": lambda x: tf.gradients(tf.nn.relu(x), [x])[0],
    "parts": lambda x: tuple(tf.unstack(x)[:2]),
}
CALLED = {
    "another device": on_the_host,
    "a control dependency": after_another,
    "a random operation": drawn_twice,
    "a gradient of its own": doubled,
    "another scope": outside_its_scope,
}


def run(function, xs, *others):
    """Return the results of `parallel`, the calls of the function, and its results without `parallel`."""
    calls = []

    def counted(*args):
        calls.append(args)
        return function(*args)

    slices = []
    for x, device in zip(xs, DEVICES):
        with tf.device(device):
            slices.append(tf.placeholder_with_default(x, x.shape))
    results = parallel(DEVICES, counted, slices, *others)
    expected = []
    for i, device in enumerate(DEVICES):
        with tf.device(device):
            expected.append(function(slices[i], *(other[i] for other in others)))
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": len(DEVICES)})) as session:
        found, expected = session.run([results, expected])
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    return results, len(calls)


@pytest.mark.parametrize("name", COPIED | CALLED)
def test_it_is_as_if_the_function_were_called_on_each_device(name):
    with tf.Graph().as_default():
        xs = [np.arange(size) + 10.0 * i for i, size in enumerate(SIZES)]
        results, calls = run((COPIED | CALLED)[name], xs)
        assert calls == (2 if name in COPIED else len(SIZES))
        if name != "another device":
            assert [tf.nest.flatten(y)[0].device for y in results] == [f"/device:CPU:{i}" for i in range(4)]


def test_what_a_function_takes_from_elsewhere_is_not_taken_for_its_argument():
    """It may be the slice of the first processor, or differ from processor to processor."""
    with tf.Graph().as_default():
        elsewhere = tf.constant([1.0, 2.0, 3.0], tf.float64) * 2
        _, calls = run(lambda x: x * elsewhere, [np.ones(3)] * 4)
        assert calls == 4


def test_the_same_tensor_twice_is_another_kind():
    with tf.Graph().as_default():
        x, y = (tf.placeholder_with_default(np.full(3, value), [3]) for value in (2.0, 5.0))
        results = parallel(DEVICES[:3], tf.subtract, [x, x, x], [x, y, y])
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
            assert [value[0] for value in session.run(results)] == [0, -3, -3]


def test_arguments_that_are_no_tensors_are_compared():
    with tf.Graph().as_default():
        _, calls = run(lambda x, n: x * n, [np.ones(2)] * 4, [1, 2, 1, 1])
        assert calls == 2
        _, calls = run(lambda x, n: x * n[0], [np.ones(2)] * 4, [[1], [2], [1], [1]])
        assert calls == 4  # a list is not compared
        alike = [Processor(i, kind) for i, kind in enumerate("aaba")]
        _, calls = run(lambda x, pnum: x * float(pnum == 2), [np.ones(2)] * 4, alike)
        assert calls == 2
        _, calls = run(lambda x, pnum: x * float(pnum), [np.ones(2)] * 4, [Processor(i) for i in range(4)])
        assert calls == 4


def test_a_known_value_is_not_taken_for_another():
    """A function may look at it: a constant's kind is the constant."""

    def repeat(x):
        return tf.fill([int(tf.get_static_value(x))], 1.0)

    with tf.Graph().as_default():
        results = parallel(DEVICES, repeat, [tf.constant(n) for n in (1, 2, 3, 2)])
        assert [y.shape.as_list() for y in results] == [[1], [2], [3], [2]]


def test_within_a_function_and_eagerly():
    @tf.function
    def total(x):
        return sum(parallel(DEVICES, lambda y: y + 1, [x[:2], x[1:3], x[:1], x[2:]])[:2])

    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
        assert session.run(total(tf.constant([1.0, 2, 3, 4]))).tolist() == [5, 7]


def in_another_function():
    return lambda x: x + 1


def windows(kind):
    return PoolWindows((6,), (2,), (2,), (0,), (3,), kind)


SAME = {
    "a function of TensorFlow": lambda: tf.nn.relu,
    "one of this package": lambda: reshape,
    "arguments": lambda: functools.partial(tf.nn.softmax, axis=0),
    "arguments in lists": lambda: functools.partial(tf.transpose, perm=[1, 0]),
    "a method of a frozen dataclass": lambda: windows("max").pool,
}
DIFFERENT = {
    "another function": (tf.nn.relu, tf.nn.elu),
    "another argument": [functools.partial(tf.nn.softmax, axis=axis) for axis in (0, 1)],
    "an argument more": (tf.nn.softmax, functools.partial(tf.nn.softmax, axis=-1)),
    "another type": [functools.partial(tf.fill, value=value) for value in (1, 1.0)],
    "another sign of zero": [functools.partial(tf.fill, value=value) for value in (0.0, -0.0)],
    "another field": [windows(kind).pool for kind in ("max", "avg")],
    "another method": [windows("max").inside, windows("max").outputs_touching],
}
UNKNOWN = {
    "a user's": on_the_host,
    "one within a function": in_another_function(),
    "with a tensor": functools.partial(tf.add, np.ones(2)),
    "a method of what may change": np.random.default_rng(0).normal,
}


@pytest.mark.parametrize("name", SAME)
def test_functions_that_compute_the_same_are_known(name):
    assert function_key(SAME[name]()) == function_key(SAME[name]()) is not None


@pytest.mark.parametrize("name", DIFFERENT)
def test_functions_that_compute_something_else_are_told_apart(name):
    one, other = map(function_key, DIFFERENT[name])
    assert None not in (one, other) and one != other


@pytest.mark.parametrize("name", UNKNOWN)
def test_functions_that_may_depend_on_more_are_not_compared(name):
    assert function_key(UNKNOWN[name]) is None


@pytest.mark.parametrize(
    "function", [tf.nn.relu, functools.partial(tf.nn.softmax, axis=0), functools.partial(tf.pad, paddings=[[1, 2]])]
)
def test_what_a_known_function_made_is_copied_in_later_calls(function):
    """Each call gives what the function gives, whatever was made before, and other kinds are made anew."""
    with tf.Graph().as_default(), tf.Session() as session:
        for sizes in ([3, 2], [3, 2], [4, 3]):
            arrays = [np.arange(size) - 1.5 for size in sizes]
            slices = [tf.placeholder_with_default(array, array.shape) for array in arrays]
            found, expected = session.run([parallel(["cpu:0", "cpu:0"], function, slices), list(map(function, slices))])
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b)
        names = [op.name for op in tf.get_default_graph().get_operations()]
        assert len([name for name in names if name.startswith("parallel") and name.endswith("paddings")]) <= 3


def test_processors_are_of_one_kind_within_a_call_alone():
    with tf.Graph().as_default():
        for slices in ([1, 2], [3, 4]):
            numbers = [Processor(slice_, "alike") for slice_ in slices]
            results = parallel(["cpu:0", "cpu:0"], functools.partial(tf.fill, [2]), numbers)
            assert [tf.get_static_value(y)[0] for y in results] == [slices[0]] * 2


def test_one_number_is_worked_out_once_of_the_same_numbers():
    with tf.Graph().as_default():
        x, y = (tf.placeholder_with_default(value, []) for value in (2.0, 3.0))
        first, second, other = (parallel(DEVICES, tf.pow, [x] * 4, [z] * 4) for z in (y, y, x))
        assert [a is b for a, b in zip(first, second, strict=True)] == [False, True, True, True]
        assert not set(map(id, other)) & set(map(id, [*first, *second]))
        assert second[2].device == "/device:CPU:2"
        forget_numbers()  # as each lowering does: a step's messages are its own
        assert not set(map(id, parallel(DEVICES, tf.pow, [x] * 4, [y] * 4))) & set(map(id, first))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
            assert session.run([first, second, other]) == [[8.0] * 4, [8.0] * 4, [4.0] * 4]

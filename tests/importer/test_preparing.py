"""Operations on arguments alone that no device can divide are done by this process before each step."""

import numpy as np
import pytest
from import_oracle import BATCH, ONE, check
from tiers import on_workers

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.importer.tracing import Traced

WORDS = ["a", "bc", "def", "what else"]
SPLIT_WORDS = tf.compat.v2.strings.split


def texts(steps=3, count=14, seed=0):
    """Texts, numbers and classes of each step; the last step has fewer."""
    rng = np.random.default_rng(seed)
    sizes = [*[count] * (steps - 1), count - 5]
    return [
        (np.array(WORDS)[rng.integers(0, 4, (n, 3))], rng.standard_normal((n, 12)), rng.integers(0, 5, n))
        for n in sizes
    ]


def table(default=0):
    keys = tf.constant(WORDS[:3])
    initializer = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1, 2, 3], tf.int64))
    return tf.lookup.StaticHashTable(initializer, default)


def lengths(words):
    return tf.strings.length(words)


def looked_up():
    held = table()
    return lambda words: held.lookup(words)


def hashed(words):
    return tf.strings.to_hash_bucket_fast(tf.strings.lower(words) + "!", 7)


def joined(words):
    """A text of each example, cut into a number of words that the data decide."""
    split = SPLIT_WORDS(tf.strings.reduce_join(words, 1, separator=" "))
    return tf.strings.to_hash_bucket_fast(split, 7).to_tensor(shape=[None, 4])


def counted(words):
    """A number that depends on the shape of a tensor, which depends on the data."""
    different, numbers = tf.unique(tf.reshape(words, [-1]))
    return tf.reshape(numbers, [-1, 3]) + tf.size(different)


def training(prepare):
    """A step on an embedding of what is prepared, and its variables."""
    embedding = tf.Variable(np.random.default_rng(1).standard_normal((9, 12)), name="embedding")
    kernel = tf.Variable(np.random.default_rng(2).standard_normal((12, 5)), name="kernel")

    def step(words, x, y):
        with tf.GradientTape() as tape:
            rows = tf.reduce_sum(tf.gather(embedding, prepare(words) % 9), 1)
            logits = (rows * x) @ kernel
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        for variable, gradient in zip((embedding, kernel), tape.gradient(loss, (embedding, kernel)), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    return step, [embedding, kernel]


PREPARED = {
    "lengths": lambda: lengths,
    "looked up": looked_up,
    "hashed": lambda: hashed,
    "joined": lambda: joined,
    "counted": lambda: counted,
}


@pytest.mark.parametrize("name", PREPARED)
def test_strings_tables_and_shapes_that_depend_on_the_data(name):
    divided = check(lambda: (*training(PREPARED[name]()), texts()), ONE, BATCH)
    assert divided[1].undivided.share < 0.05  # updates of variables that are whole


def test_texts_of_other_lengths_are_of_the_same_kind():
    traced = Traced(lengths)
    assert traced.kind((np.array(["a", "b"]),)) == traced.kind((tf.constant(["abc", ""]),))
    assert traced.kind((np.array(["a", "b"]),)) != traced.kind((np.array(["abc"]),))


@on_workers
def test_what_is_prepared_goes_to_workers(workers):
    place = {"workers": workers.addresses, "layout": "batch", "list_speed": [4, 2, 1]}
    check(lambda: (*training(looked_up()), texts()), place)


def test_what_is_prepared_is_a_result_too():
    """And what devices have is prepared again where it is needed: the numbers that are not negative."""

    def step(x, words):
        scaled = x * 2.0
        places = tf.where(scaled >= 0.0)
        return tf.shape(places), tf.strings.length(words), tf.reduce_sum(scaled), tf.gather_nd(scaled, places[:3])

    inputs = [(x, words) for words, x, _ in texts()]
    check(lambda: (step, [], inputs), ONE, BATCH)


def test_inputs_of_which_the_devices_have_none():
    w = tf.Variable([2.0, 3.0, 4.0], name="w")

    def step(words):
        return tf.cast(tf.strings.length(words), tf.float32) * w

    check(lambda: (step, [w], [(words,) for words, *_ in texts()]), ONE, BATCH)


MESSAGES = {
    "weights": "Where.*gives a tensor whose shape depends on the data",
    "sizes": "StringLength.*gives a tensor whose shape depends on the data",
    "loop": "While.*works on strings",
    "written": "LookupTableInsertV2.*reads a resource",
    "text": "returns strings",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_needs_more_than_arguments_is_refused(name):
    w = tf.Variable(np.ones((12, 5)), name="w")
    held = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    def step(words, x, y):
        if name == "weights":
            return tf.boolean_mask(x, x[:, 0] > 0.0) @ w
        if name == "sizes":
            return x @ w, tf.gather(w, tf.strings.length(SPLIT_WORDS(words[:, 0]).to_tensor()))
        if name == "loop":
            return tf.while_loop(
                lambda total: tf.reduce_sum(total) < 9.0,
                lambda total: total + tf.cast(tf.strings.length(words)[0, 0], tf.float64),
                [tf.reduce_sum(x @ w)],
            )
        if name == "written":
            held.insert(words[:, 0], y)
            return held.lookup(words), x @ w
        return words, x @ w

    with pytest.raises(NotImplementedError, match=MESSAGES[name]):
        mtf_hetero.function(step, texts()[0], **BATCH)


def test_a_shape_that_only_seems_to_be_fixed():
    """Each text of the first step is of one part, some of the next are of two."""
    w = tf.Variable(np.ones(5), name="w")

    def step(words):
        numbers = tf.strings.length(SPLIT_WORDS(words, ";").to_tensor())
        return tf.cast(numbers, tf.float64)[:, :1] * w

    def whole(words):
        return tf.strings.length(SPLIT_WORDS(words, ";").to_tensor())

    first, second = np.array(["ab", "c"]), np.array(["a;b", "c"])
    with mtf_hetero.function(step, (first,), **ONE) as divided:
        np.testing.assert_array_equal(divided(first), np.array([[2.0], [1.0]]) * np.ones(5))
        np.testing.assert_array_equal(divided(second), np.ones((2, 5)))
    with mtf_hetero.function(whole, (first,), **ONE) as divided:
        np.testing.assert_array_equal(divided(first), [[2], [1]])
        with pytest.raises(NotImplementedError, match="StringLength.* works on strings"):
            divided(second)


def test_a_shape_that_is_read_beside_values_that_nothing_needs():
    w = tf.Variable(1.0, name="w")

    def step(words):
        numbers = tf.cast(tf.strings.length(SPLIT_WORDS(words, ";").to_tensor()), tf.float32)
        _ = numbers * w
        return tf.shape(numbers)[1] + tf.cast(w, tf.int32)

    first, second = np.array(["ab", "c"]), np.array(["a;b", "c"])
    with mtf_hetero.function(step, (first,), **ONE) as divided:
        assert divided(first) == 2
        with pytest.raises(NotImplementedError, match="works on strings"):
            divided(second)

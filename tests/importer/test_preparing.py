"""Operations on arguments alone that no device can divide are done by this process before each step."""

import numpy as np
import pytest
import tiers
from import_oracle import BATCH, ONE, check

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


def looked_up():
    """Lengths, numbers of a table, and hashes."""
    held = table()

    def prepare(words):
        hashes = tf.strings.to_hash_bucket_fast(tf.strings.lower(words) + "!", 7)
        return tf.cast(tf.strings.length(words), tf.int64) + held.lookup(words) + hashes

    return prepare


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


PREPARED = {"looked up": looked_up, "joined": lambda: joined, "counted": lambda: counted}


@tiers.parametrize("name", PREPARED, first=["looked up", "counted"])
def test_strings_tables_and_shapes_that_depend_on_the_data(name):
    divided = check(lambda: (*training(PREPARED[name]()), texts()), ONE, BATCH)
    assert divided[1].undivided.share < 0.05  # updates of variables that are whole


def test_texts_of_other_lengths_are_of_the_same_kind():
    traced = Traced(tf.strings.length)
    assert traced.kind((np.array(["a", "b"]),)) == traced.kind((tf.constant(["abc", ""]),))
    assert traced.kind((np.array(["a", "b"]),)) != traced.kind((np.array(["abc"]),))


@tiers.on_workers
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


W, HELD = tf.Variable(np.ones((12, 5)), name="w"), tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
REFUSED = {  # {name: (step, message)}
    "weights": (
        lambda words, x, y: tf.boolean_mask(x, x[:, 0] > 0.0) @ W,
        "Where.*gives a tensor whose shape depends on the data",
    ),
    "sizes": (
        lambda words, x, y: (x @ W, tf.gather(W, tf.strings.length(SPLIT_WORDS(words[:, 0]).to_tensor()))),
        "StringLength.*gives a tensor whose shape depends on the data",
    ),
    "loop": (
        lambda words, x, y: tf.while_loop(
            lambda total: total < 9.0,
            lambda total: total + tf.cast(tf.strings.length(words)[0, 0], tf.float64),
            [tf.reduce_sum(x @ W)],
        ),
        "While.*works on strings",
    ),
    "written": (
        lambda words, x, y: (HELD.insert(words[:, 0], y), HELD.lookup(words), x @ W)[1:],
        "LookupTableInsertV2.*reads a resource",
    ),
    "text": (lambda words, x, y: (words, x @ W), "returns strings"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_more_than_arguments_is_refused(name):
    step, message = REFUSED[name]
    with pytest.raises(NotImplementedError, match=message):
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


def sampling(loss, label, sampled=None):
    """Training by a loss on a sample of the classes, and the inputs of its steps."""
    w, b = tf.Variable(np.ones((11, 6), "float32"), name="w"), tf.Variable(tf.zeros(11), name="b")
    rng = np.random.default_rng(0)
    inputs = [(rng.standard_normal((14, 6)).astype("float32"), rng.integers(0, 5, (14, 1))) for _ in range(3)]

    def step(x, y, *values):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(w, b, label(y, b), x, 4, 11, sampled_values=values[0] if values else None))
        for variable, gradient in zip((w, b), tape.gradient(value, (w, b)), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return value

    return step, [w, b], [(*x, sampled(x[1])) if sampled else x for x in inputs]


def labels(y, b):
    return tf.cast(y, tf.int64)


def labels_of_weights(y, b):
    return tf.cast(y, tf.int64) + tf.cast(b[0] * 0.0, tf.int64)


LOSSES = [tf.nn.nce_loss, tf.nn.sampled_softmax_loss]


@tiers.parametrize("loss", LOSSES, first=LOSSES[1:])
def test_classes_are_sampled_as_by_tensorflow(loss, seeded):
    check(lambda: sampling(loss, labels), ONE, BATCH, tolerance=1e-6)
    step, _, inputs = sampling(loss, labels)
    with mtf_hetero.function(step, inputs[0], **BATCH, verify=True) as divided:
        divided(*inputs[0])
        assert "not compared" in divided.verified


def test_labels_that_the_step_computes_are_sampled_for_before_it(seeded):
    step, _, inputs = sampling(tf.nn.nce_loss, labels_of_weights)
    with pytest.raises(NotImplementedError, match="give the loss sampled_values"):
        mtf_hetero.function(step, inputs[0], **BATCH)

    def sampled(y):
        return tf.random.log_uniform_candidate_sampler(y.astype("int64"), 1, 4, unique=True, range_max=11)

    check(lambda: sampling(tf.nn.nce_loss, labels_of_weights, sampled), ONE, BATCH, tolerance=1e-6)

"""A mean with its variance becomes one operation, and a step with batch norm has the fewest exchanges."""

import collections

import keras
import numpy as np
import pytest
from apart import A, B
from import_oracle import BATCH, check, rows, split
from steps import L

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.divided import Traced
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.mesh import traffic

X = np.random.default_rng(0).standard_normal((7, 8, 8)) + 1000.0


def by_hand(x):
    mean = tf.reduce_mean(x, [1, 2])
    return tf.reduce_mean(tf.square(tf.reshape(mean, [-1, 1, 1]) - x), [2, 1]), mean


JOINED = {
    "moments": lambda x: tf.nn.moments(x, [0, 1]),
    "moments of rows": lambda x: tf.nn.moments(x, [-1], keepdims=True),
    "variance": lambda x: tf.math.reduce_variance(x, [0, 2]),
    "deviation": lambda x: tf.math.reduce_std(x, -1, keepdims=True) + tf.reduce_mean(x, -1, keepdims=True),
    "by hand": by_hand,
    "in single precision": lambda x: tf.nn.moments(tf.cast(x, tf.float16), [0]),
}
SEPARATE = {
    "of others": lambda x: tf.reduce_mean(tf.math.squared_difference(x, tf.reduce_mean(2.0 * x, 0, True)), 0),
    "over other axes": lambda x: tf.reduce_mean(tf.math.squared_difference(x, tf.reduce_mean(x, 1, True)), 0),
    "along another axis": lambda x: tf.reduce_mean(tf.math.squared_difference(x, tf.reduce_mean(x, 2)[:, None]), 2),
    "a sum": lambda x: tf.reduce_sum(tf.math.squared_difference(x, tf.reduce_mean(x, 0, True)), 0),
    "to another power": lambda x: tf.reduce_mean(tf.abs(x - tf.reduce_mean(x, 0, True)), 0),
    "of one value": lambda x: tf.nn.moments(x[:1], [0]),
    "in half precision": lambda x: tf.math.reduce_variance(tf.cast(x, tf.float16), 0),
}


def kinds(step):
    program = Traced(tf.compat.v2.function(step)).program((X,))
    return collections.Counter(op.type for op in program.operations)


@pytest.mark.parametrize("step", JOINED.values(), ids=JOINED)
def test_a_mean_and_its_variance_are_one_operation(step):
    found = kinds(step)
    assert found["Moments"] == 1
    assert not found.keys() & {"Mean", "SquaredDifference", "Square"}


@pytest.mark.parametrize("step", SEPARATE.values(), ids=SEPARATE)
def test_other_means_are_left_alone(step):
    found = kinds(step)
    assert found["Mean"] >= 1 and not found["Moments"]


def test_they_are_tensorflow_s_on_every_layout():
    """With gradients through the mean and the variance, of numbers whose mean is large."""

    def make():
        w = tf.Variable(np.random.default_rng(1).standard_normal((12, 6)), name="w")

        @tf.compat.v2.function
        def step(x, y):
            with tf.GradientTape() as tape:
                h = x @ w + 1000.0
                both = [*tf.nn.moments(h, [0]), tf.math.reduce_variance(h, 1), tf.math.reduce_variance(h)]
                loss = tf.add_n([tf.reduce_sum(tf.sqrt(value)) for value in both])
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return both

        return step, [w], rows()

    check(make, BATCH, split("w/1"), split("x/1"))


def sends(step, inputs, devices):
    """Return the traffic of a step on two workers that split the batch."""
    program = Traced(step).program(inputs)
    with tf.Graph().as_default():
        step = step_lib.build(program)
        layout = LAYOUTS["batch"](step.graph, mesh_shape="all:2", shares={"all": [2, 1]})
        lowering = mtf_hetero.Lowering(step.graph, {step.mesh: mtf_hetero.UnevenMeshImpl.from_layout(layout, devices)})
        fetches = [lowering.export_to_tf_tensor(y) for y in step.results]
        fetches.append(tf.group([lowering.lowered_operation(op) for op in step.updates]))
        traffic.arrange(fetches)
        return traffic.sends(fetches)


def training(model):
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return tf.compat.v2.function(lambda data: model.train_step(data), autograph=False)


def test_a_batch_norm_has_two_exchanges():
    """One forward and one backward; the gradients of all weights and the loss go together."""
    blocks = [layer for _ in range(3) for layer in (L.Conv2D(5, 3, padding="same"), L.BatchNormalization())]
    model = keras.Sequential([keras.Input((8, 8, 3)), *blocks, L.GlobalAveragePooling2D(), L.Dense(5)])
    data = np.ones((14, 8, 8, 3), np.float32), np.ones((14, 5), np.float32)
    sent = collections.Counter((send.source, send.target) for send in sends(training(model), (data,), [A, B]))
    assert sent[A, B] == sent[B, A] == 2 * 3 + 1


@pytest.mark.full
def test_the_gradients_of_a_recurrent_layer_are_summed_over_its_steps_before_they_are_sent():
    model = keras.Sequential([keras.Input((6, 3)), L.LSTM(5), L.Dense(4)])
    data = np.ones((7, 6, 3), np.float32), np.ones((7, 4), np.float32)
    (sent,) = (send for send in sends(training(model), (data,), [A, B]) if (send.source, send.target) == (B, A))
    assert sent.bytes == 4 * (model.count_params() + 1)  # and the loss


def embedding(words):
    """A step that trains a table by the gradients of the rows that it looks up, some of them twice."""

    def make():
        table = tf.Variable(np.random.default_rng(1).standard_normal((words, 6)), name="table")

        @tf.compat.v2.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(tf.gather(table, y) - x[:, :6]))
            gradient = tape.gradient(loss, table)
            table.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            table.scatter_add(tf.IndexedSlices(0.01 * gradient.values, gradient.indices))
            return loss

        return step, [table], rows()

    return make


@pytest.mark.parametrize("words", [11, 100])
def test_gradients_of_embeddings_on_every_layout(words):
    check(embedding(words), BATCH, split("table/0"), split("table/1"))


def test_a_large_vocabulary_sends_rows():
    step, _, inputs = embedding(1000)()
    found = sends(step, inputs[0], [A, B])
    assert sum(send.bytes for send in found) < 8 * 6 * 1000 / 4

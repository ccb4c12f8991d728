"""Steps of TensorFlow's other libraries, as their users write them, give what TensorFlow gives."""

import contextlib

import numpy as np
import pytest
from import_oracle import BATCH, ONE, Made, arrays, check, ids, same

import mtf_hetero
from mtf_hetero import tf

function = tf.compat.v2.function
pytestmark = pytest.mark.full


@pytest.fixture
def tfp():
    import tensorflow_probability  # in seconds, for these tests alone

    return tensorflow_probability


@pytest.fixture
def keras_2():
    import tf_keras  # as above

    tf_keras.backend.set_floatx("float64")
    yield tf_keras
    tf_keras.backend.set_floatx("float32")


def numbers(*shape, steps=3):
    return [(np.random.default_rng(step).standard_normal(shape),) for step in range(steps)]


def test_random_numbers_of_which_tensorflow_has_several_implementations(tfp):
    """Its optimizer of graphs chooses that of CPUs, whose numbers are others."""

    def make() -> Made:
        @function
        def step(x):
            seeds = tf.random.split([1, 2], 3)
            shape = tf.abs(x) + 0.1
            gamma = tfp.distributions.Gamma(shape, 2.0).sample(seed=seeds[0])
            return (
                gamma,
                tfp.distributions.Beta(shape, 1.0).sample(2, seed=seeds[1]),
                tfp.distributions.Poisson(shape).sample(seed=seeds[2]),
            )

        return step, [], numbers(14, 3)

    check(make, ONE, BATCH)


def test_a_normal_distribution_whose_examples_share_a_matrix(tfp):
    """The matrix has no batch, what it is solved for has one."""

    def make() -> Made:
        lower = tf.Variable(np.eye(6) + np.tril(np.ones((6, 6))), name="lower")
        mean = tf.Variable(np.zeros(6), name="mean")

        @function
        def step(x):
            with tf.GradientTape() as tape:
                loss = -tf.reduce_mean(tfp.distributions.MultivariateNormalTriL(mean, lower).log_prob(x))
            for variable, gradient in zip((lower, mean), tape.gradient(loss, (lower, mean))):
                variable.assign_sub(0.1 * gradient)
            return loss

        return step, [lower, mean], numbers(14, 6)

    _, divided = check(make, ONE, BATCH)
    assert "MatrixTriangularSolve" not in {entry.kind for entry in divided.undivided.entries}


@pytest.mark.filterwarnings("ignore:TensorFloat-32")
def test_a_sampler_that_reads_lists_by_numbers_of_the_data(tfp):
    def make() -> Made:
        state = tf.Variable(np.random.default_rng(3).standard_normal((14, 3)), name="state")

        @function
        def step(x):
            def log_density(z):
                return -0.5 * tf.reduce_sum((z - tf.reduce_mean(x, 0)) ** 2, -1)

            kernel = tfp.mcmc.NoUTurnSampler(log_density, step_size=tf.constant(0.3, tf.float64), max_tree_depth=3)
            after, _ = kernel.one_step(state, kernel.bootstrap_results(state), seed=[1, 2])
            state.assign(after)
            return tf.reduce_mean(after)

        return step, [state], numbers(14, 3)

    check(make, BATCH)


OPTIMIZERS = {
    "Adam": lambda optimizers: optimizers.Adam(),
    "legacy Adam": lambda optimizers: optimizers.legacy.Adam(),
    "RMSprop": lambda optimizers: optimizers.RMSprop(momentum=0.5, centered=True),
}
MODELS = [*((name, False) for name in OPTIMIZERS), ("Adam", True)]


@pytest.mark.parametrize(("name", "recurrent"), MODELS)
def test_a_model_of_keras_2_that_the_step_builds(name, recurrent, keras_2):
    """Its weights, its optimizer's variables and its metrics are made by the first trace; words come several times."""

    def train(run):
        keras_2.utils.set_random_seed(1)
        layers = keras_2.layers
        model = keras_2.Sequential(
            [
                layers.Embedding(11, 9, mask_zero=True),
                layers.LSTM(7) if recurrent else layers.GlobalAveragePooling1D(),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(5),
            ]
        )
        optimizer = OPTIMIZERS[name](keras_2.optimizers)
        model.compile(optimizer, keras_2.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
        inputs = ids()
        with run(function(lambda x, y: model.train_step((x, y))), inputs[0]) as step:
            logs = [array for x in inputs for array in arrays(step(*x))]
        optimizer = model.optimizer.variables
        return [*logs, *model.get_weights(), *arrays(optimizer() if callable(optimizer) else optimizer)]

    expected = train(lambda step, inputs: contextlib.nullcontext(step))
    same(train(lambda step, inputs: mtf_hetero.function(step, inputs, **BATCH)), expected, 1e-9)

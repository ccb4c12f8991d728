"""More steps that use no Keras: filters over time, chains, adversaries, and draws."""

from typing import Any

import numpy as np

from benchmarks.programs.loops import SOURCE, descend, function, normal, variable
from benchmarks.programs.registry import BATCH, Loop, program
from mtf_hetero import tf


@program("loops", source=SOURCE)
def kalman_filter() -> Loop:
    """Return a Kalman filter over several series by tf.scan; its likelihood teaches the dynamics."""
    dynamics = tf.Variable(0.9 * np.eye(3) + 0.05 * normal(3, 3), name="dynamics")
    noise, emission = variable("noise", scale=0.1), tf.constant(normal(2, 3, seed=5))
    eye = tf.eye(3, dtype=tf.float64)

    def update(state: Any, y: Any) -> Any:
        mean, covariance, _ = state
        mean = tf.linalg.matvec(dynamics, mean)
        covariance = dynamics @ covariance @ tf.transpose(dynamics) + tf.exp(noise) * eye
        spread = emission @ covariance @ tf.transpose(emission) + 0.5 * tf.eye(2, dtype=tf.float64)
        gain = tf.transpose(tf.linalg.solve(spread, emission @ covariance), [0, 2, 1])
        error = y - tf.linalg.matvec(emission, mean)
        solved = tf.linalg.solve(spread, error[..., None])[..., 0]
        likelihood = -0.5 * (tf.reduce_sum(error * solved, -1) + tf.linalg.logdet(spread))
        covariance = (eye - gain @ emission) @ covariance
        return mean + tf.linalg.matvec(gain, error), covariance, likelihood

    @function
    def step(series: Any) -> Any:
        with tf.GradientTape() as tape:
            start = tf.zeros((BATCH, 3), tf.float64), tf.eye(3, batch_shape=[BATCH], dtype=tf.float64)
            start = (*start, tf.zeros((BATCH,), tf.float64))
            means, _, likelihoods = tf.scan(update, tf.transpose(series, [1, 0, 2]), initializer=start)
            loss = -tf.reduce_mean(likelihoods)
        descend(tape, loss, [dynamics, noise], 0.01)
        return loss, means[-1]

    return Loop(step, (normal(BATCH, 5, 2),))


@program("loops", source=SOURCE)
def hidden_markov_model() -> Loop:
    """Return the forward algorithm of a hidden Markov chain in logarithms, over sequences of symbols."""
    start, moves, symbols = variable("start", 5), variable("moves", 5, 5), variable("symbols", 5, 9)

    @function
    def step(sequences: Any) -> Any:
        with tf.GradientTape() as tape:
            emitted = tf.gather(tf.transpose(tf.nn.log_softmax(symbols, 1)), sequences)
            chance = tf.nn.log_softmax(start) + emitted[:, 0]
            for i in tf.range(1, 7):
                chance = tf.reduce_logsumexp(chance[:, :, None] + tf.nn.log_softmax(moves, 1), axis=1)
                chance += tf.gather(emitted, i, axis=1)
            loss = -tf.reduce_mean(tf.reduce_logsumexp(chance, axis=1))
        descend(tape, loss, [start, moves, symbols])
        return loss

    return Loop(step, (np.random.default_rng(4).integers(0, 9, (BATCH, 7)),))


@program("loops", source=SOURCE)
def gradient_penalty() -> Loop:
    """Return a critic of Wasserstein's distance with a penalty on its gradient, and draws of a stateful generator."""
    weights = [variable("w", 6, 14, scale=0.3), variable("v", 14, 1, scale=0.3, seed=3)]
    maker, seed = variable("maker", 4, 6, scale=0.3, seed=4), tf.Variable([1, 0], dtype=tf.int64, name="seed")

    def critic(x: Any) -> Any:
        return tf.nn.softplus(x @ weights[0]) @ weights[1]

    @function
    def step(real: Any) -> Any:
        seed.assign_add([0, 1])
        noise = tf.random.stateless_normal((BATCH, 4), seed, dtype=tf.float64)
        share = tf.random.stateless_uniform((BATCH, 1), seed + 7, dtype=tf.float64)
        with tf.GradientTape(persistent=True) as tape:
            made = tf.tanh(noise @ maker)
            between = share * real + (1 - share) * made
            with tf.GradientTape() as inner:
                inner.watch(between)
                judged = critic(between)
            norm = tf.norm(inner.gradient(judged, between), axis=1)
            distance = tf.reduce_mean(critic(made)) - tf.reduce_mean(critic(real))
            loss, fooled = distance + 10.0 * tf.reduce_mean((norm - 1) ** 2), -tf.reduce_mean(critic(made))
        descend(tape, loss, weights)
        descend(tape, fooled, [maker])
        return loss

    return Loop(step, (normal(BATCH, 6),))


@program("loops", source=SOURCE)
def langevin_draws() -> Loop:
    """Draws of a posterior by Langevin's dynamics, chain by chain."""
    chains, seed = variable("chains", BATCH, 5), tf.Variable([3, 0], dtype=tf.int32, name="seed")

    @function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            error = y - tf.einsum("cd,nd->cn", chains, x)
            density = -0.5 * tf.reduce_sum(error**2, 1) - 0.5 * tf.reduce_sum(chains**2, 1)
            total = tf.reduce_sum(density)
        seed.assign_add([0, 1])
        noise = tf.random.stateless_normal((BATCH, 5), seed, dtype=tf.float64)
        moved = chains + 0.005 * tape.gradient(total, chains) + 0.1 * noise
        accepted = tf.random.stateless_uniform((BATCH, 1), seed + 5, dtype=tf.float64) < 0.9
        chains.assign(tf.compat.v2.where(accepted, moved, chains))
        return density

    return Loop(step, (normal(21, 5), normal(21, seed=5)))


@program("loops", source=SOURCE)
def sinkhorn_transport() -> Loop:
    """Optimal transport between clouds of points, of which a network makes one, by Sinkhorn's iteration."""
    w, v = variable("w", 2, 14, scale=0.5), variable("v", 14, 2, scale=0.5)

    @function
    def step(given: Any, wanted: Any) -> Any:
        with tf.GradientTape() as tape:
            points = given + tf.tanh(given @ w) @ v
            cost = tf.reduce_sum((points[:, :, None] - wanted[:, None]) ** 2, -1)
            f, g = tf.zeros((BATCH, 6), tf.float64), tf.zeros((BATCH, 6), tf.float64)
            for _ in tf.range(10):
                f = -0.5 * tf.reduce_logsumexp((g[:, None] - cost) / 0.5, axis=2)
                g = -0.5 * tf.reduce_logsumexp((f[:, :, None] - cost) / 0.5, axis=1)
            plan = tf.exp((f[:, :, None] + g[:, None] - cost) / 0.5)
            loss = tf.reduce_mean(tf.reduce_sum(tf.stop_gradient(plan) * cost, [1, 2]))
        descend(tape, loss, [w, v])
        return loss

    return Loop(step, (normal(BATCH, 6, 2), normal(BATCH, 6, 2, seed=6)))


@program("loops", source=SOURCE)
def echo_state_ridge() -> Loop:
    """Return a reservoir that is not trained, and ridge regression on its states by a decomposition."""
    reservoir, head = variable("reservoir", 14, 14, scale=0.2), variable("head", 14, 3)
    moments = tf.Variable(np.eye(14), name="moments")

    @function
    def step(x: Any, y: Any) -> Any:
        state = tf.zeros((BATCH, 14), tf.float64)
        for i in range(5):
            state = tf.tanh(state @ reservoir + tf.tile(x[:, i], [1, 2]))
        moments.assign(0.9 * moments + tf.transpose(state) @ state)
        values, vectors = tf.linalg.eigh(moments)
        inverse = vectors @ tf.linalg.diag(1 / (values + 0.1)) @ tf.transpose(vectors)
        head.assign(inverse @ (tf.transpose(state) @ y))
        return tf.reduce_mean((state @ head - y) ** 2), tf.sort(values)

    return Loop(step, (normal(BATCH, 5, 7), normal(BATCH, 3, seed=8)))

"""Updates of reinforcement learning, as in keras.io's folder rl: loops on batches of experience."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.pieces import integers, normal, uniform
from benchmarks.programs.registry import Loop, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops
SOURCE = "keras.io examples/rl/{}.py"
STATE, ACTIONS = 7, 3


def _network(outputs: int, *units: int, inputs: int = STATE, last: Any = None) -> Any:
    layers = [L.Dense(n, "relu") for n in units]
    return keras.Sequential([keras.Input((inputs,)), *layers, L.Dense(outputs, last)])


def _apply(optimizer: Any, tape: Any, loss: Any, model: Any) -> None:
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))


def _built(optimizer: Any, model: Any) -> Any:
    optimizer.build(model.trainable_variables)
    return optimizer


@program("rl", source=SOURCE.format("actor_critic_cartpole"))
def actor_critic_cartpole() -> Loop:
    """Rewards of an episode are discounted by a loop from its end, and both heads learn."""
    x = inputs = keras.Input((STATE,))
    x = L.Dense(28, "relu")(x)
    model = keras.Model(inputs, [L.Dense(ACTIONS, "softmax")(x), L.Dense(1)(x)])
    optimizer = _built(keras.optimizers.Adam(0.01), model)
    huber: Any = keras.losses.Huber()

    @tf.compat.v2.function
    def update(states: Any, actions: Any, rewards: Any) -> Any:
        returns, total = tf.TensorArray(rewards.dtype, 14), tf.zeros((), rewards.dtype)
        for i in tf.range(13, -1, -1):
            total = rewards[i] + 0.99 * total
            returns = returns.write(i, total)
        gains = returns.stack()
        gains = (gains - tf.reduce_mean(gains)) / (tf.math.reduce_std(gains) + 1e-7)
        with tf.GradientTape() as tape:
            shares, values = model(states)
            taken = tf.math.log(tf.gather(shares, actions, batch_dims=1))
            of_actor = -tf.reduce_sum(taken * (gains - tf.stop_gradient(values[:, 0])))
            of_critic = 14.0 * huber(gains[:, None], values)
            loss = of_actor + of_critic
        _apply(optimizer, tape, loss, model)
        return loss

    return Loop(update, (normal(STATE), integers(ACTIONS), uniform()))


@program("rl", source=SOURCE.format("ddpg_pendulum"))
def ddpg_pendulum() -> Loop:
    """Return an actor, a critic of states and actions, and targets that follow both slowly."""

    def critic() -> Any:
        state, action = keras.Input((STATE,)), keras.Input((1,))
        x = L.Concatenate()([L.Dense(14, "relu")(L.Dense(14, "relu")(state)), L.Dense(14, "relu")(action)])
        return keras.Model([state, action], L.Dense(1)(L.Dense(28, "relu")(x)))

    def actor() -> Any:
        network = _network(1, 28, 28, last="tanh")
        return keras.Sequential([network, L.Rescaling(2.0)])

    networks, targets = (actor(), critic()), (actor(), critic())
    for network, target in zip(networks, targets):
        target.set_weights(network.get_weights())
    optimizers = [_built(keras.optimizers.Adam(rate), n) for rate, n in zip((0.001, 0.002), networks)]

    @tf.compat.v2.function
    def update(states: Any, actions: Any, rewards: Any, following: Any) -> Any:
        with tf.GradientTape() as tape:
            wanted = rewards + 0.99 * targets[1]([following, targets[0](following, training=True)], training=True)
            judged = tf.reduce_mean(tf.square(wanted - networks[1]([states, actions], training=True)))
        _apply(optimizers[1], tape, judged, networks[1])
        with tf.GradientTape() as tape:
            value = networks[1]([states, networks[0](states, training=True)], training=True)
            loss = -tf.reduce_mean(value)
        _apply(optimizers[0], tape, loss, networks[0])
        for network, target in zip(networks, targets):
            for weight, slow in zip(network.variables, target.variables):
                slow.assign(0.005 * weight + 0.995 * slow)
        return judged, loss

    return Loop(update, (normal(STATE), normal(1), uniform(1), normal(STATE) * 0.9))


@program("rl", source=SOURCE.format("deep_q_network_breakout"))
def deep_q_network_breakout() -> Loop:
    """Convolutions over the last frames; a frozen copy says what the future is worth."""

    def network() -> Any:
        layers = [L.Conv2D(7, 4, strides=2, activation="relu"), L.Conv2D(14, 3, activation="relu")]
        return keras.Sequential([keras.Input((16, 16, 4)), *layers, L.Flatten(), L.Dense(28, "relu"), L.Dense(ACTIONS)])

    model, target = network(), network()
    optimizer = _built(keras.optimizers.Adam(0.00025, clipnorm=1.0), model)
    huber, count = keras.losses.Huber(), tf.Variable(0, dtype=tf.int64, trainable=False, name="count")

    @tf.compat.v2.function
    def update(frames: Any, actions: Any, rewards: Any, following: Any, done: Any) -> Any:
        wanted = rewards + 0.99 * tf.reduce_max(target(following), axis=1)
        wanted = wanted * (1 - done) - done
        with tf.GradientTape() as tape:
            values = tf.reduce_sum(model(frames) * tf.one_hot(actions, ACTIONS, dtype=wanted.dtype), axis=1)
            loss = huber(wanted, values)
        _apply(optimizer, tape, loss, model)
        count.assign_add(1)
        if count % 2 == 0:
            for weight, copy in zip(model.variables, target.variables):
                copy.assign(weight)
        return loss

    done = (integers(5) == 0).astype(keras.config.floatx())
    return Loop(update, (uniform(16, 16, 4), integers(ACTIONS), uniform(), uniform(16, 16, 4) * 0.5, done))


@program("rl", source=SOURCE.format("ppo_cartpole"))
def ppo_cartpole() -> Loop:
    """Several updates of a policy, each only while it is near the old one, and one of the values."""
    actor, critic = _network(ACTIONS, 14, 14), _network(1, 14, 14)
    optimizers = [_built(keras.optimizers.Adam(rate), n) for rate, n in ((3e-4, actor), (1e-3, critic))]

    def log_probability(logits: Any, actions: Any) -> Any:
        return tf.reduce_sum(tf.nn.log_softmax(logits) * tf.one_hot(actions, ACTIONS, dtype=logits.dtype), axis=1)

    @tf.compat.v2.function
    def update(states: Any, actions: Any, before: Any, gains: Any, returns: Any) -> Any:
        divergence = tf.zeros((), gains.dtype)
        for _ in range(3):
            if divergence < 0.015:
                with tf.GradientTape() as tape:
                    ratio = tf.exp(log_probability(actor(states), actions) - before)
                    least = tf.where(gains > 0, 1.2 * gains, 0.8 * gains)
                    loss = -tf.reduce_mean(tf.minimum(ratio * gains, least))
                _apply(optimizers[0], tape, loss, actor)
            divergence = tf.reduce_mean(before - log_probability(actor(states), actions))
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((returns - critic(states)[:, 0]) ** 2)
        _apply(optimizers[1], tape, error, critic)
        return divergence, error

    return Loop(update, (normal(STATE), integers(ACTIONS), np.log(uniform() * 0.5 + 0.2), normal(), uniform()))

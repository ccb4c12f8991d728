"""Steps that use no Keras: solvers, estimators, and training loops with tapes on tf.Variables."""

import itertools
import math
from typing import Any

import numpy as np

from benchmarks.programs.registry import BATCH, Loop, program
from mtf_hetero import tf

SOURCE = "a loop with tf.GradientTape"
function = tf.compat.v2.function


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    """Return normal random numbers."""
    return np.random.default_rng(seed).standard_normal(shape)


def variable(name: str, *shape: int, scale: float = 1.0, seed: int = 2) -> Any:
    """Return a tf.Variable of normal random numbers."""
    return tf.Variable(scale * normal(*shape, seed=seed), name=name)


def descend(tape: Any, loss: Any, variables: Any, rate: float = 0.05) -> None:
    """Take a step along the gradient of a loss."""
    for v, gradient in zip(variables, tape.gradient(loss, variables)):
        v.assign_sub(rate * gradient)


@program("loops", source=SOURCE)
def burgers_equation() -> Loop:
    """Return a network that solves Burgers' equation: second derivatives in its loss."""
    sizes = (2, 14, 14, 1)
    weights = [variable(f"w{i}", *s, scale=0.5, seed=i) for i, s in enumerate(itertools.pairwise(sizes))]
    biases = [variable(f"b{i}", n, scale=0.1, seed=9) for i, n in enumerate(sizes[1:])]

    def u(x: Any, t: Any) -> Any:
        y = tf.stack([x, t], axis=1)
        for i, (w, b) in enumerate(zip(weights, biases)):
            y = y @ w + b
            y = tf.tanh(y) if i < len(weights) - 1 else y
        return y[:, 0]

    @function
    def step(x: Any, t: Any) -> Any:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape(persistent=True) as inner:
                    inner.watch([x, t])
                    value = u(x, t)
                du_dx, du_dt = inner.gradient(value, x), inner.gradient(value, t)
            residual = du_dt + value * du_dx - 0.01 / math.pi * outer.gradient(du_dx, x)
            start = u(x, tf.zeros_like(t)) + tf.sin(math.pi * x)
            loss = tf.reduce_mean(residual**2) + tf.reduce_mean(start**2)
        descend(tape, loss, [*weights, *biases])
        return loss

    rng = np.random.default_rng(3)
    return Loop(step, (rng.uniform(-1, 1, BATCH), rng.uniform(0, 1, BATCH)))


@program("loops", source=SOURCE)
def wave_equation() -> Loop:
    """Leapfrog steps of waves on a grid, whose speed is learned from pictures of the end."""
    speed = variable("speed", 10, 8, scale=0.1)

    @function
    def step(start: Any, end: Any) -> Any:
        with tf.GradientTape() as tape:
            before = now = start
            for _ in tf.range(8):
                wide = tf.pad(now, [[0, 0], [1, 1], [1, 1]], "SYMMETRIC")
                around = wide[:, 2:, 1:-1] + wide[:, :-2, 1:-1] + wide[:, 1:-1, 2:] + wide[:, 1:-1, :-2]
                before, now = now, 2 * now - before + 0.2 * tf.exp(speed) * (around - 4 * now)
            loss = tf.reduce_mean((now - end) ** 2)
        descend(tape, loss, [speed])
        return loss, now

    return Loop(step, (normal(BATCH, 10, 8, seed=3), normal(BATCH, 10, 8, seed=4)), split="start/1")


@program("loops", source=SOURCE)
def matrix_factorisation() -> Loop:
    """Return some rows of a table with gaps, with weight decay and momentum by hand."""
    rows, columns = variable("rows", 30, 7, scale=0.3), variable("columns", 21, 7, scale=0.3, seed=5)
    speeds = [tf.Variable(tf.zeros_like(v), name=f"{n}_speed") for v, n in ((rows, "rows"), (columns, "columns"))]

    @function
    def step(table: Any, known: Any, ids: Any) -> Any:
        with tf.GradientTape() as tape:
            error = known * (table - tf.gather(rows, ids) @ tf.transpose(columns))
            loss = tf.reduce_sum(error**2) / tf.reduce_sum(known) + 1e-3 * (
                tf.nn.l2_loss(rows) + tf.nn.l2_loss(columns)
            )
        for v, s, gradient in zip((rows, columns), speeds, tape.gradient(loss, [rows, columns])):
            s.assign(0.9 * s - 0.1 * tf.convert_to_tensor(gradient))
            v.assign_add(s)
        return loss

    rng = np.random.default_rng(6)
    return Loop(step, (normal(BATCH, 21), (rng.random((BATCH, 21)) < 0.6) * 1.0, rng.integers(0, 30, BATCH)))


@program("loops", source=SOURCE)
def logistic_newton() -> Loop:
    """Logistic regression on repeated measurements by Newton's method: a Hessian and a linear system in each step."""
    w = variable("w", 7, 1, scale=0.1)

    @function
    def step(x: Any, y: Any) -> Any:
        p = tf.sigmoid(x @ w)
        gradient = tf.einsum("nri,nrj->ij", x, p - y) + 0.1 * w
        hessian = tf.einsum("nri,nrj->ij", x, p * (1 - p) * x) + 0.1 * tf.eye(7, dtype=tf.float64)
        w.assign_sub(tf.linalg.solve(hessian, gradient))
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x @ w))

    return Loop(step, (normal(BATCH, 20, 7), (normal(BATCH, 20, 1, seed=7) > 0) * 1.0), split="x/2")


@program("loops", source=SOURCE)
def poisson_lbfgs() -> Loop:
    """Poisson regression on repeated measurements by L-BFGS with a memory of three steps."""
    w, count = variable("w", 7, scale=0.1), tf.Variable(0, dtype=tf.int32, name="count")
    moves, turns = (tf.Variable(tf.zeros((3, 7), tf.float64), name=name) for name in ("moves", "turns"))

    def loss_and_gradient(x: Any, y: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            rate = tf.linalg.matvec(x, w)
            loss = tf.reduce_mean(tf.exp(rate) - y * rate)
        return loss, tape.gradient(loss, w)

    @function
    def step(x: Any, y: Any) -> Any:
        loss, gradient = loss_and_gradient(x, y)
        direction, shares = gradient, []
        for i in (2, 1, 0):
            inner = tf.tensordot(moves[i], turns[i], 1)
            share = tf.math.divide_no_nan(tf.tensordot(moves[i], direction, 1), inner)
            direction -= share * turns[i]
            shares.append(share)
        inner, square = tf.tensordot(moves[2], turns[2], 1), tf.reduce_sum(turns[2] ** 2)
        direction *= tf.where(square > 0, tf.math.divide_no_nan(inner, square), 0.1)
        for i in (0, 1, 2):
            inner = tf.tensordot(moves[i], turns[i], 1)
            share = tf.math.divide_no_nan(tf.tensordot(turns[i], direction, 1), inner)
            direction += (shares[2 - i] - share) * moves[i]
        w.assign_sub(direction)
        after, following = loss_and_gradient(x, y)
        moves.assign(tf.concat([moves[1:], -direction[None]], axis=0))
        turns.assign(tf.concat([turns[1:], (following - gradient)[None]], axis=0))
        count.assign_add(1)
        return loss, after

    return Loop(
        step, (0.5 * normal(BATCH, 90, 7), np.random.default_rng(8).poisson(2.0, (BATCH, 90)) * 1.0), split="x/2"
    )


@program("loops", source=SOURCE)
def gaussian_mixture() -> Loop:
    """Return a step of expectation and maximisation for a mixture of Gaussians with full covariances."""
    means, shares = variable("means", 4, 3), tf.Variable(np.full(4, 0.25), name="shares")
    covariances = tf.Variable(np.tile(np.eye(3), (4, 1, 1)), name="covariances")

    @function
    def step(samples: Any) -> Any:
        x = tf.reshape(samples, [-1, 3])
        roots = tf.linalg.cholesky(covariances)
        solved = tf.linalg.triangular_solve(roots, tf.transpose(x[:, None] - means, [1, 2, 0]))
        scale = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(roots)), 1)
        logits = tf.math.log(shares) - scale - 0.5 * tf.transpose(tf.reduce_sum(solved**2, 1))
        likelihood = tf.reduce_logsumexp(logits, 1)
        weights = tf.exp(logits - likelihood[:, None])
        total = tf.reduce_sum(weights, 0)
        means.assign(tf.transpose(weights) @ x / total[:, None])
        away = x[:, None] - means
        spread = tf.einsum("nk,nki,nkj->kij", weights, away, away) / total[:, None, None]
        covariances.assign(spread + 0.1 * tf.eye(3, dtype=tf.float64))
        shares.assign(total / (20.0 * BATCH))
        return tf.reduce_mean(likelihood), tf.argmax(weights, 1)

    return Loop(step, (normal(BATCH, 20, 3),), split="covariances/0")


@program("loops", source=SOURCE)
def recurrent_while_loop() -> Loop:
    """Return a recurrent network by tf.while_loop with a TensorArray, and clipped gradients."""
    w, u, v = variable("w", 7, 14, scale=0.3), variable("u", 14, 14, scale=0.3), variable("v", 14, 5, scale=0.3)

    @function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.TensorArray(tf.float64, 6)

            def body(i: Any, state: Any, outputs: Any) -> Any:
                state = tf.tanh(x[:, i] @ w + state @ u)
                return i + 1, state, outputs.write(i, state @ v)

            _, _, outputs = tf.while_loop(lambda i, *_: i < 6, body, (0, tf.zeros((BATCH, 14), tf.float64), outputs))
            logits = tf.transpose(outputs.stack(), [1, 0, 2])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, [w, u, v]), 0.5)
        for each, gradient in zip((w, u, v), gradients):
            each.assign_sub(gradient)
        return loss, norm

    return Loop(step, (normal(BATCH, 6, 7), np.random.default_rng(9).integers(0, 5, (BATCH, 6))))


@program("loops", source=SOURCE)
def neural_ode() -> Loop:
    """Return a differential equation whose right side is a network, by fixed steps of Runge and Kutta."""
    w, b, v = variable("w", 3, 14, scale=0.5), variable("b", 14, scale=0.1), variable("v", 14, 3, scale=0.5)

    def slope(y: Any) -> Any:
        return tf.tanh(y**3 @ w + b) @ v

    @function
    def step(start: Any, path: Any) -> Any:
        with tf.GradientTape() as tape:
            y, loss, h = start, tf.zeros((), tf.float64), 0.1
            for i in tf.range(5):
                k1 = slope(y)
                k2 = slope(y + 0.5 * h * k1)
                k3 = slope(y + 0.5 * h * k2)
                k4 = slope(y + h * k3)
                y += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
                loss += tf.reduce_mean(tf.abs(y - path[i]))
        descend(tape, loss, [w, b, v])
        return loss, y

    return Loop(step, (normal(BATCH, 3), normal(5, BATCH, 3, seed=5)))


class Perceptron(tf.Module):
    """Dense layers as modules that own their variables."""

    class Dense(tf.Module):
        """One layer."""

        def __init__(self, inputs: int, outputs: int, seed: int, name: str) -> None:
            super().__init__(name=name)
            with self.name_scope:
                self.w = variable("w", inputs, outputs, scale=0.3, seed=seed)
                self.b = tf.Variable(np.zeros(outputs), name="b")

        def __call__(self, x: Any) -> Any:
            return x @ self.w + self.b

    def __init__(self, *sizes: int) -> None:
        super().__init__(name="perceptron")
        self.layers = [self.Dense(a, b, i, f"linear_{i}") for i, (a, b) in enumerate(itertools.pairwise(sizes))]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = tf.nn.relu(layer(x))
        return self.layers[-1](x)


@program("loops", source=SOURCE)
def modules_with_adam() -> Loop:
    """Modules in the manner of Sonnet, their Adam by hand, and an average of their weights."""
    network = Perceptron(12, 28, 14, 5)
    parameters = network.trainable_variables
    moments = [[tf.Variable(tf.zeros_like(p), name=f"{p.name[:-2]}_{k}") for p in parameters] for k in ("m", "v")]
    averages = [tf.Variable(p, name=f"{p.name[:-2]}_mean") for p in parameters]
    count = tf.Variable(0, dtype=tf.int64, name="count")

    @function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x)))
        count.assign_add(1)
        t = tf.cast(count, tf.float64)
        rate = 0.01 * tf.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        for p, m, v, mean, g in zip(parameters, *moments, averages, tape.gradient(loss, parameters)):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.999 * v + 0.001 * g**2)
            p.assign_sub(rate * m / (tf.sqrt(v) + 1e-8))
            mean.assign(0.99 * mean + 0.01 * p)
        return loss

    return Loop(step, (normal(BATCH, 12), np.random.default_rng(9).integers(0, 5, BATCH)))


@program("loops", source=SOURCE)
def meta_learning() -> Loop:
    """Weights from which one step learns each task: a gradient through a gradient, task by task."""
    w, b, v = variable("w", 1, 14, scale=0.5), variable("b", 14, scale=0.1), variable("v", 14, 1, scale=0.5)

    def mean_squared_error(x: Any, y: Any, w: Any, b: Any, v: Any) -> Any:
        return tf.reduce_mean((tf.tanh(x @ w + b) @ v - y) ** 2, axis=[-2, -1])

    @function
    def step(x: Any, y: Any, later_x: Any, later_y: Any) -> Any:
        with tf.GradientTape() as outer:
            own = [tf.broadcast_to(p, (BATCH, *p.shape)) for p in (w, b[None], v)]  # each task has its own
            with tf.GradientTape() as inner:
                inner.watch(own)
                before = mean_squared_error(x, y, *own)
            own = [p - 0.1 * g for p, g in zip(own, inner.gradient(before, own))]
            loss = tf.reduce_mean(mean_squared_error(later_x, later_y, *own))
        descend(outer, loss, [w, b, v])
        return tf.reduce_mean(before), loss

    return Loop(step, tuple(normal(BATCH, 6, 1, seed=i) for i in range(4)))


@program("loops", source=SOURCE)
def normalizing_flow() -> Loop:
    """Coupling layers that are invertible, and the likelihood of what they map to a Gaussian."""
    layers = [
        [variable(f"{n}{i}", *s, scale=0.2, seed=i) for n, s in (("w", (3, 14)), ("v", (14, 6)))] for i in range(4)
    ]

    @function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y, volume = x, tf.zeros((BATCH,), tf.float64)
            for w, v in layers:
                kept, changed = tf.split(y, 2, axis=1)
                scale, shift = tf.split(tf.nn.relu(kept @ w) @ v, 2, axis=1)
                scale = tf.tanh(scale)
                volume += tf.reduce_sum(scale, axis=1)
                y = tf.reverse(tf.concat([kept, changed * tf.exp(scale) + shift], axis=1), axis=[1])
            density = -0.5 * tf.reduce_sum(y**2, axis=1) - 3 * math.log(2 * math.pi)
            loss = -tf.reduce_mean(density + volume)
        descend(tape, loss, [p for layer in layers for p in layer])
        return loss, y

    return Loop(step, (normal(BATCH, 6),))

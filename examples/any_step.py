"""Solve a differential equation with a neural network: a step of one's own, divided over two unequal devices.

    python examples/any_step.py

trains a network u(x) until u'' = -sin(x) on [0, pi], with u = 0 at both ends, so that u = sin(x). The step needs the
gradient of a gradient. Its 512 points are divided 3 : 1 over two logical devices of one CPU. It prints the replicated
work, the steps, and the largest error of u:

    replicated on every device: 0.2% of the FLOPs
    ...
    1000 steps, largest error below 0.02: True
"""

from typing import Any

import mtf_hetero  # before Keras: so TensorFlow starts without its messages
from mtf_hetero import tf

import keras  # isort: skip
import numpy as np  # isort: skip

keras.utils.set_random_seed(1)
network = keras.Sequential(
    [
        keras.Input((1,)),
        keras.layers.Dense(32, "tanh", name="first"),
        keras.layers.Dense(32, "tanh", name="second"),
        keras.layers.Dense(1, name="last"),
    ]
)
rate: Any = keras.optimizers.schedules.CosineDecay(0.005, 1000)
optimizer = keras.optimizers.Adam(rate)
points = np.linspace(0.0, np.pi, 512, dtype="float32")[:, None]


def step(x):
    """Improve the network at the points; return the loss."""
    with tf.GradientTape() as of_weights:
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape() as first:
                first.watch(x)
                u = network(x)
            slope = first.gradient(u, x)
        curvature = second.gradient(slope, x)
        ends = tf.reduce_mean(network(tf.constant([[0.0], [np.pi]])) ** 2)
        loss = tf.reduce_mean((curvature + tf.sin(x)) ** 2) + 10.0 * ends
    weights = network.trainable_variables
    optimizer.apply_gradients(zip(of_weights.gradient(loss, weights), weights, strict=True))
    return loss


with mtf_hetero.function(step, (points,), devices=["cpu:0", "cpu:1"], layout="batch", list_speed=[3, 1]) as divided:
    print(divided.undivided)
    for _ in range(1000):
        divided(points)
error = np.abs(network(points).numpy() - np.sin(points)).max()
print(f"{int(optimizer.iterations)} steps, largest error below 0.02: {error < 0.02}")

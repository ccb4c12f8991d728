"""TensorFlow's own gradients of relu and leaky_relu, in place of mtf's formulas: see `graph.merging`."""

import functools

from mtf_hetero._compat import mtf, tf
from mtf_hetero.graph.merging import Gradient
from mtf_hetero.ops.backend import Backend
from mtf_hetero.ops.registry import Rule


def _differentiate_relu(dy: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ReluGrad(gradients=dy, features=features)


def _differentiate_leaky_relu(dy: tf.Tensor, features: tf.Tensor, alpha: float) -> tf.Tensor:
    return tf.raw_ops.LeakyReluGrad(gradients=dy, features=features, alpha=alpha)


def gradient_rule(gradient: Gradient) -> Rule[mtf.Operation, Backend]:
    """Return the rule for the operation whose place a gradient takes."""
    differentiate = (
        _differentiate_relu
        if gradient.slope is None
        else functools.partial(_differentiate_leaky_relu, alpha=gradient.slope)
    )

    def rule(op: mtf.Operation, backend: Backend) -> None:
        (output,), inputs = op.outputs, (gradient.dy, gradient.x)
        backend.set(output, backend.local(output, differentiate, *map(backend.slices, inputs)))

    return rule

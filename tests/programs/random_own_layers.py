"""Layers of rows such as users write themselves, of random kinds and sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from mtf_hetero import tf

_K, _O = keras.layers, keras.ops


class Own(_K.Layer):
    """A layer of a function of the input and of weights.

    Args:
      function: of the layer, the input and whether it trains.
      weights: {name: how its shape follows from the input's}.
      kept: the same of weights that do not train.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        weights: dict[str, Callable[[Any], Sequence[int]]] | None = None,
        kept: dict[str, Callable[[Any], Sequence[int]]] | None = None,
    ) -> None:
        super().__init__()
        self._function, self._weights, self._kept = function, weights or {}, kept or {}

    def build(self, shape: Any) -> None:
        """Make the weights."""
        for name, shape_of in self._weights.items():
            setattr(self, name, self.add_weight(shape=shape_of(shape), initializer="glorot_uniform", name=name))
        for name, shape_of in self._kept.items():
            made = self.add_weight(shape=shape_of(shape), initializer="zeros", trainable=False, name=name)
            setattr(self, name, made)

    def compute_output_shape(self, shape: Any) -> Any:
        """The input's."""
        return shape

    def call(self, x: Any, training: bool | None = None) -> Any:
        """Apply the function."""
        return tf.ensure_shape(self._function(self, x, training), x.shape)


def of_rows(rng: Any) -> Callable[[Any], Any]:
    """A layer of [batch, width], which gives the same shape."""
    makers = [_shifted, _counted, _gated, _branched, _pairs, _dropped_paths, _noisy]
    return makers[rng.integers(len(makers))](rng)


def last(shape: Any) -> tuple[int]:
    """Return the shape of a weight per channel."""
    return (shape[-1],)


def square(shape: Any) -> tuple[int, int]:
    """Return the shape of a matrix from channels to channels."""
    return shape[-1], shape[-1]


def _shifted(rng: Any) -> Any:
    rate = float(rng.uniform(0.3, 0.9))

    def function(layer: Any, x: Any, training: Any) -> Any:
        mean = _O.mean(x, axis=0)
        if training:
            layer.mean.assign(rate * layer.mean + (1 - rate) * mean)
        return (x - (mean if training else layer.mean)) * (1 + layer.scale)

    return Own(function, {"scale": last}, {"mean": last})


def _noisy(rng: Any) -> Any:
    """Numbers from the state of an operation, of the global seed or one of its own, perhaps in a loop or a branch."""
    draw = (tf.random.normal, tf.random.uniform, tf.random.truncated_normal)[rng.integers(3)]
    seed, turns = (None, 5)[rng.integers(2)], int(rng.integers(1, 4))

    def noisy(x: Any) -> Any:
        return x + 0.1 * draw(tf.shape(x), dtype=x.dtype, seed=seed)

    def function(layer: Any, x: Any, training: Any) -> Any:
        if training and turns == 1:
            x = tf.cond(tf.reduce_mean(x) > 0.0, lambda: noisy(x), lambda: x)
        elif training:
            _, x = tf.while_loop(lambda i, _: i < turns, lambda i, y: (i + 1, noisy(y)), (0, x))
        return x * layer.scale

    return Own(function, {"scale": last})


def _counted(rng: Any) -> Any:
    every = int(rng.integers(2, 4))

    def function(layer: Any, x: Any, training: Any) -> Any:
        if training:
            layer.steps.assign_add(_O.ones_like(layer.steps))
        return x * _O.where(_O.equal(layer.steps % every, 0), 1.0 + layer.scale, 1.0)

    return Own(function, {"scale": last}, {"steps": lambda shape: ()})


def _gated(rng: Any) -> Any:
    count = int(rng.integers(2, 4))

    def function(layer: Any, x: Any, training: Any) -> Any:
        values, which = _O.top_k(x @ layer.gates, count)
        weights = _O.sum(_O.one_hot(which, 4, dtype=x.dtype) * _O.softmax(values)[..., None], axis=1)
        return _O.einsum("be,bi,eij->bj", weights, x, layer.experts)

    return Own(function, {"gates": lambda shape: (shape[-1], 4), "experts": lambda shape: (4, shape[-1], shape[-1])})


def _branched(rng: Any) -> Any:
    bound = float(rng.uniform(-0.2, 0.2))

    def function(layer: Any, x: Any, training: Any) -> Any:
        return _O.cond(_O.mean(x) > bound, lambda: x @ layer.kernel, lambda: x * layer.scale)

    return Own(function, {"kernel": square, "scale": last})


def _pairs(rng: Any) -> Any:
    temperature = float(rng.uniform(0.5, 2.0))

    def function(layer: Any, x: Any, training: Any) -> Any:
        unit = _O.normalize(x @ layer.kernel, axis=-1)
        near = _O.softmax(_O.matmul(unit, _O.transpose(unit)) / temperature, axis=-1)
        return x + _O.matmul(near, x)

    return Own(function, {"kernel": square})


def _dropped_paths(rng: Any) -> Any:
    kept = float(rng.uniform(0.5, 0.9))
    seeds = keras.random.SeedGenerator(int(rng.integers(100)))

    def function(layer: Any, x: Any, training: Any) -> Any:
        y = x @ layer.kernel
        if training:
            y = y * _O.floor(kept + keras.random.uniform((_O.shape(x)[0], 1), dtype=x.dtype, seed=seeds)) / kept
        return x + y

    return Own(function, {"kernel": square})

"""Layers of series and images such as users write themselves, of random kinds and sizes."""

from collections.abc import Callable
from typing import Any

import keras
from random_own_layers import Own, last, square

from mtf_hetero import tf

_O = keras.ops


def of_series(rng: Any) -> Callable[[Any], Any]:
    """A layer of [batch, time, channels], which gives the same shape."""
    makers = [_linear_attention, _scored, _first_token, _windows, _recurrence, _gathered, _by_experts]
    return makers[rng.integers(len(makers))](rng)


def of_images(rng: Any) -> Callable[[Any], Any]:
    """A layer of [batch, height, width, channels], which gives the same shape."""
    makers = [_excited, _scaled, _patches, _shuffled_channels]
    return makers[rng.integers(len(makers))](rng)


def _linear_attention(rng: Any) -> Any:
    is_causal = bool(rng.random() < 0.5)

    def function(layer: Any, x: Any, training: Any) -> Any:
        q, k = _O.elu(x @ layer.queries) + 1, _O.elu(x @ layer.keys) + 1
        if is_causal:
            states = _O.cumsum(_O.einsum("btc,btd->btcd", k, x), axis=1)
            return x + _O.einsum("btc,btcd->btd", q, states) / _O.einsum("btc,btc->bt", q, _O.cumsum(k, 1))[..., None]
        state = _O.einsum("btc,btd->bcd", k, x)
        return x + _O.einsum("btc,bcd->btd", q, state) / _O.einsum("btc,bc->bt", q, _O.sum(k, axis=1))[..., None]

    return Own(function, {"queries": square, "keys": square})


def _scored(rng: Any) -> Any:
    slope = float(rng.uniform(0.1, 1.0))

    def function(layer: Any, x: Any, training: Any) -> Any:
        scores = _O.einsum("btc,buc->btu", x @ layer.queries, x) / x.shape[-1] ** 0.5
        places = _O.arange(x.shape[1])
        apart = _O.cast(_O.abs(places[:, None] - places), x.dtype)
        scores = _O.where(places[:, None] >= places, scores - slope * apart, -1e9)
        return _O.einsum("btu,buc->btc", _O.softmax(scores), x)

    return Own(function, {"queries": square})


def _first_token(rng: Any) -> Any:
    rest = bool(rng.random() < 0.5)

    def function(layer: Any, x: Any, training: Any) -> Any:
        token = _O.broadcast_to(layer.token, (_O.shape(x)[0], 1, x.shape[-1]))
        joined = _O.concatenate([token, x], axis=1)
        mixed = _O.einsum("btc,tu->buc", joined, layer.mixing)
        return mixed[:, 1:] if rest else x + mixed[:, :1]

    return Own(
        function, {"token": lambda shape: (1, 1, shape[-1]), "mixing": lambda shape: (shape[1] + 1, shape[1] + 1)}
    )


def _windows(rng: Any) -> Any:
    size, shift = int(rng.integers(2, 4)), int(rng.integers(0, 2))

    def function(layer: Any, x: Any, training: Any) -> Any:
        length, channels = x.shape[1:]
        rolled = _O.roll(x, -shift, axis=1)
        padded = _O.pad(rolled, [(0, 0), (0, -length % size), (0, 0)])
        parts = _O.reshape(padded, (-1, padded.shape[1] // size, size, channels))
        near = _O.softmax(_O.einsum("bwic,bwjc->bwij", parts @ layer.kernel, parts))
        y = _O.reshape(_O.einsum("bwij,bwjc->bwic", near, parts), (-1, padded.shape[1], channels))[:, :length]
        return _O.roll(y, shift, axis=1)

    return Own(function, {"kernel": square})


def _recurrence(rng: Any) -> Any:
    how = str(rng.choice(["associative", "scan", "tf.scan"]))

    def function(layer: Any, x: Any, training: Any) -> Any:
        decay = _O.sigmoid(layer.decay)
        if how == "associative":
            decays = _O.broadcast_to(decay, _O.shape(x))
            return _O.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decays, x), axis=1)[1]
        first = _O.zeros_like(x[:, 0])
        steps = _O.transpose(x, (1, 0, 2))
        if how == "scan":
            states = _O.scan(lambda state, step: (decay * state + step,) * 2, first, steps)[1]
        else:
            states = tf.scan(lambda state, step: decay * state + step, steps, first)
        return _O.transpose(states, (1, 0, 2))

    return Own(function, {"decay": last})


def _gathered(rng: Any) -> Any:
    count = int(rng.integers(2, 4))

    def function(layer: Any, x: Any, training: Any) -> Any:
        scores = _O.squeeze(x @ layer.scores, -1)
        values, which = _O.top_k(scores, count)
        chosen = tf.gather(x, which, batch_dims=1)
        pooled = _O.sum(chosen * _O.softmax(values)[..., None], axis=1, keepdims=True)
        return x + pooled

    return Own(function, {"scores": lambda shape: (shape[-1], 1)})


def _by_experts(rng: Any) -> Any:
    count = int(rng.integers(2, 4))

    def function(layer: Any, x: Any, training: Any) -> Any:
        gates = _O.softmax(x @ layer.gates)
        which = _O.argmax(gates, axis=-1)
        chosen = _O.one_hot(which, count, dtype=x.dtype)
        density, used = _O.mean(gates, axis=(0, 1)), _O.mean(chosen, axis=(0, 1))
        layer.add_loss(0.01 * count * _O.sum(density * used))
        return x + _O.einsum("btc,ecd,bte->btd", x, layer.experts, chosen * gates)

    return Own(
        function,
        {"gates": lambda shape: (shape[-1], count), "experts": lambda shape: (count, shape[-1], shape[-1])},
    )


def _excited(rng: Any) -> Any:
    def function(layer: Any, x: Any, training: Any) -> Any:
        seen = _O.relu(_O.mean(x, axis=(1, 2), keepdims=True) @ layer.reduce)
        return x * _O.sigmoid(seen @ layer.expand)

    return Own(function, {"reduce": lambda shape: (shape[-1], 2), "expand": lambda shape: (2, shape[-1])})


def _scaled(rng: Any) -> Any:
    method = str(rng.choice(["bilinear", "nearest"]))

    def function(layer: Any, x: Any, training: Any) -> Any:
        small = _O.image.resize(x, (max(1, x.shape[1] // 2), max(1, x.shape[2] // 2)), interpolation=method)
        return x + layer.scale * _O.image.resize(small, x.shape[1:3], interpolation=method)

    return Own(function, {"scale": last})


def _patches(rng: Any) -> Any:
    def function(layer: Any, x: Any, training: Any) -> Any:
        patches = _O.image.extract_patches(x, (3, 3), strides=(1, 1), padding="same")
        return x + patches @ layer.kernel

    return Own(function, {"kernel": lambda shape: (9 * shape[-1], shape[-1])})


def _shuffled_channels(rng: Any) -> Any:
    groups = int(rng.integers(2, 4))

    def function(layer: Any, x: Any, training: Any) -> Any:
        size = x.shape[-1] // groups * groups
        parts = _O.reshape(x[..., :size], (-1, *x.shape[1:3], groups, size // groups))
        mixed = _O.reshape(_O.swapaxes(parts, -1, -2), (-1, *x.shape[1:3], size))
        return _O.concatenate([mixed, x[..., size:]], axis=-1) * layer.scale

    return Own(function, {"scale": last})

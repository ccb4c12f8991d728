"""Pieces that several programs share: random batches, and blocks of transformers."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.registry import BATCH

L = keras.layers
K: Any = keras.ops


def normal(*shape: int) -> np.ndarray:
    """Return normal random numbers of Keras's float type for a batch of examples."""
    return np.random.default_rng(1).standard_normal((BATCH, *shape)).astype(keras.config.floatx())


def uniform(*shape: int) -> np.ndarray:
    """Return random numbers between 0 and 1 of Keras's float type for a batch of examples."""
    return np.random.default_rng(2).random((BATCH, *shape)).astype(keras.config.floatx())


def integers(high: int, *shape: int, low: int = 0) -> np.ndarray:
    """Return random integers below a bound for a batch of examples."""
    return np.random.default_rng(3).integers(low, high, (BATCH, *shape)).astype("int32")


def padded(high: int, length: int) -> np.ndarray:
    """Return sequences of ids of unequal lengths, padded with zeros."""
    lengths = np.random.default_rng(4).integers(1, length + 1, (BATCH, 1))
    return np.where(np.arange(length) < lengths, integers(high, length, low=1), 0).astype("int32")


class Tokens(L.Layer):
    """Embeds ids and adds an embedding of their positions."""

    def __init__(self, length: int, words: int, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.tokens, self.positions = L.Embedding(words, width), L.Embedding(length, width)

    def call(self, ids: Any) -> Any:
        return self.tokens(ids) + self.positions(K.arange(K.shape(ids)[-1]))


class Encoder(L.Layer):
    """A transformer's encoder layer that normalizes after each residual sum."""

    def __init__(self, width: int, heads: int, units: int, dropout: float = 0.1, mixer: Any = None) -> None:
        super().__init__()
        self.attention = L.MultiHeadAttention(heads, width // heads)
        self.mixer = mixer or keras.Sequential([L.Dense(units, "relu"), L.Dense(width)])
        self.first, self.second = L.LayerNormalization(epsilon=1e-6), L.LayerNormalization(epsilon=1e-6)
        self.drops = [L.Dropout(dropout), L.Dropout(dropout)]

    def call(self, x: Any, mask: Any = None) -> Any:
        seen = None if mask is None else mask[:, None]
        x = self.first(x + self.drops[0](self.attention(x, x, attention_mask=seen)))
        return self.second(x + self.drops[1](self.mixer(x)))


class Decoder(L.Layer):
    """A transformer's decoder layer: causal attention, attention to the encoder, two dense layers."""

    def __init__(self, width: int, heads: int, units: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.own, self.cross = L.MultiHeadAttention(heads, width // heads), L.MultiHeadAttention(heads, width // heads)
        self.mixer = keras.Sequential([L.Dense(units, "relu"), L.Dense(width)])
        self.norms = [L.LayerNormalization() for _ in range(3)]
        self.drops = [L.Dropout(dropout) for _ in range(3)]

    def call(self, x: Any, encoded: Any = None, mask: Any = None) -> Any:
        x = self.norms[0](x + self.drops[0](self.own(x, x, use_causal_mask=True)))
        if encoded is not None:
            seen = None if mask is None else mask[:, None]
            x = self.norms[1](x + self.drops[1](self.cross(x, encoded, attention_mask=seen)))
        return self.norms[2](x + self.drops[2](self.mixer(x)))

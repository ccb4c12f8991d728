"""Dense layers, products by Einstein's convention, embeddings; dropout."""

import functools
from collections.abc import Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras import dims as naming
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.activations import activate
from mtf_hetero.keras.call import Call
from mtf_hetero.keras.dims import Flattened
from mtf_hetero.keras.registry import register
from mtf_hetero.layers import lookup


@register(keras.layers.Dense, flattened=True)
def _dense(call: Call, given: mtf.Tensor | Flattened) -> mtf.Tensor:
    """Over the last dimension, or over all but the first as they are."""
    layer = call.layer
    x = call.enter(given.tensor if isinstance(given, Flattened) else given, "inputs")
    count = x.shape.ndims - 1 if isinstance(given, Flattened) else 1
    reduced = x.shape.dims[x.shape.ndims - count :]
    units = call.dim("units", layer.units)
    kernel = call.variable(layer.kernel, [*reduced, units])
    kept = x.shape.dims[: x.shape.ndims - count]
    y = mtf.einsum([x, kernel], mtf.Shape([*kept, units]), name=call.name)
    y = naming.renamed(y, [f"{call.name}/outputs"])
    if layer.use_bias:
        y += call.variable(layer.bias, y.shape.dims[-1:])
    return activate(call, layer.activation, y)


def parsed(equation: str, rank: int) -> tuple[str, str, str]:
    """The letters of an equation of two operands, "abc,cd->abd", with letters for dots that stand for dimensions.

    Args:
      equation: as numpy.einsum has it.
      rank: of the first operand.

    Raises:
      NotImplementedError: it has a letter twice in one operand.
    """
    operands, result = equation.replace(" ", "").split("->")
    first, second = operands.split(",")
    unused = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    dots = "".join(unused[: rank - len(first.replace("...", ""))])
    first, second, result = (part.replace("...", dots) for part in (first, second, result))
    if any(len(set(part)) < len(part) for part in (first, second, result)):
        raise NotImplementedError(
            f"equation {equation!r} has a letter twice in one operand, which mtf_hetero.keras does not support"
        )
    return first, second, result


@register(keras.layers.EinsumDense)
def _einsum_dense(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer = call.layer
    first, second, result = parsed(layer.equation, x.shape.ndims)
    named = _roles(call, x, first, second, result)
    x = mtf.reshape(x, [named[letter] for letter in first])
    sizes = dict(zip(second, layer.kernel.shape, strict=True))
    named |= {letter: mtf.Dimension(name, sizes[letter]) for letter, name in _units(call, second, first)}
    kernel = call.variable(layer.kernel, [named[letter] for letter in second])
    y = mtf.einsum([x, kernel], mtf.Shape([named[letter] for letter in result]), name=call.name)
    y = naming.renamed(y, [dim.name.replace("/units", "/outputs") for dim in y.shape.dims])
    if layer.bias is not None:
        shape = layer.bias.shape
        dims = [dim for dim, size in zip(y.shape.dims[-len(shape) :], shape, strict=True) if dim.size == size != 1]
        y += call.variable(layer.bias, dims)
    return activate(call, layer.activation, y)


def _roles(call: Call, x: mtf.Tensor, first: str, second: str, result: str) -> dict[str, mtf.Dimension]:
    """{letter: dimension} of what comes in: summed over it is "inputs", otherwise what it was called."""
    names = []
    for place, (letter, dim) in enumerate(zip(first, x.shape.dims, strict=True)):
        summed = letter in second and letter not in result
        names.append("inputs" if summed else "batch" if not place else naming.local(dim))
    return {
        letter: call.dim(name, dim.size)
        for letter, name, dim in zip(first, reversed(naming.unique(reversed(names))), x.shape.dims, strict=True)
    }


def _units(call: Call, second: str, first: str) -> list[tuple[str, str]]:
    """(letter, name) of the dimensions that only the kernel has: NAME/units, with the letter where there are more."""
    new = [letter for letter in second if letter not in first]
    return [(letter, f"{call.name}/units{f'_{letter}' if len(new) > 1 else ''}") for letter in new]


def _from_the_end(ids: tf.Tensor, size: int) -> tf.Tensor:
    """Count negative ids from the end of the table."""
    return tf.where_v2(ids < 0, ids + size, ids)


@register(keras.layers.Embedding)
def _embedding(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    """Takes ids as Keras does: floats are cut to integers, and a negative id counts from the end."""
    layer = call.layer
    ids = call.enter(x)
    if ids.dtype not in (tf.int32, tf.int64):
        ids = mtf.cast(ids, tf.int32)
    vocabulary, outputs = call.dim("vocabulary", layer.input_dim), call.dim("outputs", layer.output_dim)
    ids = mtf.cwise(functools.partial(_from_the_end, size=vocabulary.size), [ids], name=f"{call.name}/ids")
    table = call.variable(layer.embeddings, [vocabulary, outputs], dtype=tf.as_dtype(layer.embeddings.dtype))
    return mtf.cast(lookup(table, ids, vocabulary, name=call.name), call.dtype)


@register(keras.layers.Dropout, elementwise=True)
def _dropout(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer = call.layer
    if not call.training or not layer.rate:
        return x
    return drop(call, x, layer.rate, layer.noise_shape)


def drop(call: Call, x: mtf.Tensor, rate: float, noise_shape: Sequence[int | None] | None) -> mtf.Tensor:
    """Sets some elements to zero and scales the others up: other random numbers than Keras's, of the same rate."""
    noise = x.shape.dims
    if noise_shape is not None:
        noise = [dim for dim, size in zip(noise, noise_shape, strict=True) if size in (None, dim.size)]
    return mtf.dropout(x, True, rate=rate, noise_shape=mtf.Shape(noise), name=f"{call.name}/dropout")


@register("keras.src.applications.convnext.StochasticDepth")
def _stochastic_depth(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    """Whole examples are dropped."""
    rate = call.layer.drop_path_rate
    return drop(call, x, rate, [None, *[1] * (x.shape.ndims - 1)]) if call.training and rate else x


for _rank in (1, 2, 3):

    @register(getattr(keras.layers, f"SpatialDropout{_rank}D"))
    def _spatial_dropout(call: Call, x: mtf.Tensor) -> mtf.Tensor:
        """Whole maps are dropped."""
        rate = call.layer.rate
        return drop(call, x, rate, [None, *[1] * (x.shape.ndims - 2), None]) if call.training and rate else x

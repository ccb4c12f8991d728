"""The losses of a batch in an mtf graph, computed by Keras's own code.

What Keras computes for each example by itself is computed where the examples are. Any other loss is given the whole
batch, as Keras would give it, on every processor: a layout changes no result.
"""

import math
from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.activations import elementwise
from mtf_hetero.keras.compiled import Term
from mtf_hetero.keras.registered import Output

_OF_EACH_EXAMPLE = frozenset(
    getattr(keras.losses, name)
    for name in (
        "binary_crossentropy",
        "binary_focal_crossentropy",
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "cosine_similarity",
        "huber",
        "kl_divergence",
        "log_cosh",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "poisson",
        "sparse_categorical_crossentropy",
    )
    if hasattr(keras.losses, name)
)
_WEIGHTED = "mean_with_sample_weight"
_PLAIN = {"axis": -1, "ignore_class": None}  # options with which a loss is of each example by itself


def value_of(
    term: Term, output: Output, target: mtf.Tensor, weight: mtf.Tensor | None, total: mtf.Tensor | None, name: str
) -> mtf.Tensor:
    """A loss of a batch, before it is multiplied by its factor.

    Args:
      term: the loss.
      output: what the model gives, [batch, ...].
      target: mtf.Tensor [batch, ...].
      weight: mtf.Tensor [batch, ...] of the examples, or None.
      total: mtf.Tensor [], the sum of the weights, or None.
      name: of the operations and dimensions.

    Returns:
      mtf.Tensor [].
    """
    pred = output.tensor if output.before is None else output.before.logits
    batch = output.tensor.shape.dims[0]
    sizes = {x.shape.dims[0].size if x.shape.ndims else 0 for x in (pred, target)}
    is_split = is_of_each_example(term.loss) and sizes == {batch.size}
    first = batch if is_split else mtf.Dimension(f"{name}/batch", batch.size)
    tensors = [_renamed(pred, first, f"{name}/predictions"), _renamed(target, first, f"{name}/targets")]
    if weight is not None:
        tensors.append(_renamed(weight, first, f"{name}/weights"))
    activation = None if output.before is None else output.before.activation
    shape, dtype = output.tensor.shape.to_integer_list, tf.as_dtype(term.loss.dtype)

    def predictions(x: tf.Tensor) -> tf.Tensor:
        return x if activation is None else activation(x)

    def whole(x: tf.Tensor, y_true: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        y_pred = predictions(x)
        if y_pred.shape.as_list() != shape:
            y_pred = tf.reshape(y_pred, shape)
        return tf.reshape(term.loss(y_true, y_pred, *weights), [])

    if not is_split:
        return _slicewise(whole, tensors, mtf.Shape([]), (), name, dtype)

    def parts(x: tf.Tensor, y_true: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        values = _values(term.loss, y_true, predictions(x), weights)
        if term.loss.reduction in ("sum_over_batch_size", "mean") or (
            term.loss.reduction == _WEIGHTED and weight is None
        ):
            values /= batch.size * math.prod(values.shape.as_list()[1:])
        return tf.reduce_sum(values, list(range(1, values.shape.rank)))

    loss = mtf.reduce_sum(_slicewise(parts, tensors, mtf.Shape([batch]), [batch], name, dtype))
    if term.loss.reduction == _WEIGHTED and total is not None:
        return _slicewise(tf.math.divide_no_nan, [loss, total], mtf.Shape([]), (), f"{name}/mean", dtype)
    return loss


def is_of_each_example(loss: Any) -> bool:
    """Whether a loss has a value of each example that depends on no other."""
    function = getattr(loss, "fn", None)
    options = getattr(loss, "_fn_kwargs", {})
    kind = type(loss)
    known = kind.__module__.startswith("keras.") and kind.__call__ is keras.losses.Loss.__call__
    return known and _is_known(function) and all(options.get(key, value) == value for key, value in _PLAIN.items())


def _is_known(function: Any) -> bool:
    return any(function is known for known in _OF_EACH_EXAMPLE)


def _values(loss: Any, y_true: tf.Tensor, y_pred: tf.Tensor, weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """The values of a slice's examples, weighted, as keras.Loss has them before it adds them up: [batch, ...]."""
    y_pred, y_true = (keras.ops.convert_to_tensor(y, dtype=loss.dtype) for y in (y_pred, y_true))
    values = keras.ops.convert_to_tensor(loss.call(y_true, y_pred), dtype=loss.dtype)
    for weight in weights:
        if weight.shape.rank == values.shape.rank + 1 and weight.shape[-1] == 1:
            weight = tf.squeeze(weight, -1)
        elif weight.shape.rank + 1 == values.shape.rank and values.shape[-1] == 1:
            if weight.shape.rank == 1:
                weight = tf.expand_dims(weight, -1)
            else:
                values = tf.squeeze(values, -1)
        if weight.shape.rank != values.shape.rank:
            raise ValueError(
                f"sample weights have {weight.shape.rank} dimensions, but the values of loss {loss.name!r} have "
                f"{values.shape.rank}; give weights with the same number of dimensions"
            )
        values *= tf.cast(weight, values.dtype)
    return values


def _renamed(x: mtf.Tensor, batch: mtf.Dimension, name: str) -> mtf.Tensor:
    """[batch, NAME/dim1, NAME/dim2, ...], which no layout splits but along the batch."""
    dims = [mtf.Dimension(f"{name}/dim{axis}", dim.size) for axis, dim in enumerate(x.shape.dims[1:], 1)]
    if x.shape.dims[0].size != batch.size:
        batch = mtf.Dimension(f"{name}/dim0", x.shape.dims[0].size)
    return mtf.reshape(x, [batch, *dims])


def _slicewise(
    function: Any,
    tensors: Sequence[mtf.Tensor],
    shape: mtf.Shape,
    splittable: Sequence[mtf.Dimension],
    name: str,
    dtype: tf.DType,
) -> mtf.Tensor:
    """mtf.slicewise, which makes no scalars."""
    return mtf.SlicewiseOperation(function, list(tensors), [shape], [dtype], list(splittable), name=name).outputs[0]


def penalty_of(l1: float, l2: float, value: mtf.Tensor, name: str) -> mtf.Tensor:
    """What Keras adds to the losses for a weight, or for what a layer gives.

    Args:
      l1: factor of the absolute values; one factor at least is not zero.
      l2: factor of the squares.
      value: mtf.Tensor.
      name: of the operations.

    Returns:
      mtf.Tensor [].
    """
    parts = []
    if l1:
        parts.append(mtf.reduce_sum(elementwise(value, tf.abs, f"{name}/l1")) * l1)
    if l2:
        parts.append(mtf.reduce_sum(mtf.square(value)) * l2)
    return sum(parts[1:], parts[0])

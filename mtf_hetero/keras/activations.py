"""Activations. What does to each element the same is computed by Keras's own function, with TensorFlow's gradient."""

from collections.abc import Callable
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.call import Before, Call
from mtf_hetero.keras.registry import find, name_of, register

_ELEMENTWISE = (
    "celu",
    "elu",
    "exponential",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "tanh",
    "tanh_shrink",
    "threshold",
)


def elementwise(x: mtf.Tensor, function: Callable[[tf.Tensor], tf.Tensor], name: str) -> mtf.Tensor:
    """A function of each element by itself.

    Args:
      x: mtf.Tensor of a floating-point dtype.
      function: from a tf.Tensor to one of its shape and dtype, which TensorFlow can differentiate.
      name: the operation's name.
    """

    def differentiate(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        x = tf.identity(x)  # of which nothing is computed but this: TensorFlow looks through all that is
        return tf.gradients(function(x), x, dy)[0]

    def gradient(op: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
        return [mtf.cwise(differentiate, [op.inputs[0], dy], name=f"{name}/gradient")]

    return mtf.cwise(function, [x], grad_function=gradient, name=name)


def activate(call: Call, activation: Any, x: mtf.Tensor) -> mtf.Tensor:
    """What an activation that a layer has makes of its output.

    Raises:
      NotImplementedError: an activation that is not known.
    """
    if activation is None or activation is keras.activations.linear or call.layer is call.building.without:
        return x
    if isinstance(activation, keras.Layer):
        return call.part(activation, activation.name, x)
    function = find(activation)
    if function is None:
        raise NotImplementedError(
            f"layer {call.layer.name!r} has the activation {name_of(activation)}, which mtf_hetero.keras does not "
            "support; register it with mtf_hetero.keras.register"
        )
    y = function(call, x)
    if activation in (keras.activations.softmax, keras.activations.sigmoid):
        call.building.activated[y] = Before(x, activation)
    return y


@register(keras.activations.relu)
def _relu(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return mtf.relu(x)


def softmax(x: mtf.Tensor, axes: tuple[int, ...] | int = -1) -> mtf.Tensor:
    """The softmax over some dimensions, each part of which any processor may have."""
    dims = [x.shape.dims[axis] for axis in ((axes,) if isinstance(axes, int) else axes)]
    others = mtf.Shape([dim for dim in x.shape.dims if dim not in dims])
    y = mtf.exp(x - mtf.stop_gradient(mtf.reduce_max(x, output_shape=others)))
    return y / mtf.reduce_sum(y, output_shape=others)


@register(keras.activations.softmax)
def _softmax(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return softmax(x)


@register(keras.activations.log_softmax)
def _log_softmax(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return mtf.log_softmax(x, x.shape.dims[-1])


def _register_elementwise(name: str) -> None:
    function = getattr(keras.activations, name, None)
    if function is not None:
        register(function)(lambda call, x: elementwise(x, function, f"{call.name}/{name}"))


for _name in _ELEMENTWISE:
    _register_elementwise(_name)


def _is_elementwise(layer: Any) -> bool:
    known = [getattr(keras.activations, name, None) for name in ("linear", "relu", *_ELEMENTWISE)]
    return any(layer.activation is function for function in known if function is not None)


@register(keras.layers.Activation, elementwise=_is_elementwise)
def _activation(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return activate(call, call.layer.activation, x)


@register(keras.layers.Softmax)
def _softmax_layer(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    if call.layer is call.building.without:
        return x
    axis = call.layer.axis
    y = softmax(x, axis if isinstance(axis, int) else tuple(axis))
    call.building.activated[y] = Before(x, call.layer)
    return y


@register(keras.layers.ReLU, elementwise=True)
def _relu_layer(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer = call.layer
    slope, most, threshold = layer.negative_slope, layer.max_value, layer.threshold
    if not slope and most is None and not threshold:
        return mtf.relu(x)
    options = {"negative_slope": slope, "max_value": most, "threshold": threshold}
    return elementwise(x, lambda t: keras.activations.relu(t, **options), f"{call.name}/relu")


@register(keras.layers.LeakyReLU, elementwise=True)
def _leaky_relu_layer(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    slope = call.layer.negative_slope
    return elementwise(x, lambda t: keras.activations.leaky_relu(t, negative_slope=slope), f"{call.name}/leaky_relu")


@register(keras.layers.ELU, elementwise=True)
def _elu_layer(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    alpha = call.layer.alpha
    return elementwise(x, lambda t: keras.activations.elu(t, alpha=alpha), f"{call.name}/elu")


@register(keras.layers.PReLU)
def _prelu_layer(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    variable = call.layer.alpha
    dims = [dim for dim, size in zip(x.shape.dims[1:], variable.shape, strict=True) if dim.size == size != 1]
    if not dims and x.shape.dims:
        dims = x.shape.dims[-1:] if variable.shape[-1] == x.shape.dims[-1].size else []
    alpha = call.variable(variable, dims)
    return mtf.relu(x) - mtf.relu(-x) * alpha

"""Fused operations as arithmetic: batch norms, and the updates of TensorFlow's own optimizers.

Their parts are then followed like any others: a batch norm's sums are all-reduced, an update is split as its variable.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute
from mtf_hetero.importer.program import Operation, Value, known, synthetic

Add = Callable[[Operation], list[Value]]


class Number:
    """A value with arithmetic, each step of which adds an operation to the program.

    Args:
      value: the value.
      add: adds an operation, and returns what it gives.
      name: of the operations.
    """

    def __init__(self, value: Value, add: Add, name: str) -> None:
        self.value, self._add, self._name = value, add, name

    def _made(self, kind: str, *inputs: Value, shape: tuple[int, ...] | None = None, **more: Any) -> "Number":
        shapes = [np.broadcast_shapes(*(x.shape for x in inputs)) if shape is None else shape]
        (y,) = self._add(synthetic(kind, inputs, shapes, self._name, **more))
        return Number(y, self._add, self._name)

    def _with(self, kind: str, one: Any, other: Any) -> "Number":
        values = [x.value if isinstance(x, Number) else known(x, self.value.dtype) for x in (one, other)]
        return self._made(kind, *values)

    def __add__(self, other: Any) -> "Number":
        return self._with("AddV2", self, other)

    def __sub__(self, other: Any) -> "Number":
        return self._with("Sub", self, other)

    def __rsub__(self, other: Any) -> "Number":
        return self._with("Sub", other, self)

    def __mul__(self, other: Any) -> "Number":
        return self._with("Mul", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> "Number":
        return self._with("RealDiv", self, other)

    def __rtruediv__(self, other: Any) -> "Number":
        return self._with("RealDiv", other, self)

    def __neg__(self) -> "Number":
        return self._made("Neg", self.value)

    def __pow__(self, other: Any) -> "Number":
        return self._with("Pow", self, other)

    def apply(self, kind: str) -> "Number":
        """Return what an operation gives of each element."""
        return self._made(kind, self.value)

    def maximum(self, other: Any) -> "Number":
        """Return the larger one of each pair of elements."""
        return self._with("Maximum", self, other)

    def minimum(self, other: Any) -> "Number":
        """Return the smaller one of each pair of elements."""
        return self._with("Minimum", self, other)

    def squared_difference(self, other: "Number") -> "Number":
        """Return the squares of the differences of elements."""
        return self._with("SquaredDifference", self, other)

    def reshape(self, shape: Sequence[int]) -> "Number":
        """Return the numbers in another shape."""
        return self._made("Reshape", self.value, known(shape), shape=tuple(shape), Tshape=tf.int32)

    def over(self, kind: str, axes: Sequence[int]) -> "Number":
        """Return the "Sum" or "Mean" over axes."""
        shape = tuple(n for axis, n in enumerate(self.value.shape) if axis not in axes)
        return self._made(kind, self.value, known(axes), shape=shape, Tidx=tf.int32)

    def cast(self, dtype: tf.DType) -> "Number":
        """Return the numbers in another type."""
        if self.value.dtype == dtype:
            return self
        attributes = {"SrcT": attribute(self.value.dtype), "DstT": attribute(dtype)}
        (y,) = self._add(Operation("Cast", [self.value], [Value(self.value.shape, dtype, name=self._name)], attributes))
        return Number(y, self._add, self._name)


# --- batch norms

NORMS = {f"FusedBatchNorm{kind}" for kind in ("", "V2", "V3", "Grad", "GradV2", "GradV3")}


def follow_norm(op: Operation, add: Add) -> list[Value] | None:
    """Follow a batch norm, or its gradient, of images whose channels come last.

    Args:
      op: the operation.
      add: adds an operation, and returns what it gives.

    Returns:
      What it gives; None if its channels do not come last.
    """
    if op.attr("data_format", "NHWC") not in ("NHWC", "NDHWC"):
        return None
    inputs = [Number(value, add, op.outputs[0].name) for value in op.inputs]
    follow = _norm_gradient if "Grad" in op.type else _norm
    outputs = [number.value for number in follow(op, *inputs)]
    return [*outputs, *(known(np.zeros(0), value.dtype) for value in op.outputs[len(outputs) :])]  # what cuDNN keeps


def _axes(op: Operation) -> list[int]:
    return list(range(len(op.inputs[0].shape) - 1))


def _norm(op: Operation, x: Number, scale: Number, offset: Number, mean: Number, variance: Number) -> list[Number]:
    axes, epsilon, dtype = _axes(op), op.attr("epsilon"), x.value.dtype
    x = x.cast(scale.value.dtype)
    if not op.attr("is_training"):
        y = (x - mean) * (scale * (variance + epsilon).apply("Rsqrt")) + offset
        return [y.cast(dtype), mean, variance, mean, variance]
    count = np.prod([op.inputs[0].shape[axis] for axis in axes])
    old_mean, old_variance, part = mean, variance, op.attr("exponential_avg_factor", 1.0)
    mean = x.over("Mean", axes)
    kept = mean.reshape([*[1] * len(axes), op.inputs[0].shape[-1]])
    variance = x.squared_difference(kept).over("Mean", axes)
    y = (x - mean) * (scale * (variance + epsilon).apply("Rsqrt")) + offset
    unbiased = variance * (count / max(count - 1, 1))
    kept_mean, kept_variance = mean, unbiased
    if part != 1.0:
        kept_mean = old_mean * (1.0 - part) + mean * part
        kept_variance = old_variance * (1.0 - part) + unbiased * part
    return [y.cast(dtype), kept_mean, kept_variance, mean, variance]


def _norm_gradient(
    op: Operation, dy: Number, x: Number, scale: Number, mean: Number, variance: Number, *_: Number
) -> list[Number]:
    axes, dtype = _axes(op), x.value.dtype
    x, dy = x.cast(scale.value.dtype), dy.cast(scale.value.dtype)
    inverse = (variance + op.attr("epsilon")).apply("Rsqrt")
    centred = x - mean
    d_offset = dy.over("Sum", axes)
    d_scale = (dy * centred).over("Sum", axes) * inverse
    dx = dy
    if op.attr("is_training"):
        part = 1.0 / np.prod([op.inputs[0].shape[axis] for axis in axes])
        dx = dy - d_offset * part - centred * (d_scale * inverse * part)
    return [(dx * (scale * inverse)).cast(dtype), d_scale, d_offset]


# --- updates of optimizers: the states before, and numbers, to the states after; the variable comes first

Update = Callable[..., Sequence[Any]]


def _descend(var, rate, grad, **_):
    return (var - grad * rate,)


def _momentum(var, sum_, rate, grad, momentum, *, use_nesterov, **_):
    sum_ = sum_ * momentum + grad
    return (var - (grad * rate + sum_ * momentum * rate if use_nesterov else sum_ * rate)), sum_


def _keras_momentum(var, sum_, rate, grad, momentum, *, use_nesterov, **_):
    sum_ = sum_ * momentum - grad * rate
    return (var + (sum_ * momentum - grad * rate if use_nesterov else sum_)), sum_


def _adam(var, m, v, power1, power2, rate, beta1, beta2, epsilon, grad, *, use_nesterov, **_):
    alpha = rate * (1.0 - power2).apply("Sqrt") / (1.0 - power1)
    m, v = m + (grad - m) * (1.0 - beta1), v + (grad.apply("Square") - v) * (1.0 - beta2)
    step = grad * (1.0 - beta1) + beta1 * m if use_nesterov else m
    return var - step * alpha / (v.apply("Sqrt") + epsilon), m, v


def _amsgrad(var, m, v, vhat, power1, power2, rate, beta1, beta2, epsilon, grad, **_):
    alpha = rate * (1.0 - power2).apply("Sqrt") / (1.0 - power1)
    m, v = m + (grad - m) * (1.0 - beta1), v + (grad.apply("Square") - v) * (1.0 - beta2)
    vhat = vhat.maximum(v)
    return var - m * alpha / (vhat.apply("Sqrt") + epsilon), m, v, vhat


def _adamax(var, m, v, power1, rate, beta1, beta2, epsilon, grad, **_):
    m, v = m + (grad - m) * (1.0 - beta1), (beta2 * v).maximum(grad.apply("Abs"))
    return var - rate / (1.0 - power1) * (m / (v + epsilon)), m, v


def _rmsprop(var, ms, mom, rate, rho, momentum, epsilon, grad, **_):
    ms = ms + (grad.apply("Square") - ms) * (1.0 - rho)
    mom = mom * momentum + grad * rate / (ms + epsilon).apply("Sqrt")
    return var - mom, ms, mom


def _centered_rmsprop(var, mg, ms, mom, rate, rho, momentum, epsilon, grad, **_):
    ms, mg = ms + (grad.apply("Square") - ms) * (1.0 - rho), mg + (grad - mg) * (1.0 - rho)
    mom = mom * momentum + grad * rate / (ms - mg.apply("Square") + epsilon).apply("Sqrt")
    return var - mom, mg, ms, mom


def _adagrad(var, sum_, rate, grad, *, update_slots, **_):
    sum_ = sum_ + grad.apply("Square") if update_slots else sum_
    return var - grad * rate * sum_.apply("Rsqrt"), sum_


def _adagrad_v2(var, sum_, rate, epsilon, grad, *, update_slots, **_):
    sum_ = sum_ + grad.apply("Square") if update_slots else sum_
    return var - grad * rate / (sum_.apply("Sqrt") + epsilon), sum_


def _adadelta(var, sum_, deltas, rate, rho, epsilon, grad, **_):
    sum_ = sum_ * rho + grad.apply("Square") * (1.0 - rho)
    delta = (deltas + epsilon).apply("Sqrt") * (sum_ + epsilon).apply("Rsqrt") * grad
    return var - delta * rate, sum_, deltas * rho + delta.apply("Square") * (1.0 - rho)


def _ftrl(var, sum_, linear, grad, rate, l1, l2, power, **_):
    return _ftrl_v2(var, sum_, linear, grad, rate, l1, l2, l2 * 0.0, power)


def _ftrl_v2(var, sum_, linear, grad, rate, l1, l2, shrinkage, power, **_):
    new = sum_ + grad.apply("Square")
    step = (new ** (-power) - sum_ ** (-power)) / rate
    linear = linear + (grad + 2.0 * shrinkage * var) - step * var
    return (linear.minimum(l1).maximum(-l1) - linear) / (new ** (-power) / rate + 2.0 * l2), new, linear


UPDATES: Mapping[str, tuple[int, Update]] = {  # number of variables, and the rule
    "ResourceApplyGradientDescent": (1, _descend),
    "ResourceApplyMomentum": (2, _momentum),
    "ResourceApplyKerasMomentum": (2, _keras_momentum),
    "ResourceApplyAdam": (3, _adam),
    "ResourceApplyAdamWithAmsgrad": (4, _amsgrad),
    "ResourceApplyAdaMax": (3, _adamax),
    "ResourceApplyRMSProp": (3, _rmsprop),
    "ResourceApplyCenteredRMSProp": (4, _centered_rmsprop),
    "ResourceApplyAdagrad": (2, _adagrad),
    "ResourceApplyAdagradV2": (2, _adagrad_v2),
    "ResourceApplyAdadelta": (3, _adadelta),
    "ResourceApplyFtrl": (3, _ftrl),
    "ResourceApplyFtrlV2": (3, _ftrl_v2),
}


def follow_update(node: Any, inputs: Sequence[Any], now: list[Value], add: Add) -> None:
    """Follow the update of a variable by one of TensorFlow's optimizers, as its formula on the values.

    Args:
      node: the tf.Operation.
      inputs: the numbers of its variables, and values.
      now: the value of each variable at this point, which the update changes.
      add: adds an operation, and returns what it gives.
    """
    count, rule = UPDATES[node.type]
    values = [*(now[number] for number in inputs[:count]), *inputs[count:]]
    flags = {name: node.node_def.attr[name].b for name in ("use_nesterov", "update_slots")}
    for number, after in zip(inputs, rule(*(Number(value, add, node.name) for value in values), **flags), strict=False):
        now[number] = after.value

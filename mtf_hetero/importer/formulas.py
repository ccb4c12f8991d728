"""Fused operations and updates of variables as functions of TensorFlow, which are traced and followed in their place.

A batch norm's sums are then all-reduced, and an update is split as its variable.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.importer import draws
from mtf_hetero.mesh.initial import PHILOX, STATELESS

Attributes = Callable[..., Any]  # as Operation.attr
Rule = Callable[..., Sequence[tf.Tensor]]  # of the attributes and of tensors

# --- batch norms of images whose channels come last


def _norm(attr: Attributes, x, scale, offset, mean, variance):
    y, kept = tf.cast(x, scale.dtype), (mean, variance)
    if attr("is_training"):
        part, count = attr("exponential_avg_factor", 1.0), x.shape[:-1].num_elements()
        mean, variance = tf.nn.moments(y, list(range(x.shape.rank - 1)))
        new = mean, variance * (count / max(count - 1, 1))
        kept = new if part == 1.0 else [a * (1 - part) + b * part for a, b in zip(kept, new, strict=True)]
    y = tf.nn.batch_normalization(y, mean, variance, offset, scale, attr("epsilon"))
    return tf.cast(y, x.dtype), *kept, mean, variance


def _norm_gradient(attr: Attributes, dy, x, scale, mean, variance, *_):
    offset = tf.zeros_like(scale)
    with tf.GradientTape() as tape:
        tape.watch([x, scale, offset])
        y, *_ = _norm(attr, x, scale, offset, mean, variance)  # moments that are equal to the norm's are merged
    return tape.gradient(y, [x, scale, offset], dy)


NORMS: Mapping[str, Rule] = {
    f"FusedBatchNorm{way}{version}": rule
    for way, rule in (("", _norm), ("Grad", _norm_gradient))
    for version in ("", "V2", "V3")
}

# --- updates by optimizers: states before, and numbers, to states after; the variable comes first


def _descend(attr, var, rate, grad):
    return (var - grad * rate,)


def _momentum(attr, var, sum_, rate, grad, momentum):
    sum_ = sum_ * momentum + grad
    return (var - (grad * rate + sum_ * momentum * rate if attr("use_nesterov") else sum_ * rate)), sum_


def _keras_momentum(attr, var, sum_, rate, grad, momentum):
    sum_ = sum_ * momentum - grad * rate
    return (var + (sum_ * momentum - grad * rate if attr("use_nesterov") else sum_)), sum_


def _moving(average, new, rate):
    return average + (new - average) * (1.0 - rate)


def _adam(attr, var, m, v, *rest):
    """Adam, or AMSGrad, which has one more state."""
    *largest, power1, power2, rate, beta1, beta2, epsilon, grad = rest
    alpha = rate * tf.sqrt(1.0 - power2) / (1.0 - power1)
    m, v = _moving(m, grad, beta1), _moving(v, tf.square(grad), beta2)
    step = grad * (1.0 - beta1) + beta1 * m if attr("use_nesterov") else m
    largest = [tf.maximum(before, v) for before in largest]
    return var - step * alpha / (tf.sqrt([*largest, v][0]) + epsilon), m, v, *largest


def _adamax(attr, var, m, v, power1, rate, beta1, beta2, epsilon, grad):
    m, v = _moving(m, grad, beta1), tf.maximum(beta2 * v, tf.abs(grad))
    return var - rate / (1.0 - power1) * (m / (v + epsilon)), m, v


def _rmsprop(attr, var, *rest):
    """RMSprop, whose centered variant has one more state before the others."""
    *mean, ms, mom, rate, rho, momentum, epsilon, grad = rest
    ms, mean = _moving(ms, tf.square(grad), rho), [_moving(before, grad, rho) for before in mean]
    variance = ms - tf.square(mean[0]) if mean else ms
    mom = mom * momentum + grad * rate / tf.sqrt(variance + epsilon)
    return var - mom, *mean, ms, mom


def _adagrad(attr, var, sum_, rate, grad):
    sum_ = sum_ + tf.square(grad) if attr("update_slots") else sum_
    return var - grad * rate * tf.math.rsqrt(sum_), sum_


def _adagrad_v2(attr, var, sum_, rate, epsilon, grad):
    sum_ = sum_ + tf.square(grad) if attr("update_slots") else sum_
    return var - grad * rate / (tf.sqrt(sum_) + epsilon), sum_


def _adadelta(attr, var, sum_, deltas, rate, rho, epsilon, grad):
    sum_ = sum_ * rho + tf.square(grad) * (1.0 - rho)
    delta = tf.sqrt(deltas + epsilon) * tf.math.rsqrt(sum_ + epsilon) * grad
    return var - delta * rate, sum_, deltas * rho + tf.square(delta) * (1.0 - rho)


def _ftrl(attr, var, sum_, linear, grad, rate, l1, l2, power):
    return _ftrl_v2(attr, var, sum_, linear, grad, rate, l1, l2, l2 * 0.0, power)


def _ftrl_v2(attr, var, sum_, linear, grad, rate, l1, l2, shrinkage, power):
    new = sum_ + tf.square(grad)
    step = (new ** (-power) - sum_ ** (-power)) / rate
    linear = linear + (grad + 2.0 * shrinkage * var) - step * var
    clipped = tf.maximum(tf.minimum(linear, l1), -l1)
    return (clipped - linear) / (new ** (-power) / rate + 2.0 * l2), new, linear


# --- writes and reads of parts


def _scatter(function: Callable[..., tf.Tensor], *, is_nd: bool) -> Rule:
    """Return the rule that gives a variable what a scatter of its rows gives; indices name rows, or elements."""
    return lambda attr, var, ids, rows: (function(var, ids if is_nd else tf.expand_dims(ids, -1), rows),)


def _add_rows(sign: int) -> Rule:
    """Return the rule that adds sums of rows, of which examples give addends."""

    def rule(attr, var, ids, rows):
        if rows.shape.rank == 0:
            rows = tf.broadcast_to(rows, ids.shape.concatenate(var.shape[1:]))
        sums = tf.math.unsorted_segment_sum(rows, ids, var.shape.as_list()[0])
        return (var + sums if sign > 0 else var - sums,)

    return rule


def _write_box(attr, var, begin, end, strides, value):
    masks = {
        f"{name}_mask": attr(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    return (
        tf.raw_ops.TensorStridedSliceUpdate(input=var, begin=begin, end=end, strides=strides, value=value, **masks),
    )


def _rows(attr, var, ids):
    count = attr("batch_dims", 0)
    return tf.gather(var, ids, axis=count, batch_dims=count)


def _draw(attr, state, algorithm, count):
    counter = draws.advanced(tf.bitcast(state[:2], tf.uint64), count * 256)  # for a number of any distribution
    return (tf.concat([tf.bitcast(counter, tf.int64), state[2:]], axis=0),)


WRITES: Mapping[str, Rule] = {  # variables come first among the inputs, and their new values are the results
    "ResourceApplyGradientDescent": _descend,
    "ResourceApplyMomentum": _momentum,
    "ResourceApplyKerasMomentum": _keras_momentum,
    "ResourceApplyAdam": _adam,
    "ResourceApplyAdamWithAmsgrad": _adam,
    "ResourceApplyAdaMax": _adamax,
    "ResourceApplyRMSProp": _rmsprop,
    "ResourceApplyCenteredRMSProp": _rmsprop,
    "ResourceApplyAdagrad": _adagrad,
    "ResourceApplyAdagradV2": _adagrad_v2,
    "ResourceApplyAdadelta": _adadelta,
    "ResourceApplyFtrl": _ftrl,
    "ResourceApplyFtrlV2": _ftrl_v2,
    "AssignAddVariableOp": lambda attr, var, x: (var + x,),
    "AssignSubVariableOp": lambda attr, var, x: (var - x,),
    "ResourceScatterAdd": _add_rows(1),
    "ResourceScatterSub": _add_rows(-1),
    "ResourceScatterUpdate": _scatter(tf.tensor_scatter_nd_update, is_nd=False),
    "ResourceScatterMax": _scatter(tf.tensor_scatter_nd_max, is_nd=False),
    "ResourceScatterMin": _scatter(tf.tensor_scatter_nd_min, is_nd=False),
    "ResourceScatterNdAdd": _scatter(tf.tensor_scatter_nd_add, is_nd=True),
    "ResourceScatterNdSub": _scatter(tf.tensor_scatter_nd_sub, is_nd=True),
    "ResourceScatterNdUpdate": _scatter(tf.tensor_scatter_nd_update, is_nd=True),
    "ResourceStridedSliceAssign": _write_box,
}
READS: Mapping[str, Callable[..., tf.Tensor]] = {
    "ResourceGather": _rows,
    "ResourceGatherNd": lambda attr, var, ids: tf.gather_nd(var, ids),
}


def _stream(draw: Callable[..., tf.Tensor]) -> Rule:
    """Return the rule of an operation with a state of its own: (state, shape, limits) to (numbers, state after)."""

    def rule(attr, state, shape, *limits):
        limits = dict(zip(("minval", "maxval"), limits, strict=False)) or {"dtype": attr("dtype")}
        counter, key = tf.bitcast(state[:2], tf.uint64), tf.bitcast(state[2:], tf.uint64)
        count = tf.cast(tf.reduce_prod(tf.cast(shape, tf.int64)), tf.uint64)
        (after,) = _draw(attr, state, PHILOX, count)
        return draw(shape=shape, key=key, counter=counter, alg=PHILOX, **limits), after

    return rule


STREAMS: Mapping[str, Rule] = {
    kind: _stream(draw)
    for kind, draw in {**STATELESS, "RandomUniformInt": tf.raw_ops.StatelessRandomUniformIntV2}.items()
}
DRAWS: Mapping[str, Rule] = {"RngReadAndSkip": _draw}  # the result is the value before, and the rule's the value after

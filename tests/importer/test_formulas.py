"""Batch norms in one operation, and the updates of TensorFlow's own optimizers, give what TensorFlow gives."""

import numpy as np
import pytest
import tiers
from import_oracle import BATCH, ONE, check, images, split

import mtf_hetero
from mtf_hetero import tf

raw, function = tf.raw_ops, tf.compat.v2.function
INPUTS = [(np.random.default_rng(step).standard_normal((14, 6)),) for step in range(3)]


def norm(is_training, factor=1.0):
    """A step that trains through a fused batch norm, and keeps its moving averages."""

    def make():
        start = [np.ones(3), np.zeros(3), np.full(3, 0.1), np.full(3, 0.9)]
        scale, offset, mean, variance = variables = [tf.Variable(np.float32(x)) for x in start]

        @function
        def step(x, _):
            x = tf.cast(x, tf.float32)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, new_mean, new_variance, *_ = raw.FusedBatchNormV3(
                    x=x,
                    scale=scale,
                    offset=offset,
                    mean=mean,
                    variance=variance,
                    is_training=is_training,
                    exponential_avg_factor=factor,
                )
                loss = tf.reduce_mean(y**3 * x)
            gradients = tape.gradient(loss, [x, scale, offset])
            mean.assign(new_mean)
            variance.assign(new_variance)
            scale.assign_sub(0.1 * gradients[1])
            offset.assign_sub(0.1 * gradients[2])
            return y, gradients[0]

        return step, variables, images()

    return make


@pytest.mark.parametrize("is_training", [True, False])
def test_batch_norm(is_training):
    one, batch = check(norm(is_training, 0.2 if is_training else 1.0), ONE, BATCH, tolerance=1e-5)
    if is_training:
        assert [type(op).__name__ for op in batch.graph.operations].count("BatchNormOperation") == 1
    assert not any("FusedBatchNorm" in op.type for op in one.step.program.operations)


SIX = dict(zip(("lr", "beta1", "beta2", "epsilon", "beta1_power", "beta2_power"), (0.1, 0.9, 0.99, 1e-3, 0.9, 0.99)))
UPDATES = {
    "ResourceApplyGradientDescent": ("var", {"alpha": 0.1}),
    "ResourceApplyMomentum": ("var accum", {"lr": 0.1, "momentum": 0.9, "use_nesterov": True}),
    "ResourceApplyKerasMomentum": ("var accum", {"lr": 0.1, "momentum": 0.9, "use_nesterov": True}),
    "ResourceApplyAdam": ("var m v", {**SIX, "use_nesterov": True}),
    "ResourceApplyAdamWithAmsgrad": ("var m v vhat", SIX),
    "ResourceApplyAdaMax": ("var m v", {name: x for name, x in SIX.items() if name != "beta2_power"}),
    "ResourceApplyRMSProp": ("var ms mom", {"lr": 0.1, "rho": 0.9, "momentum": 0.5, "epsilon": 1e-3}),
    "ResourceApplyCenteredRMSProp": ("var mg ms mom", {"lr": 0.1, "rho": 0.9, "momentum": 0.5, "epsilon": 1e-1}),
    "ResourceApplyAdagrad": ("var accum", {"lr": 0.1}),
    "ResourceApplyAdagradV2": ("var accum", {"lr": 0.1, "epsilon": 1e-3}),
    "ResourceApplyAdadelta": ("var accum accum_update", {"lr": 0.1, "rho": 0.9, "epsilon": 1e-3}),
    "ResourceApplyFtrl": ("var accum linear", {"lr": 0.1, "l1": 0.01, "l2": 0.02, "lr_power": -0.5}),
    "ResourceApplyFtrlV2": (
        "var accum linear",
        {"lr": 0.1, "l1": 0.01, "l2": 0.02, "l2_shrinkage": 0.03, "lr_power": -0.5},
    ),
}
_ATTRIBUTES = ("use_nesterov",)


@tiers.parametrize("kind", UPDATES, first=["ResourceApplyAdam", "ResourceApplyFtrlV2"])
def test_updates(kind):
    names, arguments = UPDATES[kind]

    def make():
        starts = [0.0 if name in ("m", "mg", "mom", "linear") else 0.1 for name in names.split()]
        variables = [tf.Variable(np.full((6, 5), x), name=name) for x, name in zip(starts, names.split())]
        numbers = {k: x if k in _ATTRIBUTES else tf.constant(x, tf.float64) for k, x in arguments.items()}

        @function
        def step(x):
            gradient = tf.matmul(x, x @ variables[0] - tf.reduce_sum(x, 1, keepdims=True), transpose_a=True) / 14.0
            handles = {name: v.handle for name, v in zip(names.split(), variables)}
            operand = "delta" if "Descent" in kind else "grad"
            getattr(raw, kind)(**handles, **numbers, **{operand: gradient})
            return tf.reduce_sum(variables[0])

        return step, variables, INPUTS

    check(make, ONE, BATCH, split("var/1"))


@pytest.mark.user_lines
def test_updates_of_rows_are_refused():
    w, s = tf.Variable(np.zeros((6, 5)), name="w"), tf.Variable(np.ones((6, 5)), name="s")

    def step(x):
        raw.ResourceSparseApplyAdagrad(var=w.handle, accum=s.handle, lr=x[0, 0], grad=x[:2, :5], indices=[1, 2])
        return x

    match = r"^operation ResourceSparseApplyAdagrad .* \(test_formulas.py:\d+\) .*; give the optimizer tf.convert_to"
    with pytest.raises(NotImplementedError, match=match):
        mtf_hetero.function(step, INPUTS[0], **ONE)

"""An Estimator of two dense layers on uneven meshes, whose optimizer has slots."""

import numpy as np

import mtf_hetero.layers
from mtf_hetero import Estimator, EstimatorSpec, Layout, Lowering, ModeKeys, RunConfig, UnevenMeshImpl, mtf, tf

BATCH, INPUTS, HIDDEN, OUTPUTS = (
    mtf.Dimension(name, size) for name, size in [("batch", 6), ("inputs", 5), ("hidden", 11), ("outputs", 3)]
)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((18, INPUTS.size))
Y = X @ RNG.standard_normal((INPUTS.size, OUTPUTS.size))
LAYOUTS = {
    "two": Layout("all:2", "hidden:all", {"all": [3, 1]}),
    "three": Layout("all:3", "hidden:all", {"all": [70, 25, 5]}),
    "batch": Layout("all:3", "batch:all", {"all": [3, 2, 1]}),
    "four": Layout("rows:2;cols:2", "batch:rows;hidden:cols", {"rows": [2, 1], "cols": [1, 3]}),
    "one": Layout("all:1", ""),
    "empty": Layout("rows:2;cols:2", "batch:rows;hidden:cols", sizes={"batch": [6, 0], "hidden": [0, 11]}),
}
OPTIMIZERS = {  # each made in the graph of its training
    "sgd": lambda: mtf.optimize.SgdOptimizer(0.05),
    "momentum": lambda: mtf.optimize.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: mtf.optimize.AdamWeightDecayOptimizer(0.05, 0.01),
    "adafactor": lambda: mtf.optimize.AdafactorOptimizer(beta1=0.9, min_dim_size_to_factor=3),
}


def input_fn():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH.size, drop_remainder=True).repeat()


def model_fn(features, labels, mode, params):
    """Return the spec; params has a layout, and may have devices, an optimizer, a dtype and `noisy`.

    `noisy` has a batch norm and dropout between the layers.
    """
    devices = params.get("devices") or [f"cpu:{number}" for number in range(params["layout"].size)]
    mesh_impl = UnevenMeshImpl.from_layout(params["layout"], devices)
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    dtype = mtf.VariableDType(params.get("dtype", tf.float64))
    features = tf.cast(features, dtype.activation_dtype)
    x = mtf.import_tf_tensor(mesh, features, mtf.Shape([BATCH, INPUTS]))
    h = mtf.layers.dense(x, HIDDEN, reduced_dims=[INPUTS], activation=mtf.tanh, variable_dtype=dtype, name="first")
    if params.get("noisy"):
        h = mtf_hetero.layers.batch_norm(h, training=True, name="norm")
        h = mtf.dropout(h, is_training=True, keep_prob=0.7, name="drop")
    y = mtf.layers.dense(h, OUTPUTS, reduced_dims=[HIDDEN], variable_dtype=dtype, name="second")
    if mode == ModeKeys.PREDICT:
        lowering = Lowering(graph, {mesh: mesh_impl})
        return EstimatorSpec(mode, predictions=lowering.export_to_tf_tensor(y))
    targets = mtf.import_tf_tensor(mesh, tf.cast(labels, dtype.activation_dtype), mtf.Shape([BATCH, OUTPUTS]))
    loss = mtf.reduce_mean(mtf.square(y - targets))
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    updates = OPTIMIZERS[params.get("optimizer", "momentum")]().apply_grads(gradients, variables)
    updates += mtf_hetero.layers.batch_norm_updates(graph)
    lowering = Lowering(graph, {mesh: mesh_impl})
    with tf.control_dependencies([lowering.lowered_operation(op) for op in updates]):
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
    return EstimatorSpec(mode, loss=lowering.export_to_tf_tensor(loss), train_op=train_op)


def estimator(layout, model_dir, *, params=None, **config):
    session_config = tf.ConfigProto(device_count={"CPU": LAYOUTS[layout].size})
    params = {"layout": LAYOUTS[layout], **(params or {})}
    return Estimator(model_fn, str(model_dir), RunConfig(session_config=session_config, **config), params)

"""Train your own convolutional network under every recipe of mtf_hetero.layouts, with the same losses.

    python examples/own_cnn.py

Each recipe splits the network over two devices in its own way, 3 : 2. The losses of three steps differ only by
rounding. The program prints the recipe, its losses, and the dimensions that it splits:

    batch    2.26060 1.69937 1.52514 batch, dense/batch
    ...
    all layouts agree
"""

import numpy as np

import mtf_hetero
from mtf_hetero import mtf, tf
from mtf_hetero.layouts import LAYOUTS


def network(images):
    """Return logits of images [batch, height, width, channels]. Each layer names its own dimensions."""
    x = images
    for name in ("conv1", "conv2"):
        x = mtf.rename_dimension(x, x.shape.dims[-1].name, f"{name}/channels")
        x = mtf.relu(mtf.layers.conv2d(x, mtf.Dimension(f"{name}/filters", 12), padding="SAME", name=name))
    batch, height, width, channels = mtf.layers.max_pool2d(x).shape.dims
    dense = [mtf.Dimension("dense/batch", batch.size), height, width, mtf.Dimension("dense/inputs", channels.size)]
    x = mtf.reshape(mtf.layers.max_pool2d(x), dense)
    return mtf.layers.dense(x, mtf.Dimension("classes", 10), reduced_dims=dense[1:], name="dense")


def train(recipe):
    """Train for three steps; return the layout and the loss of each step."""
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        tf.set_random_seed(1)
        rng, graph = np.random.default_rng(1), mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        sizes = {"batch": 8, "height": 16, "width": 16, "channels": 3}
        shape = mtf.Shape([mtf.Dimension(name, size) for name, size in sizes.items()])
        logits = network(mtf.import_tf_tensor(mesh, rng.random(shape.to_integer_list, np.float32), shape))
        labels = mtf.import_tf_tensor(mesh, rng.integers(0, 10, 8, np.int32), logits.shape[:1])
        losses = mtf.layers.softmax_cross_entropy_with_logits(logits, labels, logits.shape.dims[-1])
        loss = mtf.reduce_mean(losses)
        gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
        updates = mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, graph.trainable_variables)
        layout = recipe(graph, mesh_shape="all:2", shares={"all": [3, 2]})
        mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, ["cpu:0", "cpu:1"])
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
        step = [lowering.export_to_tf_tensor(loss), [lowering.lowered_operation(op) for op in updates]]
        for op in (tf.global_variables_initializer(), lowering.copy_masters_to_slices()):
            session.run(op)
        return layout, [session.run(step)[0] for _ in range(3)]


trained = {name: train(recipe) for name, recipe in LAYOUTS.items()}
for name, (layout, losses) in trained.items():
    print(f"{name:8}", *(f"{loss:.5f}" for loss in losses), ", ".join(dim for dim, _ in layout.rules))
np.testing.assert_allclose([losses for _, losses in trained.values()], [trained["batch"][1]] * len(trained), rtol=1e-5)
print("all layouts agree")

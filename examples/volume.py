"""Split the depth of volumes over two devices. Each device reads, holds and convolves its own planes.

    python examples/volume.py

A 3D network learns to predict the radius of a ball. One device has 21 of the 32 planes of each volume, and the other
device has 11. The lowering exchanges the halo planes that a convolution needs. After half a minute the program prints:

    slabs of a batch: (4, 21, 32, 32, 1) (4, 11, 32, 32, 1)
    mean loss of steps 0 to 9: 0.93, of steps 90 to 99: 0.16
"""

import functools
import tempfile

import numpy as np

from mtf_hetero import Lowering, UnevenMeshImpl, data, mtf, tf

tf.disable_eager_execution()  # mtf builds TensorFlow graphs
tf.set_random_seed(1)
DIMS = {"batch": 4, "depth": 32, "height": 32, "width": 32, "channels": 1}
SHAPE = mtf.Shape([mtf.Dimension(*item) for item in DIMS.items()])


def write_balls(directory):
    """Write volumes plane by plane. The target of each volume is the radius of its ball."""
    distance = np.linalg.norm(np.indices([32, 32, 32]) - 15.5, axis=0)[..., None]
    planes = data.Planes((32, 32, 32, 1), "float32", targets=("radius",))
    with data.write_volumes(directory, planes, provenance={"made by": "volume.py"}) as writer:
        for radius in np.linspace(4, 15, 24):
            writer.add("train", [(distance < radius, None)], [radius])


def network(x):
    """Return the radii [batch, outputs] of the balls in volumes [batch, depth, height, width, channels]."""
    for name in ("conv1", "conv2"):
        x = mtf.relu(mtf.layers.conv3d(x, mtf.Dimension(name, 8), padding="SAME", name=name))
    x = mtf.reduce_mean(x, output_shape=[x.shape.dims[0], x.shape.dims[-1]])
    return mtf.layers.dense(x, mtf.Dimension("outputs", 1), reduced_dims=x.shape.dims[-1:], name="dense")


with tempfile.TemporaryDirectory() as directory:
    write_balls(f"{directory}/balls")
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    mesh_impl = UnevenMeshImpl("depth:2", "depth:depth", ["cpu:0", "cpu:1"], shares={"depth": [2, 1]})
    make = functools.partial(data.load_volumes(f"{directory}/balls").train_input_fn, 4, epochs=20)
    features, targets = data.laid_out_volumes(make, mesh_impl.layout, SHAPE, mesh_impl.devices)
    radii = network(mtf.import_laid_out_tensor(mesh, mesh_impl.LaidOutTensor(list(features["image"])), SHAPE))
    true = mtf.import_laid_out_tensor(mesh, mesh_impl.LaidOutTensor(list(targets)), radii.shape)
    loss = mtf.reduce_mean(mtf.square(radii - true))
    gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
    updates = mtf.optimize.AdafactorOptimizer().apply_grads(gradients, graph.trainable_variables)
    lowering = Lowering(graph, {mesh: mesh_impl})
    step = [lowering.export_to_tf_tensor(loss), [lowering.lowered_operation(op) for op in updates]]
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        for op in (tf.global_variables_initializer(), lowering.copy_masters_to_slices(), tf.tables_initializer()):
            session.run(op)
        losses = [session.run(step)[0] for _ in range(100)]
print("slabs of a batch:", *(slab.shape for slab in features["image"]))
print(f"mean loss of steps 0 to 9: {np.mean(losses[:10]):.2f}, of steps 90 to 99: {np.mean(losses[-10:]):.2f}")

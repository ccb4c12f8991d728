"""Run a small Mesh-TensorFlow program on three unequal devices. Two names differ from stock mtf, marked `was`.

    python examples/two_names.py

The program trains two dense layers. Their 60 hidden units are split 70 : 25 : 5, here over three logical devices of one
CPU. It prints the loss, the sizes of the hidden units, and the shape of each processor's slice of the first kernel:

    step 0: loss 0.41658
    step 5: loss 0.22690
    hidden units: (42, 15, 3)
    slices of first/kernel: [16, 42] [16, 15] [16, 3]

With PlacementMeshImpl and mtf.Lowering, the program computes the same in equal slices of 20 units.
"""

import numpy as np

import mtf_hetero
from mtf_hetero import mtf, tf  # mesh_tensorflow and tensorflow.compat.v1, made to work together

tf.disable_eager_execution()  # mtf builds TensorFlow graphs
tf.set_random_seed(1)

graph = mtf.Graph()
mesh = mtf.Mesh(graph, "mesh")
batch, channels, hidden = mtf.Dimension("batch", 8), mtf.Dimension("channels", 16), mtf.Dimension("hidden", 60)
images = np.random.default_rng(1).random((8, 16), np.float32)
x = mtf.import_tf_tensor(mesh, images, mtf.Shape([batch, channels]))
h = mtf.layers.dense(x, hidden, reduced_dims=[channels], activation=mtf.relu, name="first")
y = mtf.layers.dense(h, channels, reduced_dims=[hidden], name="second")
loss = mtf.reduce_mean(mtf.square(y - x))
variables = graph.trainable_variables
gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
updates = mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, variables)

mesh_impl = mtf_hetero.UnevenMeshImpl(  # was: mtf.placement_mesh_impl.PlacementMeshImpl
    shape="all:3",
    layout="hidden:all",
    devices=["cpu:0", "cpu:1", "cpu:2"],
    shares={"all": [70, 25, 5]},  # new: one weight per device; without it the split is even
)
lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})  # was: mtf.Lowering
tf_loss = lowering.export_to_tf_tensor(loss)
train = tf.group([lowering.lowered_operation(op) for op in updates])
initialize = [tf.global_variables_initializer(), lowering.copy_masters_to_slices()]

with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:  # three logical devices of one CPU
    for op in initialize:
        session.run(op)
    for step in range(10):
        value, _ = session.run([tf_loss, train])
        if step % 5 == 0:
            print(f"step {step}: loss {value:.5f}")

kernel = mtf.Shape([channels, hidden])
print("hidden units:", mesh_impl.layout.split("hidden", 60))
print("slices of first/kernel:", *(mesh_impl.slice_shape(kernel, pnum) for pnum in range(3)))

"""Compare an even split with a split by speed, on two unequal workers of one machine.

    python examples/local_cluster.py

The program starts two TensorFlow workers, which the kernel limits to 0.6 and 0.2 of a core. It times a training step of
LeNet with 1,024 images, split evenly and 3 : 1. After about half a minute it prints, for example:

    batch (512, 512): 0.20 s per step, loss 2.33652
    batch (768, 256): 0.14 s per step, loss 2.33652
"""

from mtf_hetero.cluster.emulation import isolation

isolation.enter()  # a private network, if the kernel allows it; call it before TensorFlow and NumPy are imported

import statistics
import time

import numpy as np

import mtf_hetero
from mtf_hetero import mtf, tf
from mtf_hetero.cluster import LocalCluster
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.models import MODELS

SIZES = {"batch": 1024, "height": 28, "width": 28, "channels": 1}


def measure(cluster, shares):
    """Print the median time of five training steps, and the loss of the first step."""
    tf.set_random_seed(1)
    rng, graph = np.random.default_rng(1), mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    shape = mtf.Shape([mtf.Dimension(*item) for item in SIZES.items()])
    logits = MODELS["lenet"].build(mtf.import_tf_tensor(mesh, rng.random(shape.to_integer_list, np.float32), shape))
    labels = mtf.import_tf_tensor(mesh, rng.integers(0, 10, 1024, np.int32), shape[:1])
    loss = mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, labels, logits.shape.dims[-1]))
    gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
    updates = mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, graph.trainable_variables)
    layout = LAYOUTS["batch"](graph, mesh_shape="all:2", shares={"all": shares})
    mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, cluster.devices)
    lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
    step = [lowering.export_to_tf_tensor(loss), [lowering.lowered_operation(op) for op in updates]]
    initialize = [tf.global_variables_initializer(), lowering.copy_masters_to_slices()]
    with tf.Session(cluster.target, config=cluster.session_config()) as session:
        for op in initialize:
            session.run(op)
        loss_before, times = session.run(step)[0], []
        for _ in range(5):
            begin = time.perf_counter()
            session.run(step)
            times.append(time.perf_counter() - begin)
    print(f"batch {layout.split('batch', 1024)}: {statistics.median(times):.2f} s per step, loss {loss_before:.5f}")


with LocalCluster([0.6, 0.2]) as cluster:
    for shares in ([1, 1], [3, 1]):
        with tf.Graph().as_default():
            measure(cluster, shares)

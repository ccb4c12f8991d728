"""Split the attention heads, hidden units and vocabulary of a small Transformer unevenly over three devices.

    python examples/transformer.py

The Transformer learns to predict the next character of a text, first on one device and then on three. There are few
heads, so the program gives their exact sizes. The other dimensions follow the shares. The losses of 12 steps agree:

    heads (8,), d_ff (64,), vocab (17,): loss 3.175, and after 11 steps 0.139
    heads (5, 2, 1), d_ff (45, 16, 3), vocab (12, 4, 1): loss 3.175, and after 11 steps 0.139
"""

import numpy as np

import mtf_hetero
from mtf_hetero import mtf, tf

TEXT = "the sea is wide and the ship is small, the wind is in the sail, the men sing and the sea is calm. " * 3
TOKENS = [sorted(set(TEXT)).index(character) for character in TEXT]
WINDOWS = np.array([TOKENS[:288], TOKENS[1:289]], np.int32).reshape(2, 12, 24)
SIZES = {"batch": 12, "length": 24, "d_model": 32, "heads": 8, "d_kv": 8, "d_ff": 64, "vocab": len(set(TEXT))}
DEVICES, SHARES = ["cpu:0", "cpu:1", "cpu:2"], {"all": [70, 25, 5]}


def mean_loss(mesh):
    """Return the mean cross entropy of the next characters, by a Transformer of one layer."""
    batch, length, model, heads, d_kv, d_ff, vocab = (mtf.Dimension(*item) for item in SIZES.items())
    inputs, targets = (mtf.import_tf_tensor(mesh, x, [batch, length]) for x in WINDOWS)
    x = mtf.layers.embedding(inputs, vocab, model, mtf.VariableDType(), name="characters")
    x += mtf.layers.embedding_weights(mesh, length, model, mtf.VariableDType(), name="positions")
    mask = mtf.layers.attention_mask_autoregressive(mtf.range(mesh, length, tf.int32), tf.float32)
    y = mtf.layers.layer_norm(x, model, name="before_attention")
    x += mtf.layers.multihead_attention(y, None, mask, d_kv, heads, is_training=True)
    y = mtf.layers.layer_norm(x, model, name="before_hidden")
    y = mtf.layers.dense(y, [d_ff], reduced_dims=[model], activation=mtf.relu, name="hidden")
    x += mtf.layers.dense(y, [model], reduced_dims=[d_ff], name="output")
    logits = mtf.layers.dense(mtf.layers.layer_norm(x, model), [vocab], reduced_dims=[model], name="logits")
    return mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, targets, vocab))


def train(mesh_impl):
    """Train on a mesh; print the sizes of the slices, and return the loss of each step."""
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        tf.set_random_seed(1)
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        loss = mean_loss(mesh)
        gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
        updates = mtf.optimize.AdamWeightDecayOptimizer(0.01).apply_grads(gradients, graph.trainable_variables)
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
        step = [lowering.export_to_tf_tensor(loss), [lowering.lowered_operation(op) for op in updates]]
        for op in (tf.global_variables_initializer(), lowering.copy_masters_to_slices()):
            session.run(op)
        losses = [session.run(step)[0] for _ in range(12)]
    heads, d_ff, vocab = (mesh_impl.layout.split(name, SIZES[name]) for name in ("heads", "d_ff", "vocab"))
    print(f"heads {heads}, d_ff {d_ff}, vocab {vocab}: loss {losses[0]:.3f}, and after 11 steps {losses[-1]:.3f}")
    return losses


one = mtf_hetero.UnevenMeshImpl("all:1", "", DEVICES[:1])
three = mtf_hetero.UnevenMeshImpl("all:3", "heads:all;d_ff:all;vocab:all", DEVICES, SHARES, {"heads": [5, 2, 1]})
np.testing.assert_allclose(train(one), train(three), rtol=1e-2)

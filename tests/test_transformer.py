"""A small Transformer language model from mtf.layers, its heads, hidden units and vocabulary split unevenly."""

import collections
import math

import numpy as np
import pytest
from oracle import check, mesh_impl_of

import mtf_hetero
from mtf_hetero import Layout, mtf, tf

TEXT = """a mesh of unequal machines trains one network together. each machine holds a part of every layer, and the part
is as large as the machine is fast. the big one takes most of the heads, the small one takes a few, and both of them
finish at the same time. nobody waits, and nothing that is computed changes.\n"""
VOCABULARY = sorted(set(TEXT))
BATCH, LENGTH = mtf.Dimension("batch", 7), mtf.Dimension("length", 11)
VOCAB, MODEL = mtf.Dimension("vocab", len(VOCABULARY)), mtf.Dimension("d_model", 20)
HEADS, KV, HIDDEN = mtf.Dimension("heads", 5), mtf.Dimension("d_kv", 4), mtf.Dimension("d_ff", 41)
TOLERANCE = 1e-7  # mtf.layers.layer_norm keeps its variables in float32, whatever the model's type
SHARES = {"x": [6, 3, 1], "y": [3, 1]}


def language_model(tokens, dtype, *, blocks=2, training=False, dropout=0.0):
    """Logits [batch, length, vocab] of the next tokens: pre-norm blocks of causal attention and a hidden layer."""
    variables = mtf.VariableDType(dtype, dtype, dtype)
    length = tokens.shape.dims[-1]
    x = mtf.layers.embedding(tokens, VOCAB, MODEL, variables)
    places = mtf.layers.embedding_weights(tokens.mesh, length, MODEL, variables, "places")
    x += places
    mask = mtf.layers.attention_mask_autoregressive(mtf.range(tokens.mesh, length, tf.int32), dtype)
    for block in range(blocks):
        with tf.variable_scope(f"block{block}"):
            y = mtf.layers.layer_norm(x, MODEL, name="before_attention")
            x += mtf.layers.multihead_attention(
                y, None, mask, KV, HEADS, training, dropout, master_dtype=dtype, slice_dtype=dtype
            )
            y = mtf.layers.layer_norm(x, MODEL, name="before_hidden")
            x += mtf.layers.dense_relu_dense(y, HIDDEN, training, dropout, master_dtype=dtype, slice_dtype=dtype)
    x = mtf.layers.layer_norm(x, MODEL, name="end")
    return mtf.layers.dense(x, [VOCAB], reduced_dims=[MODEL], use_bias=False, variable_dtype=variables, name="logits")


def mean_loss(logits, targets):
    return mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, targets, VOCAB))


def program(feed):
    """As the oracle wants it."""
    tokens, targets = (feed(name, [BATCH, LENGTH], below=VOCAB.size) for name in ("tokens", "targets"))
    logits = language_model(tokens, feed.dtype)
    return {"logits": logits, "loss": mean_loss(logits, targets)}


@pytest.mark.parametrize(
    "rules",
    [
        "heads:x",
        "d_ff:x",
        "vocab:x",
        "batch:x",
        "heads:x;d_ff:x;vocab:x",
        "batch:y;heads:x;d_ff:x;vocab:x",
        "d_model:y;heads:x;d_ff:x",
        "length:x",
    ],
)
def test_the_model_is_the_same_on_every_layout(rules):
    axes = sorted({pair[-1] for pair in rules.split(";")})
    mesh = ";".join(f"{axis}:{len(SHARES[axis])}" for axis in axes)
    check(program, Layout(mesh, rules, {axis: SHARES[axis] for axis in axes}), tolerance=TOLERANCE)


def adam():
    return mtf.optimize.AdamWeightDecayOptimizer(0.003)


def losses(layout, *, steps, dropout=0.0, make_optimizer=adam):
    """The losses of training steps on windows of the text."""
    codes = np.array([VOCABULARY.index(character) for character in TEXT], np.int32)
    starts = np.random.default_rng(0).integers(0, len(codes) - LENGTH.size - 1, [steps, BATCH.size])
    windows = codes[starts[..., None] + np.arange(LENGTH.size + 1)]
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        tf.train.get_or_create_global_step()
        window = tf.placeholder(tf.int32, [BATCH.size, LENGTH.size + 1])
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        shape = mtf.Shape([BATCH, LENGTH])
        tokens, targets = (mtf.import_tf_tensor(mesh, part, shape) for part in (window[:, :-1], window[:, 1:]))
        loss = mean_loss(language_model(tokens, tf.float64, training=True, dropout=dropout), targets)
        variables = graph.trainable_variables
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        updates = make_optimizer().apply_grads(gradients, variables)
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl_of(layout)})
        fetches = [lowering.export_to_tf_tensor(loss), *map(lowering.lowered_operation, updates)]
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.local_variables_initializer())
            return [session.run(fetches, {window: windows[step]})[0] for step in range(steps)]


ONE = Layout("x:1", "")
SPLIT = Layout("x:3", "heads:x;d_ff:x;vocab:x", {"x": SHARES["x"]})


def test_it_learns_the_text_as_on_one_device():
    curve = losses(SPLIT, steps=150)
    counts = collections.Counter(TEXT).values()
    unigram = -sum(count / len(TEXT) * math.log(count / len(TEXT)) for count in counts)
    assert np.mean(curve[-20:]) < 0.6 * unigram
    np.testing.assert_allclose(curve, losses(ONE, steps=150), rtol=1e-6)


def test_dropout_and_adafactor_are_as_on_one_device():
    arguments = {"steps": 3, "dropout": 0.2, "make_optimizer": mtf.optimize.AdafactorOptimizer}
    np.testing.assert_allclose(losses(SPLIT, **arguments), losses(ONE, **arguments), rtol=1e-6)

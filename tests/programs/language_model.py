"""A small Transformer language model as a program of the oracle, and layouts that split it unevenly."""

from mtf_hetero import Layout, mtf, tf

SIZES = {"batch": 7, "length": 6, "d_model": 10, "heads": 5, "d_kv": 3, "d_ff": 23, "vocab": 31}
SHARES = {"m": [70, 25, 5]}
HEADS = {"heads": (3, 1, 1)}
EVERYTHING = Layout("m:3", "heads:m;d_ff:m;vocab:m", SHARES, HEADS)
TWO_AXES = Layout("b:2;m:3", "batch:b;heads:m;d_ff:m;vocab:m", SHARES | {"b": [5, 2]}, HEADS)
LAYOUTS = {
    "heads": Layout("m:3", "heads:m", SHARES, HEADS),
    "d_ff": Layout("m:3", "d_ff:m", SHARES),
    "vocab": Layout("m:3", "vocab:m", SHARES),
    "batch": Layout("m:3", "batch:m", SHARES),
    "everything": EVERYTHING,
    "two axes": TWO_AXES,
    "length": Layout("l:2;m:2", "length:l;memory_length:m;d_ff:m", {"l": [2, 1], "m": [3, 2]}),
    "model": Layout("k:2;m:2", "d_model:k;d_kv:m;vocab:m", {"k": [2, 1], "m": [3, 1]}),
}


def language_model(inputs, targets, dims, *, dtype, tied=True, layers=1, dropout=0.0):
    """Logits [batch, length, vocab] and mean loss of a decoder-only Transformer in pre-norm form."""
    variable_dtype = mtf.VariableDType(dtype, dtype, dtype)
    kept = {"is_training": dropout > 0, "dropout": dropout, "master_dtype": dtype, "slice_dtype": dtype}
    vocab, length, d_model = dims["vocab"], dims["length"], dims["d_model"]
    embedding = mtf.layers.embedding_weights(inputs.mesh, vocab, d_model, variable_dtype)
    x = mtf.gather(embedding, inputs, vocab)
    x += mtf.layers.embedding_weights(inputs.mesh, length, d_model, variable_dtype, name="positions")
    mask = mtf.layers.attention_mask_autoregressive(mtf.range(inputs.mesh, length, tf.int32), dtype)
    for layer in range(layers):
        with tf.variable_scope(f"layer_{layer}"):
            y = mtf.layers.layer_norm(x, d_model, name="before_attention")
            x += mtf.layers.multihead_attention(y, None, mask, dims["d_kv"], dims["heads"], **kept)
            y = mtf.layers.layer_norm(x, d_model, name="before_dense")
            x += mtf.layers.dense_relu_dense(y, dims["d_ff"], **kept)
    x = mtf.layers.layer_norm(x, d_model, name="last")
    if tied:
        logits = mtf.einsum([x * d_model.size**-0.5, embedding], [*x.shape.dims[:-1], vocab])
    else:
        logits = mtf.layers.dense(x, [vocab], reduced_dims=[d_model], variable_dtype=variable_dtype, name="logits")
    loss = mtf.layers.softmax_cross_entropy_with_logits(logits, targets, vocab)
    return {"logits": logits, "loss": mtf.reduce_mean(loss)}


def random_tokens(**config):
    """The language model on random tokens, as a program of the oracle."""

    def build(feed):
        dims = {name: mtf.Dimension(name, size) for name, size in SIZES.items()}
        shape = [dims["batch"], dims["length"]]
        inputs, targets = (feed(name, shape, below=SIZES["vocab"]) for name in ("inputs", "targets"))
        return language_model(inputs, targets, dims, dtype=feed.dtype, **config)

    return build

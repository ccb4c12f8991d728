"""Layers and models of mesh_tensorflow's package, which are programs that we did not write."""

from mtf_modules import import_module
from oracle import ONCE, check
from tiers import parametrize

from mtf_hetero import Layout, mtf, tf

LAYERS = import_module("mesh_tensorflow.layers")
B, L, H, W, C = (mtf.Dimension(*dim) for dim in [("b", 5), ("l", 8), ("h", 6), ("w", 4), ("c", 3)])
HEADS, KV, OUT = mtf.Dimension("heads", 4), mtf.Dimension("kv", 3), mtf.Dimension("o", 5)
SHARES = {"x": [4, 2, 1], "y": [3, 1]}


def types(feed):
    return {"variable_dtype": mtf.VariableDType(feed.dtype, feed.dtype, feed.dtype)}


def attention(feed):
    return {"is_training": False, "master_dtype": feed.dtype, "slice_dtype": feed.dtype}


def in_blocks(convolve, dims, size, stride):
    """A convolution over an image that is cut into 2 x 3 blocks, by mtf's own exchange of their edges."""

    def build(feed):
        rows, columns = mtf.Dimension("rows", 2), mtf.Dimension("columns", 3)
        x = feed("x", [B, rows, columns, H, W, *dims, C])
        blocks = dict(
            zip(("d_blocks_dim", "h_blocks_dim") if dims else ("h_blocks_dim", "w_blocks_dim"), (rows, columns))
        )
        sizes = {"filter_size": (size,) * (2 + len(dims)), "strides": (stride,) * (2 + len(dims))}
        return {"y": convolve(x, OUT, **sizes, padding="SAME", **blocks, **types(feed))}

    return build


def local_2d(feed):
    x = feed("x", [B, mtf.Dimension("rows", 2), mtf.Dimension("columns", 3), H, W, C])
    memory = {"memory_h_dim": mtf.Dimension("mh", H.size), "memory_w_dim": mtf.Dimension("mw", W.size)}
    return {"y": LAYERS.local_2d_self_attention_spatial_blocks(x, KV, HEADS, **memory, **attention(feed))}


def incremental(feed):
    memory = [B, HEADS, mtf.Dimension("memory_length", 6), KV]
    step = mtf.constant(feed.mesh, 3, dtype=tf.int32)
    x, keys, values = feed("x", [B, C]), feed("keys", memory), feed("values", memory)
    outputs = LAYERS.multihead_self_attention_incremental(x, keys, values, step, feed.dtype, feed.dtype)
    return dict(zip(("y", "new_keys", "new_values"), outputs))


def reversible(feed):
    state = feed("x1", [B, L]), None, feed("x2", [B, L]), None
    hidden = mtf.Dimension("hidden", L.size)
    for number in range(3):

        def half(x, number=number):
            y = LAYERS.dense(x, hidden, [x.shape.dims[-1]], activation=mtf.tanh, name=f"d{number}", **types(feed))
            return mtf.rename_dimension(y, "hidden", "l")

        state = LAYERS.reversible_half_residual_and_swap(*state, half)
    return {"y": state[0] + state[2]}


def others(feed):
    x, labels = feed("x", [B, L]), feed("labels", [B], below=L.size)
    product = LAYERS.dense_product(x, [L], [OUT], ["linear", "gelu", "sigmoid"], **types(feed))
    return {
        "clipped": mtf.square(LAYERS.clip_activation_gradient(x, 0.3)),
        "correlation": LAYERS.corr(x, L),
        "loss": LAYERS.softmax_cross_entropy_with_logits(x, labels, L, z_loss=1e-2),
        "product": product,
    }


def beams(feed):
    vocab, length = mtf.Dimension("vocab", 7), mtf.Dimension("length", 6)
    table = feed("table", [vocab, mtf.Dimension("next", vocab.size)])

    def logits(step, ids, states):
        last = mtf.gather(ids, mtf.maximum(step - 1, mtf.constant(feed.mesh, 0, dtype=tf.int32)), length)
        return mtf.cast(mtf.rename_dimension(mtf.gather(table, last, vocab), "next", "vocab"), tf.float32), []

    ids = mtf.zeros(feed.mesh, [B, mtf.Dimension("beam", 3), length], tf.int32)
    end = {"eos_id": 1, "decode_length": mtf.constant(feed.mesh, 5, dtype=tf.int32)}
    found, scores = import_module("mesh_tensorflow.beam_search").beam_search(
        logits, ids, 0.6, states=[], use_tpu=False, dtype=tf.float32, **end
    )
    return {"ids": found, "scores": mtf.cast(scores, feed.dtype)}


PROGRAMS = {
    "conv2d in blocks": in_blocks(LAYERS.conv2d_with_blocks, [], 5, 1),
    "conv3d_transpose in blocks": in_blocks(LAYERS.conv3d_transpose_with_blocks, [L], 2, 2),
    "local attention on images": local_2d,
    "one step of decoding": incremental,
    "reversible layers": reversible,
    "other layers": others,
    "beam search": beams,
}
RULES = (  # that split no two dimensions of one tensor over one axis
    "b:x;heads:y;o:y;vocab:y",
    "rows:y;columns:x;beam:x;next:y",
    "h:x;length:x;kv:y",
    "l:x;memory_length:x;hidden:y;c:y",
)


@parametrize("name", PROGRAMS, first=["conv2d in blocks"])
def test_a_program_of_mtfs_layers(name):
    check(PROGRAMS[name], *(Layout("x:3;y:2", rules, SHARES) for rules in RULES), **ONCE)

"""Programs of the oracle: each operation, with uneven and prime sizes, and the rules that split it."""

from zeros import Zeros

from mtf_hetero import Layout, layers, mtf, tf
from mtf_hetero.layout.convert import convert_to_rules

B, H, W, C, F = (mtf.Dimension(n, s) for n, s in [("b", 7), ("h", 6), ("w", 4), ("c", 5), ("f", 11)])
K2 = [mtf.Dimension("kh", 2), mtf.Dimension("kw", 2)]
K3 = [mtf.Dimension("kh", 3), mtf.Dimension("kw", 3)]
D = mtf.Dimension("d", 4)
V = mtf.Dimension("v", 13)

SHARES = {"x": [5, 2, 1], "y": [3, 1]}


def layouts(*rules, axes="", sizes=None):
    """Layouts of uneven shares over the axes that each rule names, and over these ones."""
    for rule in rules:
        used = sorted({*axes, *(axis for _, axis in convert_to_rules(rule))})
        shares = {axis: SHARES[axis] for axis in used}
        yield Layout([(axis, len(SHARES[axis])) for axis in used], rule, shares, sizes or {})


def find_extents(graph):
    """{name of a dimension: its largest extent} in an mtf graph."""
    dims = [dim for op in graph.operations for x in op.outputs for dim in x.shape.dims]
    return {dim.name: max(other.size for other in dims if other.name == dim.name) for dim in dims}


def sizes_with_zeros(extent, count, variant):
    """The first, the last or one in the middle has none; or one has all."""
    choices = {2: [(0, extent), (extent, 0)], 3: [(extent - 2, 0, 2), (0, 1, extent - 1), (0, extent, 0)]}[count]
    sizes = choices[variant % len(choices)]
    return sizes if min(sizes) >= 0 else choices[-1]


def layouts_with_zeros(build, rules):
    """Layouts by these rules, each dimension with exact sizes of which one at least is zero."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        build(Zeros(graph))
        extents = find_extents(graph)
    for number, rule in enumerate(rules):
        pairs = convert_to_rules(rule)
        if any(dim not in extents for dim, _ in pairs):
            continue
        mesh = [(axis, len(SHARES[axis])) for axis in sorted({axis for _, axis in pairs})]
        for variant in range(number, number + 2):
            sizes = {dim: sizes_with_zeros(extents[dim], len(SHARES[axis]), variant) for dim, axis in pairs}
            yield Layout(mesh, rule, sizes=sizes)


def variable(feed, name, shape):
    return mtf.get_variable(
        feed.mesh, name, mtf.Shape(shape), dtype=feed.dtype, initializer=tf.random_normal_initializer()
    )


ONE = ("b:x", "c:x", "f:y", "b:x;c:y", "c:x;b:y", "f:x;b:y")


def _einsum(feed):
    x, w = feed("x", [B, C, H]), variable(feed, "w", [C, H, F])
    return {
        "y": mtf.einsum([x, w], [B, F]),
        "z": mtf.einsum([x, w, feed("v", [B, F])], [B, C]),
        "broadcast": mtf.einsum([feed("t", [B, C]), feed("u", [C])], [C, B, F]),
    }


def _dense(feed):
    dtype = mtf.VariableDType(feed.dtype)
    y = mtf.layers.dense(
        feed("x", [B, H, C]), [F], reduced_dims=[C], activation=mtf.relu, variable_dtype=dtype, name="dense"
    )
    return {"y": y, "z": mtf.layers.dense(y, [V], reduced_dims=[H, F], variable_dtype=dtype, name="dense2")}


def _conv2d(strides, padding):
    def build(feed):
        x, w = feed("x", [B, H, W, C]), variable(feed, "w", [*K3, C, F])
        return {"y": mtf.Conv2dOperation(x, w, [1, *strides, 1], padding).outputs[0]}

    return build


def _conv2d_two_batch_dims(feed):
    x, w = feed("x", [B, V, H, W, C]), variable(feed, "w", [*K3, C, F])
    return {"y": mtf.Conv2dOperation(x, w, [1, 1, 1, 1], "SAME").outputs[0]}


def _conv2d_sparse(feed):
    """A stride larger than the window: some pixels are in none."""
    x, w = feed("x", [B, mtf.Dimension("h", 9), mtf.Dimension("w", 6), C]), variable(feed, "w", [K2[0], K2[1], C, F])
    return {"y": mtf.Conv2dOperation(x, w, [1, 3, 3, 1], "SAME").outputs[0]}


def _conv2d_even(feed):
    x, w = feed("x", [B, H, W, C]), variable(feed, "w", [K2[0], mtf.Dimension("kw", 4), C, F])
    return {"y": mtf.Conv2dOperation(x, w, [1, 1, 1, 1], "SAME").outputs[0]}


def _conv2d_small(feed):
    """Images of a few pixels, which a CPU convolves by a matrix product."""
    cases = [(3, 2, (3, 3), "SAME"), (3, 3, (3, 2), "VALID"), (2, 2, (5, 4), "SAME"), (2, 4, (1, 1), "SAME")]
    outputs = {}
    for height, width, window, padding in cases:
        case = f"{height}_{width}_{padding}"
        x = feed(case, [B, mtf.Dimension("h", height), mtf.Dimension("w", width), C])
        kernel = variable(feed, f"kernel_{case}", [*map(mtf.Dimension, ("kh", "kw"), window), C, F])
        outputs[case] = mtf.Conv2dOperation(x, kernel, [1, 1, 1, 1], padding).outputs[0]
    x = feed("transposed", [B, mtf.Dimension("h", 3), mtf.Dimension("w", 2), C])
    kernel = variable(feed, "kernel_transposed", [*K3, F, C])
    return {**outputs, "transposed": mtf.Conv2dTransposeOperation(x, kernel, [1, 1, 1, 1], "SAME").outputs[0]}


def _relu(feed):
    """The gradients that are recognised, and masks that look alike but are not."""
    x, dy = feed("x", [B, C, H]), feed("dy", [B, C, H])
    outputs = {"relu": mtf.relu(x), "leaky": mtf.leaky_relu(x, alpha=0.3), "twice": mtf.relu(mtf.leaky_relu(x) + dy)}
    masks = {
        "zero": mtf.greater(x, 0),
        "half": mtf.greater(x, 0.5),
        "below": mtf.less_equal(x, 0),
        "fewer": mtf.greater(feed("u", [C]), 0),
    }
    return outputs | {name: dy * mtf.cast(mask, x.dtype) for name, mask in masks.items()} | {"mask": masks["zero"]}


def _bias(feed):
    """Biases along the last dimension, along another, and of a vector."""
    x, b = feed("x", [B, H, C]), variable(feed, "bias", [C])
    along = variable(feed, "along", [H])
    return {
        "y": x + b,
        "z": x + along,
        "vector": b + variable(feed, "other", [C]),
        "sum": mtf.reduce_sum(x, output_shape=[H]),
    }


def _conv3d(padding):
    def build(feed):
        x, w = feed("x", [B, D, H, W, C]), variable(feed, "w", [mtf.Dimension("kd", 3), *K3, C, F])
        return {"y": mtf.Conv3dOperation(x, w, [1, 1, 1, 1, 1], padding).outputs[0]}

    return build


def _conv2d_transpose(feed):
    x, w = feed("x", [B, H, W, C]), variable(feed, "w", [mtf.Dimension("kh", 2), mtf.Dimension("kw", 2), F, C])
    return {"y": mtf.Conv2dTransposeOperation(x, w, [1, 2, 2, 1], "SAME").outputs[0]}


def _conv2d_transpose_wide(feed):
    """Windows that overlap."""
    x, w = feed("x", [B, H, W, C]), variable(feed, "w", [*K3, F, C])
    return {"y": mtf.Conv2dTransposeOperation(x, w, [1, 2, 2, 1], "SAME").outputs[0]}


def _conv3d_transpose(feed):
    kernel = [mtf.Dimension(n, 2) for n in ("kd", "kh", "kw")]
    x, w = feed("x", [B, D, H, W, C]), variable(feed, "w", [*kernel, F, C])
    return {"y": mtf.Conv3dTransposeOperation(x, w, [1, 2, 2, 2, 1], "SAME").outputs[0]}


def _pool2d(feed):
    x = feed("x", [B, H, W, C])
    return {"max": mtf.layers.max_pool2d(x, [2, 2]), "average": mtf.layers.avg_pool2d(x, [3, 2])}


def _pool2d_across(feed):
    """Prime extents and uneven shares: windows lie on both sides of a boundary."""
    x = feed("x", [mtf.Dimension("h", 12), mtf.Dimension("w", 14), C])
    x = mtf.reshape(x, [mtf.Dimension("one", 1), *x.shape.dims])
    return {"max": mtf.layers.max_pool2d(x, [4, 2]), "average": mtf.layers.avg_pool2d(x, [2, 2])}


def _reductions(feed):
    x = feed("x", [B, H, C])
    return {
        "sum": mtf.reduce_sum(x, reduced_dim=B),
        "mean": mtf.reduce_mean(x, output_shape=[C]),
        "max": mtf.reduce_max(x, reduced_dim=C),
        "min": mtf.reduce_min(x, output_shape=[H]),
        "all": mtf.reduce_sum(x),
        "transposed": mtf.reduce_sum(x, output_shape=[C, B]),
        "logsumexp": mtf.reduce_logsumexp(x, C),
    }


def _broadcast(feed):
    """Broadcasts, numbers in order and constants."""
    x, u = feed("x", [B, C]), feed("u", [B, F])
    array = [[number + 0.5] * F.size for number in range(B.size)]
    return {
        "vector": mtf.broadcast(feed("v", [C]), mtf.Shape([B, C, H])),
        "transposed": mtf.broadcast(feed("t", [C, B]), mtf.Shape([B, H, C])),
        "range": mtf.range(feed.mesh, C, dtype=tf.int32),
        "cumsum": mtf.cumsum(x, C),
        "ones": mtf.ones(feed.mesh, mtf.Shape([B, C]), dtype=feed.dtype) * feed("w", [C]),
        "zeros": mtf.zeros_like(u),
        "array": mtf.constant(feed.mesh, array, [B, F], feed.dtype) * u,
    }


def _elementwise(feed):
    x, u = feed("x", [B, C]), feed("u", [C])
    positive = mtf.square(x) + 0.5
    return {
        "add": x + u,
        "transposed": mtf.add(x, feed("t", [C, B]), output_shape=mtf.Shape([C, B])),
        "outer": mtf.multiply(u, feed("f", [F]), output_shape=mtf.Shape([F, C])),
        "div": x / positive,
        "minmax": mtf.minimum(x, u) + mtf.maximum(x, 0.25),
        "scalar": 3.0 * x - 1.5,
        "log": mtf.log(positive) + mtf.rsqrt(positive) + mtf.pow(positive, 1.5),
        "smooth": mtf.abs(x) + mtf.sigmoid(x) + mtf.gelu(x),
        "generic": mtf.softplus(x) + mtf.selu(mtf.cos(x)),
        "compare": mtf.cast(mtf.less(x, u), feed.dtype),
        "where": mtf.where(mtf.greater(x, 0), x, mtf.square(x)),
        "stop": mtf.stop_gradient(x) * x,
        "cast": mtf.to_int32(x * 10),
    }


def _softmax_loss(feed):
    logits = feed("x", [B, H, V])
    targets = mtf.one_hot(feed("t", [B, H], below=V.size), V, dtype=feed.dtype)
    loss = mtf.layers.softmax_cross_entropy_with_logits(logits, targets, V)
    return {
        "softmax": mtf.softmax(logits, V),
        "loss": loss,
        "z": mtf.layers.softmax_cross_entropy_with_logits(logits, targets, V, z_loss=1e-2),
        "mean": mtf.reduce_mean(loss),
    }


def _integer_targets(feed):
    targets = feed("t", [B, H], below=V.size)
    return {"loss": mtf.layers.softmax_cross_entropy_with_logits(feed("x", [B, H, V]), targets, V)}


def _gather(feed):
    return {"y": mtf.gather(variable(feed, "w", [V, C]), feed("i", [B, H], below=V.size), V)}


def _lookup(feed):
    return {"y": layers.lookup(variable(feed, "w", [V, C]), feed("i", [B, H], below=V.size), V)}


def _layer_norm(feed):
    return {"y": mtf.layers.layer_norm(feed("x", [B, H, C]), C)}


def _batch_norm(feed):
    return {"y": mtf.layers.batch_norm(feed("x", [B, H, W, C]), True, momentum=0.9, name="bn")[0]}


def _variables(feed):
    w = variable(feed, "w", [C, F])
    return {"w": w * 2.0, "s": variable(feed, "s", []) * w}


def _along(feed):
    """Operations along a dimension, whole or split, and others split beside it."""
    x = feed("x", [B, H, C])
    first, second = mtf.split(x, H, [2, 4])
    return {
        "concat": mtf.concat([x, feed("u", [B, mtf.Dimension("h", 2), C])], "h"),
        "first": first,
        "second": second * 2.0,
        "slice": mtf.slice(x, 1, 3, "h"),
        "pad": mtf.pad(x, [1, 2], "h"),
        "stack": mtf.stack([x, x * 2.0, mtf.square(x)], "s", 1),
        "unstack": mtf.add_n(mtf.unstack(x, H)),
        "shift": mtf.shift(x, 2, H, wrap=True) + mtf.shift(x, -1, H, wrap=False),
        "far": mtf.shift(x, -5, H, wrap=True) + mtf.shift(x, 7, H, wrap=False) + mtf.shift(x, 4, H, wrap=False),
        "top": mtf.top_k(x, H, mtf.Dimension("k", 2))[0],
        "argmax": mtf.argmax(x, H),
    }


def _upsampling(feed):
    image, volume = feed("image", [B, H, W, C]), feed("volume", [D, H, W, C])
    return {
        "nearest (1, 4)": layers.upsample(image, (1, 4)),
        "bilinear (3, 1)": layers.upsample(image, (3, 1), method="bilinear"),
        "volume": layers.upsample(volume, (2, 1, 3), method="bilinear"),
    }


SPACE = ("h:x", "w:y", "h:x;w:y", "b:x;h:y", "h:x;c:y", "w:x;f:y")


PROGRAMS = {
    "einsum": (_einsum, (*ONE, "h:x", "h:x;f:y", "c:x;h:y")),
    "dense": (_dense, (*ONE, "h:x;f:y", "v:x;f:y", "v:x")),
    "conv2d_same": (_conv2d((1, 1), "SAME"), ONE + SPACE),
    "conv2d_valid": (_conv2d((1, 1), "VALID"), (*ONE, "h:x", "w:y", "h:x;w:y", "h:x;f:y")),
    "conv2d_strided": (_conv2d((2, 2), "SAME"), (*ONE, "h:x", "w:y", "h:x;w:y")),
    "conv2d_strided_more_than_the_window": (_conv2d_sparse, ("b:x", "h:y", "w:y", "b:x;h:y")),
    "conv2d_even_window": (_conv2d_even, ONE[:2] + SPACE),
    "conv2d_two_batch_dims": (_conv2d_two_batch_dims, (*ONE, "b:x;v:y", "v:x")),
    "conv2d_small": (_conv2d_small, (*ONE[:3], "w:y", "h:x", "b:x;c:y", "h:x;w:y", "c:x;w:y", "f:x;b:y")),
    "relu": (_relu, ("b:x", "c:x", "h:y", "b:x;c:y")),
    "bias": (_bias, ("b:x", "c:x", "h:x", "b:x;c:y", "h:x;c:y")),
    "conv3d_same": (_conv3d("SAME"), (*ONE, "d:x", "h:y;d:x")),
    "conv3d_valid": (_conv3d("VALID"), (*ONE[:1], *ONE[3:], "d:y", "h:x;w:y")),
    "conv2d_transpose": (_conv2d_transpose, ONE + SPACE),
    "conv2d_transpose_wide": (_conv2d_transpose_wide, ONE[:2] + SPACE),
    "conv3d_transpose": (_conv3d_transpose, (*ONE, "d:x", "h:y;d:x")),
    "pool2d": (_pool2d, ("b:x", "c:x", "b:x;c:y", "w:y", "h:y", "b:x;h:y")),
    "pool2d_across": (_pool2d_across, ("h:x", "w:x", "h:x;w:y")),
    "upsampling": (_upsampling, ("h:x", "w:x;b:y", "c:x;h:y", "w:y;h:x")),
    "reductions": (_reductions, ("b:x", "h:x", "c:x", "b:x;c:y", "h:x;b:y")),
    "broadcast": (_broadcast, (*ONE, "h:x", "c:x;h:y")),
    "elementwise": (_elementwise, ("b:x", "c:x", "b:x;c:y", "f:x;c:y")),
    "softmax_loss": (_softmax_loss, ("b:x", "h:x", "v:x", "b:x;v:y", "v:x;h:y")),
    "integer_targets": (_integer_targets, ("b:x", "v:x", "b:x;v:y")),
    "gather": (_gather, ("b:x", "v:x", "c:x", "b:x;v:y", "v:x;c:y")),
    "lookup": (_lookup, ("b:x", "v:x", "c:x", "b:x;v:y", "v:x;c:y")),
    "variables": (_variables, ("c:x", "f:x", "c:x;f:y", "f:x;c:y", "b:x")),
    "along": (_along, ("b:x", "c:x", "h:y", "s:x", "k:y", "b:x;c:y", "b:x;h:y", "h:y;c:x", "s:x;h:y")),
}


FLOAT32_PROGRAMS = {  # TensorFlow lacks the float64 kernel, or mtf's layer makes float32 variables
    "pool3d": (
        lambda feed: {
            "max": mtf.layers.max_pool3d(feed("x", [B, D, H, W, C]), [2, 2, 2]),
            "average": mtf.layers.avg_pool3d(feed("x", [B, D, H, W, C]), [2, 2, 2]),
        },
        ("b:x", "c:x", "b:x;c:y", "d:y", "w:y;h:x", "d:y;b:x"),
    ),
    "layer_norm": (_layer_norm, ("b:x", "h:x", "c:x", "b:x;c:y")),
    "batch_norm": (_batch_norm, ("b:x", "c:x", "h:x", "b:x;c:y", "h:x;b:y")),
}

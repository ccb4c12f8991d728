"""Each operation with a signature, on layouts that split each dimension of its operands in turn, against TensorFlow."""

import numpy as np
import pytest
import tiers
from import_oracle import BATCH, check_each_dimension

import mtf_hetero
from mtf_hetero import tf

RNG = np.random.default_rng(0)
raw, nn, linalg = tf.raw_ops, tf.compat.v2.nn, tf.compat.v2.linalg
X, Y = RNG.standard_normal((7, 8, 9)), RNG.standard_normal((7, 8, 9))
IMAGE = RNG.standard_normal((7, 9, 8, 7))
VOLUME = RNG.standard_normal((7, 8, 7, 7, 3))
MATRICES = RNG.standard_normal((7, 8, 4, 4)) + 4.0 * np.eye(4)
IDS = RNG.integers(0, 8, (7, 3))
ROWS, NUMBERS, SORTED = RNG.standard_normal((8, 9)), RNG.integers(0, 7, (8, 1)), np.arange(7) // 2
SQUARES, BOXES, SPREAD = MATRICES[:, 0], RNG.uniform(0.0, 1.0, (8, 4)), IMAGE.astype("float32")


def kernel(*shape):
    return tf.constant(np.random.default_rng(1).standard_normal(shape))


def gradient(function):
    """The function and its gradient."""

    def both(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = function(*inputs)
        floating = [x for x in inputs if x.dtype.is_floating]
        gradients = tape.gradient(y, floating, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return y, [tf.convert_to_tensor(g) for g in gradients]

    return both


def taken(x, numbers):
    """Elements of a TensorArray by numbers of the data."""
    rows = tf.TensorArray(tf.float64, 7).unstack(x)
    return rows.gather(tf.cast(numbers[:3, 0], tf.int32)) ** 2


def tridiagonal(m):
    diagonals = m[..., :3, :]
    return linalg.tridiagonal_solve(diagonals, m, partial_pivoting=False), linalg.tridiagonal_matmul(diagonals, m)


def jacobian(x):
    """A Jacobian of each example, by a vectorized map."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(x * tf.reduce_sum(x, 1, keepdims=True))
    return tape.batch_jacobian(y, x)


OPERATIONS = {
    "elementwise": (lambda x, y: tf.where(x > y, tf.exp(x) * 2.0, tf.math.squared_difference(x, y[:1])), X, Y),
    "add_n": (lambda x, y: tf.add_n([x, y, x]), X, Y),
    "bias": (lambda x: tf.nn.bias_add(x, tf.range(9.0, dtype=tf.float64)), X),
    "broadcast": (lambda x: tf.broadcast_to(x[:, :1], (7, 5, 9)) + tf.tile(x[:, :1], [1, 5, 1]), X),
    "tile": (lambda x: (tf.tile(x, [1, 2, 1]), tf.tile(x[:, :1], [1, 8, 2]), tf.tile(x[:1], [7, 1, 2])), X),
    "transpose": (lambda x: tf.transpose(x, [2, 0, 1]), X),
    "reshape": (lambda x: tf.reshape(tf.reshape(x, [56, 9]) * 2.0, [7, 2, 4, 9]), X),
    "reshape without factors": (lambda x: tf.reshape(x, [9, 8, 7]) + 1.0, X),
    "pad": (lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 0]], constant_values=3.0), X),
    "mirror": (lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 0]], "REFLECT"), X),
    "slice": (lambda x: tf.slice(x, [0, 2, 0], [7, 4, 9]), X),
    "strided": (gradient(lambda x: x[:, 1:7:2, ::-1] + x[:, 3, None]), X),
    "strided, more": (gradient(lambda x: x[..., None, 2:5] + x[:, 1, tf.newaxis, None, 0, None]), X),
    "colours": (
        lambda x: (tf.image.adjust_contrast(x, 2.0), tf.image.rgb_to_hsv(tf.sigmoid(x)), tf.image.adjust_hue(x, 0.1)),
        IMAGE[..., :3].astype("float32"),
    ),
    "projected": (
        lambda x: raw.ImageProjectiveTransformV3(
            images=x,
            transforms=tf.concat(
                [tf.reduce_mean(x, [1, 2])[:, :1] + 1.0, [[0.1, 1.0, 0.0, 1.0, 2.0, 0.0, 0.0]] * 7], 1
            ),
            output_shape=[5, 6],
            interpolation="BILINEAR",
            fill_value=0.5,
        ),
        IMAGE.astype("float32"),
    ),
    "cumulate": (
        lambda x: (tf.cumsum(x, 1, reverse=True), tf.math.cumprod(x, 2), tf.math.cumulative_logsumexp(x, 1)),
        X,
    ),
    "computed arguments": (
        lambda x: (
            tf.roll(x, tf.cast(tf.reduce_max(x), tf.int32), 1),
            tf.pad(x, [[0, 0], [1, 1], [0, 0]], constant_values=tf.reduce_min(x)),
            tf.one_hot(tf.argmax(x, 1), 7, on_value=tf.reduce_max(x)),
        ),
        X,
    ),
    "reverse": (lambda x: tf.reverse(x, [1]) + tf.roll(x, 2, 2), X),
    "top": (lambda x: tf.math.top_k(x, 4), X),
    "sort": (lambda x: (tf.sort(x, 1), tf.argsort(x, 2)), X),
    "split": (lambda x: (tf.split(x, 4, 1), tf.split(x, [2, 3, 4], 2)), X),
    "concat": (lambda x, y: tf.concat([x, y[:, :3]], 1), X, Y),
    "stack": (lambda x, y: (tf.stack([x, y], 2), tf.unstack(x, axis=1)), X, Y),
    "one hot": (lambda i: tf.one_hot(i, 8, axis=1, dtype=tf.float64), IDS),
    "gather": (lambda x, i: (tf.gather(x, i, axis=1), tf.gather(x, i, batch_dims=1), tf.gather(x[0], i)), X, IDS),
    "gather at": (gradient(lambda x, i: tf.gather_nd(x, i)), X, np.stack([IDS % 7, IDS], -1)),
    "scatter": (
        lambda x, y, i: (
            tf.scatter_nd(i[..., None], x[:, :3], [8, 9]),
            tf.scatter_nd(i[..., None], x[:, :3] > 0, [8, 9]),
            tf.tensor_scatter_nd_add(y[0], i[..., None], x[:, :3]),
            tf.tensor_scatter_nd_update(y, [[[1, 2]]], x[2:3, :1]),
        ),
        X,
        Y,
        IDS,
    ),
    "bins": (lambda x: raw.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]), X),
    "counts": (
        lambda i: [
            raw.DenseBincount(input=i, size=8, weights=w, binary_output=b)
            for w, b in ((tf.zeros([0], tf.float64), True), (tf.cast(i, tf.float64), False))
        ],
        IDS.astype("int32"),
    ),
    "segments": (gradient(lambda x, i: tf.gather(x[0], i)), X, IDS),
    "reductions": (
        lambda x: [f(x, 1) for f in (tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod)],
        X,
    ),
    "reductions that keep axes": (
        lambda x: (tf.reduce_mean(x, [0, 2], keepdims=True), tf.reduce_any(x > 1.0, 0), tf.reduce_all(x > -3.0)),
        X,
    ),
    "means of whole numbers": (lambda i: tf.reduce_mean(i, 1), IDS),
    "arguments": (lambda x: (tf.argmax(x, 1), tf.argmin(x, 2)), X),
    "norms": (lambda x: (tf.nn.l2_loss(x), tf.norm(x, axis=1), raw.EuclideanNorm(input=x, axis=[0])), X),
    "matmul": (lambda x, y: tf.matmul(x[0], y[0], transpose_b=True) + tf.matmul(x[1], y[1], transpose_b=True), X, Y),
    "batch matmul": (lambda x, y: (tf.matmul(x, y, transpose_a=True), tf.matmul(x, y[0], transpose_b=True)), X, Y),
    "complex matmul": (lambda x, y: tf.matmul(tf.complex(x, y), tf.complex(y, x), adjoint_a=True), X, Y),
    "matmul of another type": (
        lambda i: raw.BatchMatMulV3(x=tf.cast(i, tf.int8), y=tf.cast(i, tf.int8), Tout=tf.int32, adj_y=True),
        IDS[None],
    ),
    "einsum": (lambda x, y: (tf.einsum("abc,abd->acd", x, y), tf.einsum("abc,abc->", x, y)), X, Y),
    "einsum with letters twice": (
        gradient(
            lambda m: [
                *(tf.square(tf.einsum("abii->ab", m)), tf.square(tf.einsum("...ii->...i", m))),
                *(tf.square(tf.einsum("abij,abjj->ai", m, m)), tf.square(tf.einsum("abii->abi", m))),
            ]
        ),
        MATRICES,
    ),
    "einsum with an ellipsis": (lambda x, y: tf.einsum("...bc,...bc->...c", x, y), X, Y),
    "softmax": (lambda x: (tf.nn.softmax(x), tf.nn.log_softmax(x, 1)), X),
    "crossentropy": (gradient(lambda x, y: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x)), X, Y),
    "matrices": (
        lambda m: (tf.linalg.inv(m), tf.linalg.det(m), tf.linalg.solve(m, m), tf.linalg.band_part(m, 1, 0)),
        MATRICES,
    ),
    "systems": (
        lambda m, x: (tf.linalg.solve(m[0, 0], x[0, :4]), tf.linalg.triangular_solve(m[:, 0], x[:, :4], lower=False)),
        MATRICES,
        X,
    ),
    "diagonals": (
        lambda m, x: (
            tf.linalg.diag_part(m),
            tf.linalg.diag(x),
            tf.linalg.set_diag(m, x[..., :4]),
            tf.linalg.diag_part(m, k=(0, 1)),
        ),
        MATRICES,
        X,
    ),
    "decompositions": (
        lambda m: (tf.linalg.cholesky(m @ tf.linalg.matrix_transpose(m)), tf.linalg.slogdet(m), tf.linalg.svd(m)[0]),
        MATRICES,
    ),
    "spectra": (lambda x: (tf.abs(tf.signal.fft(tf.cast(x, tf.complex128))), tf.abs(tf.signal.rfft(x))), X),
    "conv": (gradient(lambda x: tf.nn.conv2d(x, kernel(3, 3, 7, 8), [1, 2, 2, 1], "SAME")), IMAGE),
    "conv of filters": (gradient(lambda x, w: tf.nn.conv2d(x, w, 1, "VALID")), IMAGE, kernel(3, 2, 7, 7).numpy()),
    "conv, other padding": (
        gradient(lambda x, w: tf.nn.conv2d(x, w, 1, [[0, 0], [2, 1], [0, 1], [0, 0]])),
        IMAGE,
        kernel(3, 2, 7, 7).numpy(),
    ),
    "conv of volumes": (
        gradient(lambda x, w: tf.nn.conv3d(x, w, [1, 1, 2, 1, 1], "SAME")),
        VOLUME,
        kernel(3, 2, 2, 3, 7).numpy(),
    ),
    "depthwise": (
        gradient(lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")),
        IMAGE,
        kernel(3, 3, 7, 1).numpy(),
    ),
    "pools": (gradient(lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME") + tf.nn.avg_pool2d(x, 3, 2, "SAME")), IMAGE),
    "resized": (gradient(lambda x: tf.cast(tf.image.resize(x, (5, 4)), tf.float64)), IMAGE),
    "atrous": (
        gradient(lambda x, w: tf.nn.convolution(tf.nn.relu(x), w, padding="VALID", dilations=[3, 2])),
        IMAGE,
        kernel(3, 2, 7, 8).numpy(),
    ),
    "patches": (
        lambda x: (
            tf.nn.depth_to_space(x[..., :4], 2),
            tf.image.extract_patches(x, [1, 3, 3, 1], [1, 2, 2, 1], [1] * 4, "SAME"),
        ),
        IMAGE,
    ),
    "no rule": (lambda x: tf.linalg.tensor_diag(x[:, 0, 0]), X),
    "stateless random": (lambda x: x + tf.random.stateless_normal((7, 8, 9), seed=[3, 4], dtype=tf.float64), X),
    "stateless random of a state": (
        lambda i: tf.random.stateless_uniform((7, 8), seed=i[0, :2], dtype=tf.float64),
        IDS,
    ),
    "list by numbers": (gradient(taken), X, NUMBERS),
    "matrix for all": (gradient(lambda m, x: linalg.triangular_solve(m, x)), SQUARES[0], X[:, :4]),
    "gather by numbers": (gradient(lambda x, i: tf.gather_nd(x, i)), X, NUMBERS),
    "scatter numbers": (gradient(lambda u, i: tf.scatter_nd(i, u, (7, 9))), ROWS, NUMBERS),
    "scatter into": (
        lambda x, u: (
            tf.tensor_scatter_nd_add(x, NUMBERS, x + u[0, 0]),
            tf.tensor_scatter_nd_update(x, [[2], [5]], u[:2]),
            tf.tensor_scatter_nd_max(x, NUMBERS, u),
        ),
        RNG.standard_normal((8, 9)),
        ROWS,
    ),
    "segments in order": (
        lambda x: (
            [f(x, SORTED) for f in (tf.math.segment_sum, tf.math.segment_mean, tf.math.segment_max)]
            + [f(x, SORTED, 5) for f in (tf.math.unsorted_segment_max, tf.math.unsorted_segment_prod)]
        ),
        X,
    ),
    "search": (lambda s, x: tf.searchsorted(tf.sort(s), x, side="right"), X[0], X[1]),
    "sequences reversed": (lambda x: tf.reverse_sequence(x, [1, 3, 8, 2, 5, 7, 4], seq_axis=1, batch_axis=0), X),
    "nth": (lambda x: raw.NthElement(input=x, n=3), X),
    "histogram": (lambda x: tf.histogram_fixed_width(x, [-2.0, 2.0], 7), ROWS),
    "top of classes": (
        lambda x, i: raw.InTopK(predictions=tf.cast(x, tf.float32), targets=i[:, 0] % 9, k=2),
        ROWS,
        NUMBERS,
    ),
    "fill": (lambda x: tf.fill((7, 8), x[0, 0]) + x, X[:, 0, :8]),
    "bessel": (lambda x: tf.math.special.bessel_j0(x) + tf.math.betainc(x**2 + 0.1, x**2 + 0.2, tf.sigmoid(x)), X),
    "local response": (gradient(lambda x: nn.local_response_normalization(x, 2)), SPREAD),
    "crops": (
        gradient(lambda x, b: tf.image.crop_and_resize(x, b, [0, 1, 2, 3, 4, 5, 6, 0], (3, 4))),
        SPREAD,
        np.float32(BOXES),
    ),
    "dilation": (
        gradient(lambda x, k: nn.dilation2d(x, k, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1])),
        IMAGE,
        RNG.standard_normal((3, 2, 7)),
    ),
    "scaled": (
        gradient(lambda x: raw.ScaleAndTranslate(images=x, size=[5, 6], scale=[0.5, 0.7], translation=[0.1, 0.2])),
        SPREAD,
    ),
    "pool with indices": (gradient(lambda x: nn.max_pool_with_argmax(x, 2, 2, "SAME")[0]), IMAGE),
    "boxes": (
        lambda x: raw.DrawBoundingBoxesV2(images=x, boxes=BOXES[:7, None].astype(np.float32), colors=[[1.0, 0.0, 0.0]]),
        SPREAD[..., :3],
    ),
    "suppressed": (
        lambda b, s: tuple(tf.image.combined_non_max_suppression(b, s, 3, 5)),
        np.float32(RNG.uniform(size=(7, 8, 1, 4))),
        np.float32(RNG.uniform(size=(7, 8, 2))),
    ),
    "factors": (lambda m: (*linalg.lu(m), tf.abs(linalg.eig(m)[0])), SQUARES),
    "three diagonals": (tridiagonal, SQUARES),
    "least squares": (
        lambda m: (linalg.lstsq(m, m[..., :2], fast=False), linalg.logm(tf.cast(m, tf.complex128))),
        SQUARES,
    ),
    "three-dimensional spectra": (lambda x: tf.abs(tf.signal.rfft3d(x)), IMAGE.astype("float32")),
    "shuffled": (lambda x: tf.random.experimental.stateless_shuffle(x, seed=[1, 2]), X),
    "counts of a fixed number": (
        lambda x, i: (
            tf.compat.v2.math.bincount(i, minlength=9, maxlength=9),
            tf.compat.v2.math.bincount(i, minlength=5, maxlength=5, axis=-1, weights=x[:, 0, :3]),
        ),
        X,
        IDS.astype("int32"),
    ),
    "allocated": (
        lambda x: tf.tensor_scatter_nd_update(raw.Empty(shape=x.shape, dtype=x.dtype, init=True), [[2]], x[:1]),
        X,
    ),
    "sums of numbers": (gradient(lambda x, i: tf.math.unsorted_segment_sum(x, i[:, 0] % 3, 3)), X, IDS),
    "roots": (gradient(lambda m: tf.linalg.cholesky(m @ tf.linalg.matrix_transpose(m))), MATRICES),
    "jacobian": (jacobian, X[:, 0]),
}
SINGLE = {"resized", "colours", "projected", "local response", "crops", "scaled"}  # what TensorFlow has in float32
SINGLE |= {"three-dimensional spectra", "boxes", "suppressed"}
FIRST = ["elementwise", "strided", "conv of filters", "batch matmul", "stateless random", "scatter numbers"]


@tiers.parametrize("name", OPERATIONS, first=FIRST)
def test_each_dimension_may_be_split(name):
    function, *inputs = OPERATIONS[name]
    check_each_dimension(function, inputs, 1e-5 if name in SINGLE else 1e-9)


@pytest.mark.parametrize("name", ["matmul", "conv", "einsum"])
def test_work_is_divided(name):
    """A layout that splits the batch leaves no product to each device."""
    x = tf.Variable(kernel(3, 3, 7, 5) if name == "conv" else kernel(9, 5))
    function = {
        "matmul": tf.matmul,
        "conv": lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"),
        "einsum": lambda x, w: tf.einsum("...i,ij->...j", x, w),
    }[name]

    def step(images):
        with tf.GradientTape() as tape:
            y = function(images, x)
        return tape.gradient(y, x)

    with mtf_hetero.function(step, (IMAGE if name == "conv" else X,), **BATCH) as divided:
        assert divided.undivided.share == 0


DIVIDED = ["local response", "dilation", "pool with indices", "factors", "segments in order"]


@pytest.mark.full
@pytest.mark.parametrize("name", DIVIDED)
def test_what_is_divided(name):
    """The first dimension, or another of the operand, divides the work."""
    function, *inputs = OPERATIONS[name]
    layout = "x/2:all" if name == "segments in order" else "batch"
    with mtf_hetero.function(function, tuple(inputs), **{**BATCH, "layout": layout}) as divided:
        assert divided.undivided.share < 0.3


@tiers.parametrize("dtype", ["float16", "float32", "float64"], first=["float32"])
def test_each_device_draws_its_rows(dtype):
    """TensorFlow's own bits, of a counter whose lower half overflows too."""

    def step(x):
        key, counter = raw.StatelessRandomGetKeyCounter(seed=[3, 4])
        late = tf.constant(np.array([2**64 - 2, 1], "uint64"))
        draws = [raw.StatelessRandomUniformV2, raw.StatelessRandomNormalV2]
        numbers = [d(shape=(7, 3, 5), key=key, counter=c, alg=1, dtype=dtype) for d in draws for c in (counter, late)]
        return [y + tf.cast(x[:, :1, None], dtype) for y in numbers]

    check_each_dimension(step, [np.zeros((7, 9))], 0.0)
    with mtf_hetero.function(step, (np.zeros((7, 9)),), **BATCH) as divided:
        assert not any("Random" in entry.kind for entry in divided.undivided.entries if "Key" not in entry.kind)

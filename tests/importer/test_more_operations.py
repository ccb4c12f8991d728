"""Operations on rows, images and matrices, on layouts that split each dimension of them, against TensorFlow."""

import numpy as np
import pytest
import tiers
from import_oracle import BATCH, check_each_dimension

import mtf_hetero
from mtf_hetero import tf

RNG = np.random.default_rng(0)
raw, nn, linalg = tf.raw_ops, tf.compat.v2.nn, tf.compat.v2.linalg
X, IMAGE = RNG.standard_normal((7, 8, 9)), RNG.standard_normal((7, 9, 8, 7))
ROWS, IDS = RNG.standard_normal((8, 9)), RNG.integers(0, 7, (8, 1))
SORTED = np.arange(7) // 2
MATRICES = RNG.standard_normal((7, 4, 4)) + 4.0 * np.eye(4)
BOXES = RNG.uniform(0.0, 1.0, (8, 4))
SPREAD = RNG.standard_normal((7, 9, 8, 7)).astype(np.float32)


def gradient(function):
    """The function and its gradient."""

    def both(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = function(*inputs)
        gradients = tape.gradient(y, [x for x in inputs if x.dtype.is_floating])
        return y, [tf.convert_to_tensor(g) for g in gradients]

    return both


def taken(x, numbers):
    """Elements of a TensorArray by numbers of the data."""
    rows = tf.TensorArray(tf.float64, 7).unstack(x)
    return rows.gather(tf.cast(numbers[:3, 0], tf.int32)) ** 2


def tridiagonal(m):
    diagonals = m[..., :3, :]
    return linalg.tridiagonal_solve(diagonals, m, partial_pivoting=False), linalg.tridiagonal_matmul(diagonals, m)


OPERATIONS = {
    "list by numbers": (gradient(taken), X, IDS),
    "matrix for all": (gradient(lambda m, x: linalg.triangular_solve(m, x)), MATRICES[0], X[:, :4]),
    "gather by numbers": (gradient(lambda x, i: tf.gather_nd(x, i)), X, IDS),
    "scatter": (gradient(lambda u, i: tf.scatter_nd(i, u, (7, 9))), ROWS, IDS),
    "scatter into": (
        lambda x, u: (
            tf.tensor_scatter_nd_add(x, IDS, x + u[0, 0]),
            tf.tensor_scatter_nd_update(x, [[2], [5]], u[:2]),
            tf.tensor_scatter_nd_max(x, IDS, u),
        ),
        RNG.standard_normal((8, 9)),
        ROWS,
    ),
    "segments": (
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
        IDS,
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
    "factors": (lambda m: (*linalg.lu(m), tf.abs(linalg.eig(m)[0])), MATRICES),
    "three diagonals": (tridiagonal, MATRICES),
    "least squares": (
        lambda m: (linalg.lstsq(m, m[..., :2], fast=False), linalg.logm(tf.cast(m, tf.complex128))),
        MATRICES,
    ),
    "three-dimensional spectra": (lambda x: tf.abs(tf.signal.rfft3d(x)), IMAGE.astype("float32")),
    "shuffled": (lambda x: tf.random.experimental.stateless_shuffle(x, seed=[1, 2]), X),
}
SINGLE = dict.fromkeys(["local response", "crops", "scaled", "three-dimensional spectra", "boxes", "suppressed"], 1e-5)


@tiers.parametrize("name", OPERATIONS, first=["scatter"])
def test_each_dimension_may_be_split(name):
    function, *inputs = OPERATIONS[name]
    check_each_dimension(function, inputs, SINGLE.get(name, 1e-9))


DIVIDED = ["local response", "dilation", "pool with indices", "factors", "segments"]


@pytest.mark.full
@pytest.mark.parametrize("name", DIVIDED)
def test_what_is_divided(name):
    """The first dimension, or another of the operand, divides the work."""
    function, *inputs = OPERATIONS[name]
    layout = "x/2:all" if name == "segments" else "batch"
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

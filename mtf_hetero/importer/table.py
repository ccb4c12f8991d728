"""The table of operations: which have a signature, and which are drawn."""

import itertools
from collections.abc import Hashable

from mtf_hetero._support import facts
from mtf_hetero.importer import windows
from mtf_hetero.importer.program import Operation, Value
from mtf_hetero.importer.signature import (
    Letters,
    Signature,
    Table,
    UnknownArgumentError,
    aligned,
    axis_numbers,
    elements,
    elementwise,
    parse_signature,
    strided_ranges,
    through,
)

TABLE = Table(windows.TABLE)
MOMENTS = "Moments"  # (x, axes) -> (mean, variance)
BATCH_NORM = "BatchNorm"  # (x, scale, offset, epsilon) -> (y, mean, variance)
BATCH_NORM_GRADIENT = "BatchNormGradient"  # (dy, x, mean, variance, scale) -> those of x, scale and offset
_NEEDED = {  # values of attributes without which the letters of an operation are others
    "data_format": ("NHWC", "NDHWC"),
    "include_batch_in_index": (False,),
    "compute_v": (True,),
    "compute_uv": (True,),
}


def find_signature(op: Operation) -> Signature | None:
    """Return the Signature of an operation; None if nothing is known of it."""
    rule = TABLE.get(op.type)
    if rule is None or any(op.attr(name) not in _NEEDED[name] for name in _NEEDED.keys() & op.attributes.keys()):
        return None
    try:
        signature = rule(op)
    except UnknownArgumentError:
        return None
    return signature and signature.without_ones(op)


def is_elementwise(op: Operation) -> bool:
    """Return whether an operation has one result, of which each element depends on one element of each operand."""
    if len(op.outputs) != 1:
        return False
    return op.type in facts.ELEMENTWISE or (op.type in facts.MOSTLY_ELEMENTWISE and find_signature(op) is not None)


def is_drawn(op: Operation) -> bool:
    """Return whether an operation draws random numbers from its operands alone, each device all of them."""
    return op.type in facts.STATELESS_DRAWS


_WRITTEN = {
    "...->": "L2Loss",
    "...c,c,c->...c,c,c": BATCH_NORM,
    "...c,...c,c,c,c->...c,c,c": BATCH_NORM_GRADIENT,
    "...c->c": "BiasAddGrad",
    "-,->...": "Fill",
    # classes
    "...C->...C": "Softmax LogSoftmax",
    "nC,n->n,nC": "SparseSoftmaxCrossEntropyWithLogits",
    "nC,nC->n,nC": "SoftmaxCrossEntropyWithLogits",
    "nC,n->n": "InTopK InTopKV2",
    "...C->...D,...E": "TopK TopKV2",
    "...C->...": "NthElement",
    "nS,nm->nm": "LowerBound UpperBound",
    "...,R->B": "HistogramFixedWidth",
    # matrices
    "...IJ->...KL": "Cholesky MatrixInverse MatrixSquareRoot MatrixExponential MatrixLogarithm MatrixBandPart",
    "...IJ->...": "MatrixDeterminant",
    "...IJ->...,...": "LogMatrixDeterminant",
    "...IJ->...K,...LM": "Eig SelfAdjointEigV2",
    "...IJ->...K,...LM,...NO": "Svd",
    "...IJ->...KL,...M": "Lu",
    "...IJ->...KL,...MN": "Qr",
    "...IJ,...Kc->...Lc": "MatrixSolve MatrixTriangularSolve",
    "...IJ,...KL->...MN": "CholeskyGrad BandedTriangularSolve TridiagonalSolve MatrixSolveLs",
    "...AB,...CD,...EF,...GH->...IJ": "TridiagonalMatMul",
    "...I->...JK": "MatrixDiag MatrixDiagV3",
    "...IJ->...K": "MatrixDiagPart MatrixDiagPartV3",
    "...IJ,...K->...LM": "MatrixSetDiag MatrixSetDiagV3",
    "...I->...J": "FFT IFFT RFFT IRFFT",
    "...HW->...PQ": "FFT2D IFFT2D RFFT2D IRFFT2D",
    "...DHW->...OPQ": "FFT3D IFFT3D RFFT3D IRFFT3D",
    # images
    "nhwC->nhwC": "LRN",
    "nhwC,nhwC,nhwC->nhwC": "LRNGrad",
    "...HWC->...PQD": "AdjustContrastv2",
    "...C->...D": "AdjustHue AdjustSaturation HSVToRGB RGBToHSV",
    "nHWc->nPQc": "ResizeBilinear ResizeBicubic ResizeNearestNeighbor ResizeArea ScaleAndTranslate",
    "nPQc,nHWc->nHWc": "ResizeBilinearGrad ResizeBicubicGrad ScaleAndTranslateGrad",
    "nPQc->nHWc": "ResizeNearestNeighborGrad",
    "nHWC->nPQF": "SpaceToDepth DepthToSpace ExtractImagePatches",
    "nDHWC->nOPQF": "ExtractVolumePatches",
    "nHWc,nT->nPQc": "ImageProjectiveTransformV2 ImageProjectiveTransformV3",
    "nHWC,nBT->nHWC": "DrawBoundingBoxes DrawBoundingBoxesV2",
    "NHWc,bT,b->bPQc": "CropAndResize",
    "bPQC,NHWC,bT,b->bT": "CropAndResizeGradBoxes",
    "nHWc,IJc->nPQc": "Dilation2D",
    "nHWc,IJc,nPQc->nHWc": "Dilation2DBackpropInput",
    "nHWc,IJc,nPQc->IJc": "Dilation2DBackpropFilter",
    "nHWC->nPQF,nPQF": "MaxPoolWithArgmax",  # whose indices count the pixels and channels of one image
    "nHWC,nPQF,nPQF->nHWC": "MaxPoolGradWithArgmax",
    "...IJK,...LM->...NO,...P,...Q,...": "CombinedNonMaxSuppression",
}
for _text, _kinds in _WRITTEN.items():
    TABLE.update(dict.fromkeys(_kinds.split(), parse_signature(_text)))
TABLE.update(dict.fromkeys(facts.ELEMENTWISE, elementwise))


@TABLE.rule(*facts.MOSTLY_ELEMENTWISE)
def _mostly_elementwise(op: Operation) -> Signature | None:
    return elementwise(op) if op.inputs[0].shape == op.outputs[0].shape else None


@TABLE.rule("BroadcastTo")
def _broadcast(op: Operation) -> Signature:
    rank = len(op.outputs[0].shape)
    return Signature([aligned(op.inputs[0], rank), None], [list(range(rank))])


# --- products and sums

_BY_PARTS = {"Sum", "Mean", "Max", "Min", MOMENTS}  # reductions of slices that mtf reduces again


@TABLE.rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(op: Operation) -> Signature | None:
    is_turned = [op.attr("transpose_a") or op.attr("adj_x"), op.attr("transpose_b") or op.attr("adj_y")]
    if op.inputs[0].dtype.is_complex and (op.attr("adj_x") or op.attr("adj_y")):  # it conjugates too
        return None
    rank = len(op.outputs[0].shape) - 2
    operands = [
        [*range(rank - len(x.shape) + 2, rank), *(letters[::-1] if turned else letters)]
        for x, letters, turned in zip(op.inputs, ("mk", "kn"), is_turned, strict=True)
    ]
    return Signature(operands, [[*range(rank), "m", "n"]])


@TABLE.rule("Einsum")
def _einsum(op: Operation) -> Signature:
    """Return the signature of an equation; of a letter that an operand or the result has twice, all is needed."""
    left, right = op.attr("equation").replace(" ", "").split("->")
    parts = left.split(",")
    sides = [*parts, right]  # a gradient of "ii->i" is "i->ii"
    twice = {letter for part in sides for letter in part if letter != "." and part.count(letter) > 1}
    rank = max(len(x.shape) - len(part.replace("...", "")) for x, part in zip(op.inputs, parts, strict=True))

    def letters(number: int, value: Value, part: str) -> list[Hashable]:
        before, dots, after = part.partition("...")
        count = len(value.shape) - len(before + after)
        named = [f"TWICE{number}/{i}" if a in twice else f"e{ord(a)}" for i, a in enumerate(before + after)]
        return [*named[: len(before)], *range(rank - count, rank if dots else 0), *named[len(before) :]]

    found = [letters(*side) for side in zip(itertools.count(), [*op.inputs, *op.outputs], sides, strict=False)]
    return Signature(found[:-1], found[-1:])


@TABLE.rule(*facts.REDUCTIONS, MOMENTS, "ArgMax", "ArgMin", "EuclideanNorm")
def _reduction(op: Operation) -> Signature:
    x, axes = op.inputs
    rank = len(x.shape)
    reduced = set(axis_numbers(axes, rank)) if rank else set()
    is_summed = op.type in _BY_PARTS and not (op.type == "Mean" and x.dtype.is_integer)
    letters = [axis if is_summed or axis not in reduced else f"R{axis}" for axis in range(rank)]
    kept = [letter for axis, letter in enumerate(letters) if axis not in reduced]
    single = [None if axis in reduced else axis for axis in range(rank)]  # the reduced axes are kept, of size 1
    return Signature([letters, None], [single if len(y.shape) == rank else kept for y in op.outputs])


# --- arrays that are rearranged


@TABLE.rule("Transpose", "ConjugateTranspose")
def _transpose(op: Operation) -> Signature:
    x, order = op.inputs
    return Signature([list(range(len(x.shape))), None], [list(map(int, elements(order)))])


@TABLE.rule("Tile")
def _tile(op: Operation) -> Signature | None:
    """Repetition of axes of size 1 alone is a broadcast; else it needs whole all axes that it repeats."""
    pairs = list(zip(op.inputs[0].shape, op.outputs[0].shape, strict=True))
    if all(a in (1, b) for a, b in pairs):
        return _broadcast(op)
    return through(op, {axis for axis, (a, b) in enumerate(pairs) if a != b})  # how often is no slice's number


@TABLE.rule("Pad", "PadV2", "MirrorPad", "MirrorPadGrad")
def _pad(op: Operation) -> Signature:
    return through(op, {i for i, pair in enumerate(elements(op.inputs[1])) if pair.any()})


@TABLE.rule("Slice")
def _slice(op: Operation) -> Signature:
    sizes = zip(op.inputs[0].shape, op.outputs[0].shape, strict=True)
    return through(op, {i for i, (a, b) in enumerate(sizes) if a != b}, shape=2)


@TABLE.rule("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2", "Roll")
def _along_axes(op: Operation) -> Signature:
    return through(op, axis_numbers(op.inputs[-1], len(op.inputs[0].shape)))


@TABLE.rule("Split", "SplitV")
def _split(op: Operation) -> Signature:
    number, axis = (1, op.inputs[0]) if op.type == "Split" else (0, op.inputs[2])
    return through(op, axis_numbers(axis, len(op.inputs[number].shape)), number)


@TABLE.rule("ConcatV2")
def _concat(op: Operation) -> Signature:
    *xs, axis = op.inputs
    rank = len(xs[0].shape)
    (touched,) = axis_numbers(axis, rank)
    operands: list[Letters | None] = [[a if a != touched else f"IN{n}" for a in range(rank)] for n in range(len(xs))]
    return Signature([*operands, None], [[a if a != touched else "OUT" for a in range(rank)]])


@TABLE.rule("Unpack", "Pack", "OneHot")
def _along_a_new_axis(op: Operation) -> Signature:
    """Return the signature of an operation that makes an axis, or takes it away."""
    large = list(range(len((op.inputs if op.type == "Unpack" else op.outputs)[0].shape)))
    axis = op.attr("axis", -1 if op.type == "OneHot" else 0) % len(large)
    small, large = large[:axis] + large[axis + 1 :], [*large[:axis], "A", *large[axis + 1 :]]
    if op.type == "Unpack":
        return Signature([large], [small] * len(op.outputs))
    return Signature([small, None, None, None] if op.type == "OneHot" else [small] * len(op.inputs), [large])


@TABLE.rule("StridedSlice", "StridedSliceGrad")
def _strided_slice(op: Operation) -> Signature:
    if op.type == "StridedSlice":
        inside, outside = _strided(op, op.inputs[0].shape)
        return Signature([inside, None, None, None], [outside])
    inside, outside = _strided(op, op.outputs[0].shape)
    return Signature([None, None, None, None, outside], [inside], shape=0)


def _strided(op: Operation, large: tuple[int, ...]) -> tuple[list[Hashable], list[Hashable]]:
    """Return the letters of both sides of x[...]; the operation on a slice of x must take all of a full axis too."""
    inside: list[Hashable] = []
    outside: list[Hashable] = []
    for each in strided_ranges(op, large):
        axis = len(inside)
        if each.is_new:
            outside.append(None)
            continue
        inside.append(axis if each.is_full else f"IN{axis}")
        if each.is_kept:
            outside.append(axis if each.is_full else f"OUT{axis}")
    return inside, outside


# --- rows by number


@TABLE.rule("GatherV2")
def _gather(op: Operation) -> Signature:
    table, ids, axis = op.inputs
    (at,), batch = axis_numbers(axis, len(table.shape)), op.attr("batch_dims", 0)
    shared, before = list(range(batch)), [f"d{i}" for i in range(batch, at)]
    looked_up = [f"i{i}" for i in range(batch, len(ids.shape))]
    after = [f"d{i}" for i in range(at + 1, len(table.shape))]
    operands: list[Letters | None] = [[*shared, *before, "V", *after], [*shared, *looked_up], None]
    return Signature(operands, [[*shared, *before, *looked_up, *after]])


@TABLE.rule(*(f"UnsortedSegment{kind}" for kind in ("Sum", "Max", "Min", "Prod")))
@TABLE.rule(*facts.SEGMENTS)
def _segments(op: Operation) -> Signature:
    """Return the signature of a reduction of rows; slices of sums that are not sorted are addends."""
    data, ids, *others = op.inputs
    numbered = [f"{'i' if op.type == 'UnsortedSegmentSum' else 'I'}{i}" for i in range(len(ids.shape))]
    rest = [f"d{i}" for i in range(len(ids.shape), len(data.shape))]
    return Signature([[*numbered, *rest], numbered, *[None] * len(others)], [["V", *rest]])


def _numbered(table: Value, ids: Value) -> tuple[list[str], list[str], list[str]]:
    """Return letters of the axes of a table that indices name, of those of the indices, and of the rest of the table.

    Args:
      table: the value that indices are of.
      ids: the indices, whose last axis has one number for each axis that it names.
    """
    count = ids.shape[-1]
    looked_up, rest = range(len(ids.shape) - 1), range(count, len(table.shape))
    return [f"V{i}" for i in range(count)], [f"i{i}" for i in looked_up], [f"d{i}" for i in rest]


@TABLE.rule("GatherNd")
def _gather_at(op: Operation) -> Signature:
    named, looked_up, rest = _numbered(*op.inputs)
    return Signature([[*named, *rest], [*looked_up, "K"]], [[*looked_up, *rest]])


@TABLE.rule("ScatterNd")
def _scatter(op: Operation) -> Signature | None:
    """Return the signature of a sum of rows, whose indices a layout may split."""
    elements(op.inputs[2])
    named, looked_up, rest = _numbered(op.outputs[0], op.inputs[0])
    operands: list[Letters | None] = [[*looked_up, "K"], [*looked_up, *rest], None]
    return None if op.inputs[1].dtype.is_bool else Signature(operands, [[*named, *rest]], shape=2)


@TABLE.rule(*(kind for kind in facts.SCATTERS if kind.startswith("Tensor")))
def _update(op: Operation) -> Signature:
    named, looked_up, rest = _numbered(*op.inputs[:2])
    needed = [letter.upper() for letter in looked_up]
    return Signature([[*named, *rest], [*needed, "K"], [*needed, *rest]], [[*named, *rest]])


@TABLE.rule("ReverseSequence")
def _reverse_sequence(op: Operation) -> Signature:
    axes: list[Hashable] = list(range(len(op.inputs[0].shape)))
    axes[op.attr("seq_dim")] = "S"
    return Signature([axes, [op.attr("batch_dim", 0)]], [axes])


@TABLE.rule("CropAndResizeGradImage")
def _crop_gradient(op: Operation) -> Signature:
    return Signature(["bPQc", "bT", "b", None], ["NHWc"], shape=3)


@TABLE.rule("DenseBincount")
def _bincount(op: Operation) -> Signature | None:
    """Rows are counted one by one; a vector is counted whole."""
    has_weights = op.inputs[2].shape == op.inputs[0].shape
    return parse_signature("...I,-,...J->...K" if has_weights else "...I->...K")(op)

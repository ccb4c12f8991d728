"""Signatures of operations that rearrange arrays: untouched axes go through, a touched one is needed whole."""

from collections.abc import Hashable
from typing import Any

from mtf_hetero.importer.signature import Letters, Signature, Table, elementwise, leading, through

TABLE = Table()
REGROUPED = {"Reshape", "Squeeze", "ExpandDims"}  # axes are products of dimensions: nothing moves
_ON_ELEMENTS = """
Abs Acos Acosh Add AddN AddV2 Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e
BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc BitwiseAnd BitwiseOr BitwiseXor
Bucketize Cast Ceil CheckNumerics CheckNumericsV2 ClipByValue Complex ComplexAbs Conj Cos Cosh Dawsn Digamma Div
DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expint Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient
FakeQuantWithMinMaxVars Floor FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual Igamma IgammaGradA Igammac
Imag Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p
LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual OnesLike Polygamma
PopulationCount Pow RandomGammaGrad Real RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift
Rint Round Rsqrt RsqrtGrad SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus SoftplusGrad Softsign
SoftsignGrad Spence Sqrt SqrtGrad Square SquaredDifference Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py
Xlogy ZerosLike Zeta
"""
ELEMENTWISE = frozenset(_ON_ELEMENTS.split())
TABLE.update(dict.fromkeys(ELEMENTWISE, elementwise))


@TABLE.rule("BiasAdd")
def _bias(op: Any) -> Signature | None:
    return elementwise(op) if op.attr("data_format", "NHWC") == "NHWC" else None


@TABLE.rule("Bitcast")
def _bitcast(op: Any) -> Signature | None:
    return elementwise(op) if op.inputs[0].shape == op.outputs[0].shape else None


@TABLE.rule("Select")
def _select(op: Any) -> Signature | None:
    return elementwise(op) if op.inputs[0].shape == op.outputs[0].shape else None


@TABLE.rule("BroadcastTo")
def _broadcast(op: Any) -> Signature:
    letters = elementwise(op)
    return Signature([letters.operands[0], None], letters.results)


@TABLE.rule("Tile")
def _tile(op: Any) -> Signature | None:
    """Repetition of an axis of size 1 is a broadcast; of another one, it needs that axis whole."""
    x, y = op.inputs[0].shape, op.outputs[0].shape
    touched = {axis for axis, (a, b) in enumerate(zip(x, y, strict=True)) if a not in (1, b)}
    return through(op, 0, touched) if touched else _broadcast(op)


@TABLE.rule("Transpose", "ConjugateTranspose")
def _transpose(op: Any) -> Signature | None:
    x, order = op.inputs
    return None if order.array is None else Signature([list(range(len(x.shape))), None], [list(map(int, order.array))])


def _changed(op: Any) -> set[int]:
    """Return the axes whose size is another in the result."""
    return {i for i, (a, b) in enumerate(zip(op.inputs[0].shape, op.outputs[0].shape, strict=True)) if a != b}


@TABLE.rule("Pad", "PadV2", "MirrorPad", "MirrorPadGrad")
def _pad(op: Any) -> Signature | None:
    paddings = op.inputs[1].array
    return None if paddings is None else through(op, 0, {i for i, pair in enumerate(paddings) if pair.any()})


@TABLE.rule("Slice")
def _slice(op: Any) -> Signature:
    signature = through(op, 0, _changed(op))
    signature.shape = 2
    return signature


@TABLE.rule("Cumsum", "Cumprod", "CumulativeLogsumexp")
def _cumulate(op: Any) -> Signature | None:
    x, axis = op.inputs
    return None if axis.array is None else through(op, 0, {int(axis.array) % len(x.shape)})


@TABLE.rule("ReverseV2", "Roll")
def _reverse(op: Any) -> Signature | None:
    axes = op.inputs[-1].array
    if axes is None:
        return None
    return through(op, 0, {int(axis) % len(op.inputs[0].shape) for axis in axes.reshape(-1)})


@TABLE.rule("TopKV2", "TopK")
def _largest(op: Any) -> Signature:
    return through(op, 0, {len(op.inputs[0].shape) - 1})


@TABLE.rule("Split", "SplitV")
def _split(op: Any) -> Signature | None:
    number, axis = (1, op.inputs[0]) if op.type == "Split" else (0, op.inputs[2])
    if axis.array is None:
        return None
    return through(op, number, {int(axis.array) % len(op.inputs[number].shape)})


@TABLE.rule("ConcatV2")
def _concat(op: Any) -> Signature | None:
    *xs, axis = op.inputs
    if axis.array is None:
        return None
    rank = len(xs[0].shape)
    touched = int(axis.array) % rank
    operands: list[Letters | None] = [[a if a != touched else f"in{n}" for a in range(rank)] for n in range(len(xs))]
    result = [a if a != touched else "out" for a in range(rank)]
    whole = frozenset([*(f"in{n}" for n in range(len(xs))), "out"])
    return Signature([*operands, None], [result], whole=whole)


def _strided(op: Any, large: tuple[int, ...]) -> tuple[list[Hashable], list[Hashable], frozenset[Hashable]] | None:
    """Return the letters of both sides of x[...], and those that are needed whole."""
    if any(x.array is None for x in op.inputs[1:4]):
        return None
    inside: list[Hashable] = []
    outside: list[Hashable] = []
    specs = list(zip(*(x.array for x in op.inputs[1:4]), strict=True))
    named = [i for i in range(len(specs)) if not _has(op, "ellipsis", i) and not _has(op, "new_axis", i)]

    def leave(count: int) -> None:
        axes = range(len(inside), len(inside) + count)
        inside.extend(axes)
        outside.extend(axes)

    for i, spec in enumerate(specs):
        axis = len(inside)
        if _has(op, "ellipsis", i):
            leave(len(large) - len(named))
        elif _has(op, "new_axis", i):
            outside.append(None)
        elif _has(op, "shrink_axis", i):
            inside.append(f"in{axis}")
        elif _is_full(op, i, spec, large[axis]):
            leave(1)
        else:
            inside.append(f"in{axis}")
            outside.append(f"out{axis}")
    leave(len(large) - len(inside))
    return inside, outside, frozenset(letter for letter in inside + outside if isinstance(letter, str))


def _has(op: Any, mask: str, number: int) -> bool:
    """Return whether a part of x[...] is of a kind."""
    return bool(op.attr(f"{mask}_mask", 0) >> number & 1)


def _is_full(op: Any, number: int, spec: tuple[int, int, int], size: int) -> bool:
    """Return whether a part of x[...] is all of its axis."""
    begin, end, step = spec
    begins, ends = begin == 0 or _has(op, "begin", number), end >= size or _has(op, "end", number)
    return bool(begins and ends and step == 1)


@TABLE.rule("StridedSlice")
def _strided_slice(op: Any) -> Signature | None:
    found = _strided(op, op.inputs[0].shape)
    return found and Signature([found[0], None, None, None], [found[1]], whole=found[2])


@TABLE.rule("StridedSliceGrad")
def _strided_slice_gradient(op: Any) -> Signature | None:
    found = _strided(op, op.outputs[0].shape)
    return found and Signature([None, None, None, None, found[1]], [found[0]], whole=found[2], shape=0)


@TABLE.rule("Unpack")
def _unpack(op: Any) -> Signature:
    letters = list(range(len(op.inputs[0].shape)))
    axis = op.attr("axis", 0) % len(letters)
    results = [letters[:axis] + letters[axis + 1 :]] * len(op.outputs)
    return Signature([letters], results, whole=frozenset([axis]))


@TABLE.rule("Pack")
def _pack(op: Any) -> Signature:
    letters = list(range(len(op.outputs[0].shape)))
    axis = op.attr("axis", 0) % len(letters)
    return Signature([letters[:axis] + letters[axis + 1 :]] * len(op.inputs), [letters], whole=frozenset([axis]))


@TABLE.rule("OneHot")
def _one_hot(op: Any) -> Signature:
    rank = len(op.outputs[0].shape)
    axis = op.attr("axis", -1) % rank
    letters = list(range(rank))
    return Signature([letters[:axis] + letters[axis + 1 :], None, None, None], [letters], whole=frozenset([axis]))


@TABLE.rule("MatrixDiag", "MatrixDiagV3", "MatrixDiagPart", "MatrixDiagPartV3", "MatrixSetDiag", "MatrixSetDiagV3")
def _diagonal(op: Any) -> Signature | None:
    operands = {"MatrixDiagPart": [2], "MatrixSetDiag": [2, 1]}.get(op.type.removesuffix("V3"), [1])
    made = 1 if "Part" in op.type else 2
    return leading(op, [*operands, *[None] * (len(op.inputs) - len(operands))], [made])

"""Signatures of operations that multiply, reduce, look up and solve."""

from collections.abc import Hashable
from typing import Any

from mtf_hetero.importer import moments
from mtf_hetero.importer.signature import Letters, Signature, Table, leading

TABLE = Table()
CONTRACTIONS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
REDUCTIONS = {"Sum": "SUM", "Mean": "MEAN", "Max": "MAX", "Min": "MIN", "BiasAddGrad": "SUM"}  # mtf has these
_OTHERS = ("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Prod")


@TABLE.rule("MatMul")
def _matmul(op: Any) -> Signature:
    a, b = ("km" if op.attr("transpose_a") else "mk"), ("nk" if op.attr("transpose_b") else "kn")
    return Signature([list(a), list(b)], [list("mn")], summed=frozenset("k"))


@TABLE.rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul(op: Any) -> Signature | None:
    if op.inputs[0].dtype.is_complex and (op.attr("adj_x") or op.attr("adj_y")):  # it conjugates too
        return None
    a, b = ("km" if op.attr("adj_x") else "mk"), ("nk" if op.attr("adj_y") else "kn")
    rank = len(op.outputs[0].shape)
    outer: list[list[Hashable]] = [list(range(rank - len(x.shape), rank - 2)) for x in op.inputs]
    return Signature([[*outer[0], *a], [*outer[1], *b]], [[*range(rank - 2), *"mn"]], summed=frozenset("k"))


@TABLE.rule("Einsum")
def _einsum(op: Any) -> Signature | None:
    left, right = op.attr("equation").replace(" ", "").split("->")
    operands: list[Letters | None] = list(left.split(","))
    if "." in left or any(len(set(part)) < len(part) for part in left.split(",")):
        return None
    return Signature(operands, [right], summed=frozenset(left) - frozenset(right) - {","})


@TABLE.rule("BiasAddGrad")
def _bias_gradient(op: Any) -> Signature | None:
    if op.attr("data_format", "NHWC") != "NHWC":
        return None
    rank = len(op.inputs[0].shape)
    return Signature([list(range(rank))], [[rank - 1]], summed=frozenset(range(rank - 1)))


@TABLE.rule("Sum", "Mean", "Max", "Min", moments.MOMENTS, *_OTHERS)
def _reduction(op: Any) -> Signature | None:
    x, axes = op.inputs
    if axes.array is None:
        return None
    rank = len(x.shape)
    reduced = {int(axis) % rank for axis in axes.array.reshape(-1)} if rank else set()

    def kept(result: Any) -> list[Hashable]:
        if len(result.shape) == rank:  # the reduced axes are kept, of size 1
            return [None if axis in reduced else axis for axis in range(rank)]
        return [axis for axis in range(rank) if axis not in reduced]

    is_rounded = op.type == "Mean" and x.dtype.is_integer
    has = op.type in (*REDUCTIONS, moments.MOMENTS) and not is_rounded
    letters = frozenset(reduced)
    return Signature(
        [list(range(rank)), None],
        [kept(y) for y in op.outputs],
        summed=letters if has else frozenset(),
        whole=frozenset() if has else letters,
    )


@TABLE.rule("L2Loss")
def _half_of_squares(op: Any) -> Signature:
    rank = len(op.inputs[0].shape)
    return Signature([list(range(rank))], [[]], summed=frozenset(range(rank)))


@TABLE.rule("Softmax", "LogSoftmax")
def _softmax(op: Any) -> Signature:
    letters = list(range(len(op.inputs[0].shape)))
    return Signature([letters], [letters], whole=frozenset(letters[-1:]))


@TABLE.rule("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_crossentropy(op: Any) -> Signature:
    return Signature([list("nc"), list("n")], [list("n"), list("nc")], whole=frozenset("c"))


@TABLE.rule("SoftmaxCrossEntropyWithLogits")
def _crossentropy(op: Any) -> Signature:
    return Signature([list("nc"), list("nc")], [list("n"), list("nc")], whole=frozenset("c"))


@TABLE.rule("InTopKV2")
def _in_top(op: Any) -> Signature:
    return Signature([list("nc"), list("n"), None], [list("n")], whole=frozenset("c"))


@TABLE.rule("GatherV2")
def _gather(op: Any) -> Signature | None:
    table, ids, axis = op.inputs
    if axis.array is None:
        return None
    at, batch = int(axis.array) % len(table.shape), op.attr("batch_dims", 0)
    shared, before = list(range(batch)), [f"d{i}" for i in range(batch, at)]
    looked_up = [f"i{i}" for i in range(batch, len(ids.shape))]
    after = [f"d{i}" for i in range(at + 1, len(table.shape))]
    operands: list[Letters | None] = [[*shared, *before, "v", *after], [*shared, *looked_up], None]
    return Signature(operands, [[*shared, *before, *looked_up, *after]], whole=frozenset("v"))


@TABLE.rule("UnsortedSegmentSum")
def _segment_sum(op: Any) -> Signature:
    data, ids, _ = op.inputs
    looked_up = [f"i{i}" for i in range(len(ids.shape))]
    rest = [f"d{i}" for i in range(len(ids.shape), len(data.shape))]
    operands: list[Letters | None] = [[*looked_up, *rest], looked_up, None]
    return Signature(operands, [["v", *rest]], whole=frozenset("v"), summed=frozenset(looked_up))


@TABLE.rule("DenseBincount")
def _bincount(op: Any) -> Signature | None:
    """Rows are counted one by one; a vector is counted whole."""
    return leading(op, [1, None, 1 if op.inputs[2].shape == op.inputs[0].shape else None], [1])


_LAST_TWO = (
    "Cholesky",
    "MatrixDeterminant",
    "MatrixInverse",
    "MatrixSquareRoot",
    "MatrixExponential",
    "MatrixLogarithm",
)


@TABLE.rule(*_LAST_TWO)
def _of_a_matrix(op: Any) -> Signature | None:
    return leading(op, [2], [0 if op.type == "MatrixDeterminant" else 2])


_MADE_OF_A_MATRIX = {
    "LogMatrixDeterminant": [0, 0],
    "Qr": [2, 2],
    "SelfAdjointEigV2": [1, 2],
    "Eig": [1, 2],
    "Lu": [2, 1],
}


@TABLE.rule(*_MADE_OF_A_MATRIX)
def _two_of_a_matrix(op: Any) -> Signature | None:
    if op.type in ("Eig", "SelfAdjointEigV2") and not op.attr("compute_v"):  # the vectors are of no shape
        return None
    return leading(op, [2], _MADE_OF_A_MATRIX[op.type])


@TABLE.rule("Svd")
def _svd(op: Any) -> Signature | None:
    return leading(op, [2], [1, 2, 2]) if op.attr("compute_uv") else None


@TABLE.rule("MatrixSolve", "MatrixTriangularSolve")
def _solve(op: Any) -> Signature | None:
    """Return the signature of a system, whose right side has independent columns."""
    matrix, right = op.inputs
    if len(matrix.shape) != len(right.shape):
        return None
    outer = list(range(len(matrix.shape) - 2))
    operands: list[Letters | None] = [[*outer, "i", "j"], [*outer, "k", "column"]]
    return Signature(operands, [[*outer, "l", "column"]], whole=frozenset("ijkl"))


@TABLE.rule("CholeskyGrad", "BandedTriangularSolve", "TridiagonalSolve")
def _of_two_matrices(op: Any) -> Signature | None:
    return leading(op, [2, 2], [2])


@TABLE.rule("MatrixSolveLs")
def _least_squares(op: Any) -> Signature | None:
    return leading(op, [2, 2, None], [2])


@TABLE.rule("TridiagonalMatMul")
def _of_three_diagonals(op: Any) -> Signature | None:
    return leading(op, [2, 2, 2, 2], [2])


@TABLE.rule("MatrixBandPart")
def _band(op: Any) -> Signature | None:
    return leading(op, [2, None, None], [2])


@TABLE.rule("FFT", "IFFT", "FFT2D", "IFFT2D", "FFT3D", "IFFT3D")
def _fourier(op: Any) -> Signature | None:
    count = {"2": 2, "3": 3}.get(op.type[-2:-1], 1)
    return leading(op, [count], [count])


@TABLE.rule("RFFT", "IRFFT", "RFFT2D", "IRFFT2D", "RFFT3D", "IRFFT3D")
def _real_fourier(op: Any) -> Signature | None:
    count = {"2": 2, "3": 3}.get(op.type[-2:-1], 1)
    return leading(op, [count, None], [count])

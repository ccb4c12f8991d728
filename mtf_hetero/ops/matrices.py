"""Einsums that are products of matrices as they lie in memory, for which TensorFlow's Einsum takes longer."""

import functools
import math
from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import reshape

_Dims = list[mtf.Dimension]


def matrix_product(shapes: Sequence[mtf.Shape], output: mtf.Shape) -> Callable[..., tf.Tensor] | None:
    """Return the function that computes an einsum as a product of two matrices; None if one would have to be moved.

    A product transposes a matrix at no cost. The function is made of numbers alone, so that equal layers share it.

    Args:
      shapes: of the inputs.
      output: of the output.
    """
    if len(shapes) != 2:
        return None
    one, other = (shape.dims for shape in shapes)
    for left, right, is_swapped in ((one, other, False), (other, one, True)):
        batch = [d for d in left if d in right and d in output.dims]
        summed_dims = [d for d in left if d in right and d not in output.dims]
        rows, columns = ([d for d in output.dims if d not in dims] for dims in (right, left))
        a, b = _is_transposed(left, batch, rows, summed_dims), _is_transposed(right, batch, summed_dims, columns)
        if output.dims == batch + rows + columns and a is not None and b is not None:
            firsts = len(summed_dims if a else rows), len(columns if b else summed_dims)
            return functools.partial(
                _multiply, batch=len(batch), firsts=firsts, transposed=(a, b), is_swapped=is_swapped
            )
    return None


def _is_transposed(dims: _Dims, batch: _Dims, rows: _Dims, columns: _Dims) -> bool | None:
    """Return whether a matrix has its columns before its rows; None if they are mixed."""
    if dims == batch + rows + columns:
        return False
    return True if dims == batch + columns + rows else None


def _multiply(
    *slices: tf.Tensor, batch: int, firsts: tuple[int, int], transposed: tuple[bool, bool], is_swapped: bool
) -> tf.Tensor:
    """Multiply two slices.

    Args:
      *slices: the two.
      batch: number of the first dimensions, which both slices and the product have.
      firsts: number of dimensions after them that are the rows of each matrix as it lies.
      transposed: whether each matrix is transposed.
      is_swapped: whether the second slice is the first factor.
    """
    matrices, remaining = [], []
    factors = reversed(slices) if is_swapped else slices
    for x, first, summed_comes_first in zip(factors, firsts, (transposed[0], not transposed[1]), strict=True):
        sizes = x.shape.as_list()
        lead, rows, columns = sizes[:batch], sizes[batch : batch + first], sizes[batch + first :]
        matrices.append(reshape(x, [*([math.prod(lead)] if batch else []), math.prod(rows), math.prod(columns)]))
        remaining += [lead, columns if summed_comes_first else rows]
    a, b = matrices
    if batch:
        product = tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=transposed[0], adj_y=transposed[1])
    else:
        product = tf.raw_ops.MatMul(a=a, b=b, transpose_a=transposed[0], transpose_b=transposed[1])
    return reshape(product, [*remaining[0], *remaining[1], *remaining[3]])

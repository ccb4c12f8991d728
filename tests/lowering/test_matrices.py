"""Einsums that are made as products of matrices."""

import numpy as np
import pytest

from mtf_hetero import mtf, tf
from mtf_hetero.ops import matrices

SIZES = dict(zip("abcdef", (2, 3, 5, 4, 1, 6), strict=True))


def shape(letters):
    return mtf.Shape([mtf.Dimension(letter, SIZES[letter]) for letter in letters])


def product(equation):
    operands, _, output = equation.partition("->")
    return matrices.matrix_product([shape(letters) for letters in operands.split(",")], shape(output))


@pytest.mark.parametrize(
    ("equation", "kind"),
    [
        ("ab,bc->ac", "MatMul"),
        ("ab,cb->ac", "MatMul"),
        ("ba,bc->ac", "MatMul"),
        ("ba,cb->ac", "MatMul"),
        ("ab,bc->ca", "MatMul"),
        ("abc,cd->abd", "MatMul"),
        ("abc,abd->cd", "MatMul"),
        ("abc,dbc->ad", "MatMul"),
        ("ab,bcd->acd", "MatMul"),
        ("ab,b->a", "MatMul"),
        ("a,b->ab", "MatMul"),
        ("aeb,bc->aec", "MatMul"),
        ("abc,acd->abd", "BatchMatMulV2"),
        ("abcd,abed->abce", "BatchMatMulV2"),
        ("abc,adb->acd", "BatchMatMulV2"),
        ("abc,acd->adb", "BatchMatMulV2"),
    ],
)
def test_a_product_of_matrices(equation, kind):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([SIZES[n] for n in letters]) for letters in equation.partition("->")[0].split(",")]
    multiply = product(equation)
    assert multiply is not None
    with tf.Graph().as_default() as graph, tf.Session() as session:
        found = session.run(multiply(*map(tf.constant, arrays)))
        assert kind in {op.type for op in graph.get_operations()}
        assert "Transpose" not in {op.type for op in graph.get_operations()}
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "equation", ["abc,bd->acd", "abcd,aecd->acbe", "ab,ac->bac", "ab->a", "ab,bc,cd->ad", "abf,bc->ac"]
)
def test_what_has_to_be_moved_is_no_product(equation):
    assert product(equation) is None


def test_an_empty_slice():
    multiply = product("ab,bc->ac")
    assert multiply is not None
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.zeros([2, 0]), tf.zeros([0, 5])
        np.testing.assert_array_equal(session.run(multiply(x, y)), np.zeros([2, 5]))

"""The oracle over operations: each on one and two mesh axes, with uneven and prime sizes, forward and gradient."""

import pytest
from operations import FLOAT32_PROGRAMS, PROGRAMS, B, H, layouts
from oracle import check
from tiers import FEW_OR_ALL

from mtf_hetero import mtf, tf


@pytest.mark.parametrize("chosen", FEW_OR_ALL)
@pytest.mark.parametrize("name", PROGRAMS)
def test_operation_is_the_same_on_every_layout(name, chosen):
    build, rules = PROGRAMS[name]
    check(build, *chosen(layouts(*rules)))


@pytest.mark.parametrize("chosen", FEW_OR_ALL)
@pytest.mark.parametrize("name", FLOAT32_PROGRAMS)
def test_float32_operation_is_the_same_on_every_layout(name, chosen):
    build, rules = FLOAT32_PROGRAMS[name]
    check(build, *chosen(layouts(*rules)), dtype=tf.float32)


@pytest.mark.full
@pytest.mark.parametrize("name", ["conv2d_same", "dense", "pool2d", "softmax_loss", "along", "relu"])
def test_layer_in_float32(name):
    build, rules = PROGRAMS[name]
    check(build, *layouts(*rules), dtype=tf.float32)


def test_exact_sizes_are_kept():
    check(PROGRAMS["dense"][0], *layouts("f:x", "f:x;b:y", sizes={"f": [2, 8, 1]}))


@pytest.mark.parametrize(
    ("build", "rule", "dim"),
    [
        (PROGRAMS["conv2d_same"][0], "kw:x", "kw"),
        (lambda feed: {"y": mtf.slicewise(tf.nn.softmax, [feed("x", [B, H])], splittable_dims=[B])}, "h:x", "h"),
    ],
)
def test_what_cannot_be_split_says_operation_dimension_and_axis(build, rule, dim):
    with pytest.raises(NotImplementedError, match=rf"Operation '.*dimension '{dim}'.*mesh axis 'x'"):
        check(build, *layouts(rule))

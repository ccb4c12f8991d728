"""The oracle over operations: each with uneven, prime and empty slices, on one and two mesh axes, with gradients."""

import graph_operations
import pytest
import reshapes
import rounds
from operations import FLOAT32_PROGRAMS, PROGRAMS, B, H, layouts, layouts_with_zeros
from oracle import check
from tiers import ONCE_OR_ALL_KINDS, ONE_OR_ALL, few, parametrize

from mtf_hetero import mtf, tf

# Programs of several operations, and the rules that split them on a mesh of both axes
OTHERS = {
    **{
        name: (build, ("b:x", "c:x", "f:x", "b:x;c:y", "f:x;b:y", "c:x;f:y"))
        for name, build in graph_operations.PROGRAMS.items()
    },
    "rename": (
        reshapes.rename,
        ("f0:x", "r0:x", "f0:x;r0:x", "f0:x;r0:y", "f0:x;k:y", "f0:x;n:y", "r0:y;n:x", "r0:x;f0:x;n:y"),
    ),
    "flatten": (
        reshapes.flatten,
        ("c:x", "b:x;c:y", "c:x;k:x", "k:x", "h:y;k:x", "k:y;c2:x", "h2:x;c2:y", "b:y;n:x", "n:y", "c:x;c2:y;n:x"),
    ),
    "outstanding_sum": (
        reshapes.outstanding_sum,
        ("b:x", "b:x;scattered:x", "b:x;cut:y", "b:y;scattered:y;cut:x", "b:x;a:y"),
    ),
    "rounds": (rounds.program((3, 2, 2)), ("b:x", "b:x;u:x", "rounds/b:x", "outer:x;b:y;u:y", "b:x;i:y")),
}
ALL = PROGRAMS | FLOAT32_PROGRAMS | OTHERS
VARIANTS = {  # of operations that the first tier has in another form
    "conv2d_valid",
    "conv2d_even_window",
    "conv2d_strided",
    "conv2d_two_batch_dims",
    "conv2d_transpose",
    "conv3d_valid",
    "pool2d",
    "integer_targets",
    "batch_norm",
    "rounds",
}


@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
@pytest.mark.parametrize("chosen", ONE_OR_ALL)
@parametrize("name", ALL, first=ALL.keys() - VARIANTS)
def test_operation_is_the_same_on_every_layout(name, chosen, options):
    build, rules = ALL[name]
    dtype = tf.float32 if name in FLOAT32_PROGRAMS else tf.float64
    uneven = chosen(layouts(*rules, axes="xy" if name in OTHERS else ""))
    empty = few(chosen(layouts_with_zeros(build, rules[::-1])))  # in the first tier by another rule
    check(build, *uneven, *empty, dtype=dtype, **options)


@pytest.mark.parametrize("name", ["dense", "conv2d_transpose_wide", "pool2d_across"])
def test_constants_variables_and_fed_inputs(name):
    """Sums, and halos with and without sums in place; convolutions are in `test_every_step`."""
    build, rules = PROGRAMS[name]
    check(build, *few(layouts(*rules)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["conv2d_same", "dense", "pool2d", "softmax_loss", "along", "relu"])
def test_layer_in_float32(name):
    build, rules = PROGRAMS[name]
    check(build, *few(layouts(*rules)), dtype=tf.float32)


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

"""Arguments that the layers refuse: one message for each mistake."""

import pytest

from mtf_hetero import layers, mtf, tf

B, H, W, C, F, V = (mtf.Dimension(*dim) for dim in [("b", 4), ("h", 11), ("w", 7), ("c", 12), ("f", 8), ("v", 13)])


def image(*dims, dtype=tf.float32):
    return mtf.zeros(mtf.Mesh(mtf.Graph(), "mesh"), mtf.Shape(dims or [B, H, W, C]), dtype)


def pool(**options):
    return layers.pool(image(), **{"kind": "max", "size": 3, **options})


def look_up(table_dims=(V, C), ids_dims=(B,), dtype=tf.float32, ids_dtype=tf.int32):
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    table, ids = mtf.zeros(mesh, mtf.Shape(table_dims), dtype), mtf.zeros(mesh, mtf.Shape(ids_dims), ids_dtype)
    return layers.lookup(table, ids, V)


def in_rounds(dim, sizes):
    return layers.in_rounds(image(B, C), lambda part: part, dim=dim, sizes=sizes)


BLOCKS = "'depth_to_space': sizes are 0 for .*; give a positive whole number, or one for each"
FACTORS = "give a positive whole number, or one for each spatial dimension"
MISTAKES = [
    (lambda: pool(kind="mean"), "kind is 'mean'; it must be 'max' or 'avg'"),
    (lambda: pool(size=0), "size is 0; give a positive number, or 2 of them"),
    (lambda: pool(strides=(1, 2, 3)), "strides is .*2 of them"),
    (lambda: pool(padding=2), "padding is 2; it must be .* up to half the window, 1"),
    (lambda: pool(size=4, padding=3), "padding is 3; it must be .* up to half the window, 2"),
    (lambda: pool(padding="same"), "padding is 'same'"),
    (lambda: pool(size=12), "windows of 12 x 12 do not fit an image of 11 x 7 pixels"),
    (lambda: pool(size=(2, 2, 2, 2)), "4 spatial dimensions"),
    (lambda: layers.batch_norm(image(C), training=True), "give a floating-point tensor .batch, ..., channels."),
    (lambda: layers.batch_norm(image(), training=True, momentum=1.5), "momentum is 1.5; it must be from 0 to 1"),
    (lambda: layers.batch_norm(image(), training=True, per=["c"]), "per is .*; name some, not all, of b, h, w"),
    (lambda: layers.batch_norm(image(), training=True, per=["v"]), "per is .*; name some, not all, of b, h, w"),
    (lambda: layers.batch_norm(image(), training=True, per=["b", "h", "w"]), "per is .*; name some, not all, of b, h"),
    (lambda: layers.depthwise_conv2d(image(), multiplier=0), "multiplier is 0; it must be a positive whole number"),
    (lambda: layers.depthwise_conv2d(image(), padding="FULL"), "padding is 'FULL'; it must be 'SAME' or 'VALID'"),
    (
        lambda: layers.depthwise_conv2d(image(), filter_size=(9, 8), padding="VALID"),
        "windows of 9 x 8 do not fit an image",
    ),
    (lambda: layers.depthwise_conv2d(image(), strides=(0, 1)), "give two positive numbers for each"),
    (lambda: layers.grouped_conv2d(image(), F, groups=3), "groups is 3 for 12 channels and 8 filters; give a number"),
    (lambda: layers.dilate(image(H, W, C, F), 0), "rates are .*; give a positive number, or one for each of 2 dim"),
    (lambda: layers.dilate(image(H, W, C, F), (1, 2, 3)), "rates are .*; give a positive number, or one for each of 2"),
    (lambda: layers.depth_to_space(image(), 5), "'depth_to_space': 12 channels make no blocks of 25 pixels; give a"),
    (lambda: layers.depth_to_space(image(), 0), BLOCKS),
    (lambda: layers.depth_to_space(image(), (1, 2, 2, 2)), r"sizes are \(1, 2, 2, 2\) for"),
    (lambda: layers.space_to_depth(image(), (11, 2)), "'space_to_depth': dimension 'w' of size 7 has no blocks of 2 p"),
    (lambda: layers.upsample(image(), 2, method="cubic"), "method is 'cubic'; it must be one of nearest, bilinear"),
    (lambda: layers.upsample(image(), 0), "factors are 0 for"),
    (lambda: layers.upsample(image(), (2, -1)), r"factors are \(2, -1\) for"),
    (lambda: layers.upsample(image(), (2, 2, 2, 2)), FACTORS),
    (lambda: look_up((B, C)), r"lookup 'lookup': the table is .*, without the dimension v=13"),
    (lambda: look_up(ids_dtype=tf.float32), "ids are of type float32; cast them to tf.int32 or tf.int64"),
    (lambda: look_up(dtype=tf.bool), "the table is of type bool; cast it to numbers"),
    (lambda: look_up(ids_dims=(C,)), "ids and table both have a dimension 'c'; rename"),
    (lambda: in_rounds(B, (2, 1)), r"rounds have the sizes \[2, 1\], whose sum is not"),
    (lambda: in_rounds(F, (8,)), "which .* does not have"),
]


@pytest.mark.usefixtures("own_graph")
@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_is_refused(mistake, message):
    with pytest.raises(ValueError, match=message):
        mistake()

"""The spatial recipe: what it splits of the models and of hand-made graphs, and that it changes no result."""

import oracle
import pytest
import zeros
from tiers import parametrize
from zeros import dims, names

from mtf_hetero import layers, mtf, tf
from mtf_hetero.models import MODELS

NAMES = ("batch", "depth", "height", "width", "channels")


def lay_out(build, mesh_shape, shares=None, **options):
    """The layout of a program, which its training step does not change."""
    options = {"mesh_shape": mesh_shape, "shares": shares, **options}
    layout = zeros.lay_out(build, "spatial", training=False, **options)
    assert layout == zeros.lay_out(build, "spatial", **options)
    return layout


def volume_dims(sizes):
    return [mtf.Dimension(name, size) for name, size in zip(NAMES, sizes)]


def make_cosmoflow(edge, batch=8, **config):
    return lambda feed: {
        "y": MODELS["cosmoflow"].build(feed("volumes", volume_dims((batch, edge, edge, edge, 4))), **config)
    }


def depths(*owners):
    return sorted(["depth", *(f"{owner}/depth" for owner in owners)])


def numbered(kind, last):
    return [f"{kind}{number}" for number in range(1, last + 1)]


DENSE = [f"dense{number}/batch" for number in (1, 2, 3)]
GATHERED = [  # of CosmoFlow: the last convolution and pool that are split, and what is split otherwise after them
    (make_cosmoflow(128), {"least_values": 512}, 5, [*DENSE, "conv6/filters", "conv7/channels"]),
    (make_cosmoflow(128), {}, 4, [*DENSE, "conv5/filters", "pool5/channels", "conv6/channels", "conv7/filters"]),
    (
        make_cosmoflow(128, batch=2),
        {"shares": {"depth": [2, 1, 1, 1]}, "least_values": 512},
        4,
        ["conv5/filters", "pool5/channels", "conv6/channels", "conv7/filters", "dense1/inputs"],
    ),
]


@pytest.mark.parametrize(("build", "options", "last", "gathered"), GATHERED)
def test_small_maps_of_cosmoflow_are_gathered(build, options, last, gathered):
    """The layout gathers a map that is smaller than the mesh, as in the paper at 128 over 4, or not worth a halo.

    The dense part is data-parallel. With fewer examples than processors it is split by its filters.
    """
    layout = lay_out(build, "depth:4", **options)
    assert names(layout) == sorted([*depths(*numbered("conv", last), *numbered("pool", 4)), *gathered])
    assert last == 4 or layout.split("conv5/depth", 4) == (1, 1, 1, 1)


def test_cosmoflow_over_a_batch_and_a_depth():
    shares = {"batch": [2, 2, 1, 3], "depth": [2, 1, 1, 1, 1, 1, 1, 1]}
    layout = lay_out(make_cosmoflow(512), "batch:4;depth:8", shares, least_values=512)
    owners = [*numbered("conv", 7), *numbered("pool", 7), *numbered("dense", 3)]
    assert names(layout, "batch") == sorted(["batch", *(f"{owner}/batch" for owner in owners)])
    gathered = ["conv7/filters", "pool7/channels", "dense1/inputs"]
    assert names(layout, "depth") == sorted([*depths(*numbered("conv", 6), *numbered("pool", 5)), *gathered])
    assert layout.split("batch", 8) == (2, 2, 1, 3)
    assert "conv5/depth" in names(lay_out(make_cosmoflow(128, batch=2), "depth:4", least_values=1))


def test_a_part_smaller_than_the_halo_is_not_split():
    def wide(feed):
        return {"y": conv(feed("x", dims("b:1 h:40 w:9 c:2")), 3, "a", size=5)}

    assert names(lay_out(wide, "x:2", {"x": [95, 5]})) == ["a/h", "h"]
    with pytest.raises(ValueError, match="'a/h' shrinks to 40 units, .* 2 processors .* a halo of 2"):
        lay_out(wide, "x:2", {"x": [97, 3]})


def test_unet_is_split_on_the_way_up_as_on_the_way_down():
    def build(feed):
        return {"y": MODELS["unet3d"].build(feed("volumes", volume_dims((1, 32, 32, 32, 1))))}

    layout = lay_out(build, "depth:8", least_values=512)
    split = {name.removesuffix("/depth") for name in names(layout)}
    assert {"depth", "down1/conv1", "down3/conv2", "pool2", "up3", "up3/conv1", "up1/conv2", "head"} <= split
    assert not {"pool3", "bottom/conv1", "bottom/conv2", "transpose3"} & split
    others = [name for name in names(layout) if not name.endswith("depth")]
    assert others == ["bottom/conv1/filters", "bottom/conv2/channels", "transpose3/filters"]


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"mesh_shape": "x:2"}, {"x": "depth"}),
        ({"mesh_shape": "x:2;y:2;z:2"}, {"x": "depth", "y": "height", "z": "width"}),
        ({"mesh_shape": "x:2;data:2;z:2"}, {"x": "depth", "data": "batch", "z": "height"}),
        ({"mesh_shape": "width:2;x:2"}, {"width": "width", "x": "depth"}),
        ({"mesh_shape": "x:2;y:2", "axis": "y"}, {"y": "depth"}),
        ({"mesh_shape": "x:2;y:2", "dims": {"x": "width", "y": "batch"}}, {"x": "width", "y": "batch"}),
        ({"mesh_shape": "data:2", "dims": {"data": "height"}}, {"data": "height"}),
    ],
)
def test_which_axis_takes_which_dimension(kwargs, expected):
    layout = lay_out(make_cosmoflow(16, filters=(2,) * 7, head=(3,)), **kwargs)
    for axis, dim in expected.items():
        assert dim in names(layout, axis)
        assert {name.rpartition("/")[2] for name in names(layout, axis)} <= {dim, "batch"}
    assert {axis for _, axis in layout.rules} == set(expected)


def test_images_under_one_name_are_split_throughout_or_not_at_all():
    def model(pools):
        def build(feed):
            x = feed("images", dims("batch:6 height:32 width:32 channels:3"))
            for _ in range(pools):
                x = mtf.layers.max_pool2d(x, ksize=(2, 2))
            return {"y": x}

        return build

    layout = lay_out(model(3), "x:2;y:2")
    assert [layout.axis_name_of(name) for name in ("height", "width")] == ["x", "y"]
    with pytest.raises(ValueError, match="'height' shrinks to 1 units, too few for the .* mesh axis 'x'"):
        lay_out(model(5), "x:2")


@pytest.mark.parametrize(
    ("name", "split", "whole"),
    [("vgg11", ("height", "pool1/height"), "pool5/height"), ("resnet18", ("height", "stage2/block1/conv1/height"), "")],
)
def test_images_are_split_as_long_as_they_are_large(name, split, whole):
    height, width, channels = MODELS[name].image_shape
    shape = dims(f"batch:6 height:{height} width:{width} channels:{channels}")
    layout = lay_out(lambda feed: {"y": MODELS[name].build(feed("images", shape))}, "x:2", least_values=256)
    assert all(layout.axis_name_of(dim) == "x" for dim in split)
    assert layout.axis_name_of(whole) is None


def conv(x, filters, name, *, size=3, strides=1, kind="conv2d"):
    """A convolution with names of its own."""
    sizes = x.shape.to_integer_list[1:]
    own = [mtf.Dimension(f"{name}/{letter}", size) for letter, size in zip("hwc", sizes)]
    x = mtf.reshape(x, [x.shape.dims[0], *own])
    return getattr(mtf.layers, kind)(
        x,
        mtf.Dimension(f"{name}/f", filters),
        filter_size=(size,) * 2,
        strides=(strides,) * 2,
        filter_initializer=tf.random_normal_initializer(stddev=0.3),
        variable_dtype=mtf.VariableDType(x.dtype, x.dtype, x.dtype),
        name=name,
    )


def flat(feed):
    """2D: kernels of 5 and 4, overlapping pools, stride 2, a transposed convolution, and the mean."""
    x = mtf.relu(conv(feed("x", dims("b:3 h:26 w:8 c:2")), 3, "a", size=5))
    x = layers.pool(x, kind="max", size=3, strides=2, padding=1)
    x = mtf.relu(conv(x, 4, "b", size=4))
    x = conv(mtf.pad(x, [0, 1], "b/h"), 3, "t", size=2, strides=2)
    x = conv(x, 3, "u", size=3, strides=2, kind="conv2d_transpose")
    x = layers.batch_norm(x, training=True, name="norm")
    x = layers.pool(x, kind="avg", size=2, strides=1, padding="SAME")
    return {"y": x, "mean": mtf.reduce_mean(x, output_shape=[x.shape.dims[0], x.shape.dims[-1]])}


def skipped(feed):
    """A skip that is added, and one that is concatenated, under names of their own."""
    x = conv(feed("x", dims("b:3 h:9 w:7 c:2")), 3, "a")
    y = conv(mtf.relu(x), 3, "b", size=2)
    total = mtf.reshape(x, y.shape) + y
    both = mtf.concat([total, mtf.reshape(x, y.shape)], "b/f")
    return {"y": conv(mtf.tanh(both), 2, "c", size=5)}


def named_once(feed):
    """One name throughout, into a dense layer."""
    x = feed("x", dims("b:3 h:12 w:4 c:2"))
    for name, filters in (("a", 3), ("b", 4)):
        dtype = mtf.VariableDType(x.dtype, x.dtype, x.dtype)
        x = mtf.rename_dimension(x, x.shape.dims[-1].name, f"{name}/c")
        x = mtf.relu(mtf.layers.conv2d(x, mtf.Dimension(f"{name}/f", filters), variable_dtype=dtype, name=name))
    x = mtf.layers.avg_pool2d(x)
    dtype = mtf.VariableDType(x.dtype, x.dtype, x.dtype)
    return {"y": mtf.layers.dense(x, dims("o:5"), reduced_dims=x.shape.dims[1:], variable_dtype=dtype, name="d")}


ON_MESHES = [
    (flat, [("x:2", {"x": [5, 3]})]),
    (flat, [("x:3;y:2", {"x": [5, 2, 3]}), ("batch:3;h:2", {"h": [1, 2]})]),
    (skipped, [("x:3", {"x": [2, 1, 1]}), ("x:2;y:3", {"x": [1, 2]}), ("x:4", {})]),
    (named_once, [("x:3;y:2", {"x": [5, 2, 3]}), ("data:2;x:3", {"data": [2, 1]})]),
]


@parametrize(("build", "meshes"), ON_MESHES, first=ON_MESHES[:1])
def test_hand_made_graphs_are_as_on_one_device(build, meshes):
    layouts = [lay_out(build, *mesh) for mesh in meshes]
    assert all(layout.rules for layout in layouts)
    oracle.check(build, *layouts, **oracle.ONCE)


def test_wrong_arguments():
    build = make_cosmoflow(16, filters=(2,) * 7, head=(3,))
    for mesh_shape, kwargs, message in [
        ("x:2", {"shares": {"x": [1, 2, 3]}}, "3 numbers for 2 processors"),
        ("x:2", {"axis": "y"}, "does not have"),
        ("", {}, "no axis"),
        ("x:17", {}, "'depth' of size 16 cannot be split over the 17 processors"),
        ("batch:9;x:2", {}, "'batch' of size 8 cannot be split over the 9 processors"),
        (
            "x:2;y:2;z:2;v:2",
            {},
            "dimensions depth, height, width of the images need one to 3 mesh axes, but the mesh has x, y, z, v",
        ),
        ("batch:2", {}, "but the mesh has none for them"),
        ("x:2", {"dims": {"y": "depth"}}, "dims map mesh axis 'y' to dimension 'depth'; the axes are x"),
        ("x:2", {"dims": {"x": "channels"}}, "the dimensions that can be split are batch, depth, height, width"),
        ("x:2;y:2", {"dims": {"x": "depth", "y": "depth"}}, "give each mesh axis another dimension"),
    ]:
        with pytest.raises(ValueError, match=message):
            lay_out(build, mesh_shape, **kwargs)


def test_a_graph_without_a_window():
    with pytest.raises(ValueError, match="convolves or pools no tensor"):
        lay_out(lambda feed: {"y": feed("x", dims("b:5 c:6")) * 2.0}, "x:2")

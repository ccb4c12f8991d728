"""The spatial recipe: what it splits of the models and of hand-made graphs, and that it changes no result."""

import pytest
import zeros
from tiers import parametrize
from zeros import dims, names

from mtf_hetero import mtf
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
        x = mtf.reshape(feed("x", dims("b:1 h:40 w:9 c:2")), dims("b:1 a/h:40 a/w:9 a/c:2"))
        return {"y": mtf.layers.conv2d(x, mtf.Dimension("a/f", 3), filter_size=(5, 5), name="a")}

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


LARGE = [  # a network, what is split of it, and what is not
    ("vgg11", ("height", "pool1/height"), "pool5/height"),
    ("resnet18", ("height", "stage2/block1/conv1/height"), ""),
]


@parametrize(("name", "split", "whole"), LARGE, first=LARGE[:1])
def test_images_are_split_as_long_as_they_are_large(name, split, whole):
    height, width, channels = MODELS[name].image_shape
    shape = dims(f"batch:6 height:{height} width:{width} channels:{channels}")
    layout = lay_out(lambda feed: {"y": MODELS[name].build(feed("images", shape))}, "x:2", least_values=256)
    assert all(layout.axis_name_of(dim) == "x" for dim in split)
    assert layout.axis_name_of(whole) is None


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

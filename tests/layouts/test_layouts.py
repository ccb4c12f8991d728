"""The recipes on the models and on hand-made graphs: what they split, and that no tensor forbids it."""

import oracle
import pytest
import zeros
from tiers import parametrize
from zeros import Zeros, dims, names

from mtf_hetero import mtf, tf
from mtf_hetero.graph.names import renamed
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.layouts.rules import Rules
from mtf_hetero.models import MODELS

SHARES = {"all": [70, 25, 5]}
CIFAR_RULES = [
    *("conv1/filters", "conv2/channels", "conv3/filters", "conv4/channels"),
    *("conv5/filters", "conv6/channels", "conv7/filters", "conv8/channels"),
    *("dense1/units", "dense1/outputs", "dense2/inputs"),
]
MNIST_RULES = ["conv1/filters", "conv2/channels", "conv3/filters", "pool1/channels", "dense1/inputs"]
LENET_RULES = ["conv1/filters", "pool1/channels", "conv2/channels", "dense1/units", "dense1/outputs", "dense2/inputs"]


def lay_out(build, recipe="filters", *, mesh_shape="all:3", shares=SHARES, **options):
    return zeros.lay_out(build, recipe, mesh_shape=mesh_shape, shares=shares, **options)


def model(name):
    def build(feed):
        shape = [
            mtf.Dimension(n, s)
            for n, s in zip(("batch", "height", "width", "channels"), (20, *MODELS[name].image_shape))
        ]
        return {"logits": MODELS[name].build(feed("images", shape))}

    return build


def conv(x, filters, name, rename=True):
    if rename:
        x = mtf.rename_dimension(x, x.shape.dims[-1].name, f"{name}/channels")
    layer = mtf.layers.conv2d if x.shape.ndims == 4 else mtf.layers.conv3d
    sizes = (3,) * (x.shape.ndims - 2)
    initializer = tf.random_normal_initializer()
    out = mtf.Dimension(f"{name}/filters", filters) if isinstance(filters, int) else filters
    dtype = mtf.VariableDType(x.dtype, x.dtype, x.dtype)
    return layer(x, out, filter_size=sizes, filter_initializer=initializer, variable_dtype=dtype, name=name)


def dense(x, out, reduced, name, activation=None):
    dtype = mtf.VariableDType(x.dtype, x.dtype, x.dtype)
    return mtf.layers.dense(x, dims(out), reduced_dims=reduced, activation=activation, variable_dtype=dtype, name=name)


def residual(feed):
    """A stem, and two blocks x + conv(relu(conv(x)))."""
    x = conv(feed("x", dims("b:5 h:4 w:4 c:3")), 8, "stem")
    for number in (1, 2):
        y = conv(mtf.relu(conv(x, 6, f"a{number}")), 8, f"b{number}")
        x = mtf.relu(x + mtf.rename_dimension(y, f"b{number}/filters", "stem/filters"))
    return {"y": dense(x, "classes:3", x.shape.dims[1:], "head")}


def bottleneck(feed):
    """A block of three convolutions, so that its own output and its shortcut lie differently."""
    x = conv(feed("x", dims("b:5 h:4 w:4 c:3")), 8, "stem")
    y = conv(mtf.relu(conv(mtf.relu(conv(x, 6, "a")), 6, "b")), 8, "c")
    x = mtf.relu(x + mtf.rename_dimension(y, "c/filters", "stem/filters"))
    return {"y": conv(x, 7, "last")}


def projection(feed):
    """A shortcut with a convolution of its own, built and renamed before the other branch."""
    x = conv(feed("x", dims("b:5 h:4 w:4 c:3")), 8, "stem")
    shortcut = mtf.rename_dimension(conv(x, 6, "p"), "p/filters", "sum")
    y = conv(mtf.relu(conv(x, 7, "a")), 6, "b")
    return {"y": conv(mtf.relu(shortcut + mtf.rename_dimension(y, "b/filters", "sum")), 7, "next")}


def perceptron(feed):
    """Dense layers that share two names, without a rename."""
    x = feed("x", dims("b:5 io:8"))
    for number in (1, 2):
        x = dense(x, "hidden:9", dims("io:8"), f"in{number}", mtf.relu)
        x = dense(x, "io:8", dims("hidden:9"), f"out{number}")
    return {"y": x}


def volume(feed):
    x = mtf.relu(conv(feed("x", dims("b:3 d:4 h:4 w:4 c:2")), 6, "first"))
    x = conv(mtf.layers.avg_pool3d(x), 5, "second")
    return {"y": mtf.reduce_mean(x, output_shape=mtf.Shape([x.shape.dims[0], x.shape.dims[-1]]))}


def concatenated(feed):
    """A skip that is concatenated along the channels."""
    x = conv(feed("x", dims("b:5 h:4 w:4 c:3")), 6, "first")
    y = conv(mtf.relu(x), 5, "second")
    y = mtf.rename_dimension(y, "second/filters", "first/filters")
    return {"y": conv(mtf.concat([x, y], "first/filters"), 7, "last")}


def flattened(feed):
    x = mtf.layers.max_pool2d(conv(feed("x", dims("b:5 h:4 w:4 c:3")), 6, "first"))
    x = mtf.reshape(x, dims("b:5 features:24"))
    x = dense(x, "units:7", dims("features:24"), "dense", mtf.relu)
    return {"y": dense(x, "out:9", dims("units:7"), "last")}


def pooled_to_one(feed):
    """Flattening where only the channels are left keeps their split."""
    x = mtf.layers.max_pool2d(conv(feed("x", dims("b:5 h:2 w:2 c:3")), 6, "first"))
    x = mtf.reshape(x, dims("b:5 features:6"))
    return {"y": dense(x, "out:7", dims("features:6"), "dense")}


def one_name_in_and_out(feed):
    """Every convolution goes from "io" to "filters", which is renamed back."""
    x = feed("x", dims("b:5 h:4 w:4 io:6"))
    for number in range(3):
        x = conv(x, mtf.Dimension("filters", 6), f"conv{number}", rename=False)
        x = mtf.rename_dimension(x, "filters", "io")
    return {"y": x}


def batch_renamed(feed):
    x = mtf.rename_dimension(feed("x", dims("b:5 c:6")), "b", "dense/batch")
    return {"y": dense(x, "out:7", dims("c:6"), "dense") + feed("c", dims("out:7"))}


HAND_MADE = [
    (residual, ["a1/channels", "a2/channels", "b1/filters", "b2/filters", "stem/filters"]),
    (bottleneck, ["a/channels", "b/filters", "c/channels", "last/channels", "stem/filters"]),
    (projection, ["a/channels", "b/filters", "next/channels", "p/channels", "stem/filters", "sum"]),
    (perceptron, ["hidden"]),
    (volume, ["first/filters", "second/channels"]),
    (concatenated, ["first/channels", "last/filters", "second/filters"]),
    (flattened, ["first/filters", "units"]),
    (pooled_to_one, ["features", "first/filters"]),
    (one_name_in_and_out, ["filters"]),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("name", "rules"), [("paper_cifar", CIFAR_RULES), ("paper_mnist", MNIST_RULES), ("lenet", LENET_RULES)]
)
def test_convolutions_and_dense_layers_alternate(name, rules, training):
    layout = lay_out(model(name), training=training)
    assert names(layout) == sorted(rules)
    assert {axis for _, axis in layout.rules} == {"all"}


def test_sizes_of_the_paper():
    layout = lay_out(model("paper_cifar"))
    expected = {60: (42, 15, 3), 120: (84, 30, 6), 240: (168, 60, 12), 480: (336, 120, 24)}
    for conv_, (filters, sizes) in zip((1, 3, 5, 7), expected.items()):
        assert layout.split(f"conv{conv_}/filters", filters) == sizes
        assert layout.split(f"conv{conv_ + 1}/channels", filters) == sizes


def test_even_ignores_the_shares():
    layout = lay_out(model("paper_cifar"), "even")
    assert names(layout) == sorted(CIFAR_RULES)
    assert layout.split("conv1/filters", 60) == (20, 20, 20)


@parametrize("name", ["lenet", "resnet18", "vgg11"], first=["lenet"])
def test_batch_splits_the_batch_alone(name):
    layout = lay_out(model(name), "batch")
    assert {name.rpartition("/")[2] for name in names(layout)} == {"batch"}
    assert layout.split("batch", 200) == (140, 50, 10)


def test_batch_follows_a_rename_and_passes_over_constants():
    assert names(lay_out(batch_renamed, "batch")) == ["b", "dense/batch"]


def test_batch_is_found_by_its_name_before_a_larger_tensor():
    def path_and_start(feed):
        path, start = feed("path", dims("time:9 batch:7 h:4")), feed("start", dims("batch:7 h:4"))
        return {"y": start * mtf.reduce_sum(path, reduced_dim=path.shape.dims[0])}

    assert names(lay_out(path_and_start, "batch", training=False)) == ["batch"]


def test_variables_may_have_a_batch():
    def stateful(feed):
        x = feed("x", dims("batch:7 h:4"))
        return {"y": x + mtf.get_variable(x.mesh, "state", x.shape, dtype=x.dtype)}

    layout = lay_out(stateful, "batch", training=False)
    assert names(layout) == ["batch"]
    assert layout.split("batch", 7) == (4, 2, 1)


@pytest.mark.parametrize(("build", "rules"), HAND_MADE)
def test_hand_made_graphs(build, rules):
    assert names(lay_out(build, shares={"all": [5, 3, 2]})) == rules
    assert names(lay_out(build, training=False)) == rules


@pytest.mark.parametrize("build", [projection, perceptron, volume, concatenated])
def test_hand_made_graphs_are_as_on_one_device(build):
    """With a shortcut of its own, with names that layers share, of volumes, and with a skip along what is split."""
    dtype = tf.float32 if build is volume else tf.float64  # avg_pool3d has no float64 kernel
    oracle.check(build, lay_out(build, shares={"all": [5, 3, 2]}), dtype=dtype, **oracle.ONCE)


def test_the_axis_is_the_first_or_the_one_that_is_named():
    shares = {"rows": [2, 1], "cols": [3, 1]}
    build = model("lenet")
    first = lay_out(build, mesh_shape="rows:2;cols:2", shares=shares)
    named = lay_out(build, mesh_shape="rows:2;cols:2", shares=shares, axis="cols")
    assert {axis for _, axis in first.rules} == {"rows"}
    assert {axis for _, axis in named.rules} == {"cols"}
    assert named.split("conv1/filters", 6) == (5, 1)


def test_the_two_sides_of_a_rename_are_split_alike():
    """So that it costs nothing: what R takes is what P has."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        model("paper_cifar")(Zeros(graph))
        layout = LAYOUTS["filters"](graph, mesh_shape="all:3", shares=SHARES)
        for old, new in renamed(graph.operations):
            assert (layout.axis_of(old) is None) == (layout.axis_of(new) is None), (old, new)


def small_first(feed):
    """A first convolution of two filters, and others that are large enough."""
    x = conv(feed("x", dims("b:5 h:4 w:4 c:3")), mtf.Dimension("a/filters", 2), "a")
    x = conv(x, mtf.Dimension("d/filters", 6), "d")
    return {"y": conv(x, mtf.Dimension("e/filters", 7), "e")}


def small_between(feed):
    x = conv(feed("x", dims("b:5 h:4 w:4 c:3")), mtf.Dimension("a/filters", 6), "a")
    x = conv(conv(x, mtf.Dimension("d/filters", 5), "d"), mtf.Dimension("e/filters", 2), "e")
    return {"y": conv(x, mtf.Dimension("f/filters", 8), "f")}


def small_branch(feed):
    x = feed("x", dims("b:5 h:4 w:4 c:3"))
    left, right = conv(x, mtf.Dimension("a/filters", 1), "a"), conv(x, mtf.Dimension("d/filters", 7), "d")
    x = mtf.concat([mtf.rename_dimension(y, y.shape.dims[-1].name, "joined") for y in (left, right)], "joined")
    return {"y": conv(x, mtf.Dimension("e/filters", 9), "e")}


def small_volume(feed):
    x = conv(feed("x", dims("b:2 d:3 h:4 w:4 c:1")), mtf.Dimension("a/filters", 2), "a")
    return {"y": conv(conv(x, mtf.Dimension("d/filters", 4), "d"), mtf.Dimension("e/filters", 3), "e")}


@pytest.mark.parametrize(
    ("build", "whole", "rules"),
    [
        (small_first, ["a/filters"], ["d/filters", "e/channels"]),
        (small_between, ["e/filters"], ["a/filters", "d/channels", "f/filters"]),
        (small_branch, ["a/filters"], ["d/filters", "e/filters"]),
        (small_volume, ["a/filters"], ["d/filters", "e/channels"]),
    ],
)
def test_a_convolution_of_few_filters_stays_whole(build, whole, rules, caplog):
    for recipe in ("filters", "even"):
        caplog.clear()
        with caplog.at_level("WARNING", "tensorflow"):
            layout = lay_out(build, recipe)
        assert names(layout) == rules
        said = [r.getMessage() for r in caplog.records if "is not split over the 3 processors" in r.getMessage()]
        assert [line.split("'")[1] for line in said] == whole
    if build is small_branch:
        oracle.check(build, layout, **oracle.ONCE)


def test_more_processors_than_filters():
    layout = lay_out(model("lenet"), mesh_shape="all:7", shares=None)
    assert "conv1/filters" not in names(layout) and {"conv2/filters", "dense1/inputs"} <= set(names(layout))
    with pytest.raises(ValueError, match="no layer can be split over the 600 processors of mesh axis 'all'; use fewer"):
        lay_out(model("lenet"), mesh_shape="all:600", shares=None)
    layout = lay_out(model("lenet"), "batch", mesh_shape="all:21", shares=None)
    assert layout.axis_of(mtf.Dimension("batch", 20)) is None  # replicated


@pytest.mark.parametrize("recipe", LAYOUTS)
def test_wrong_arguments(recipe):
    with pytest.raises(ValueError, match="2 numbers for 3 processors"):
        lay_out(model("lenet"), recipe, shares={"all": [1, 2]})
    with pytest.raises(ValueError, match="does not have"):
        lay_out(model("lenet"), recipe, axis="rows")
    with pytest.raises(ValueError, match="no axis"):
        lay_out(model("lenet"), recipe, mesh_shape="", shares=None)


def test_graphs_without_what_a_recipe_needs():
    def nothing(feed):
        return {"y": feed("x", dims("b:5 c:6")) * 2.0}

    with pytest.raises(ValueError, match="no convolution and no dense layer"):
        lay_out(nothing, training=False)

    def no_batch(feed):
        x = feed("x", dims("c:6"))
        return {"y": dense(x, "out:7", dims("c:6"), "dense")}

    with pytest.raises(ValueError, match="has no batch"):
        lay_out(no_batch, "batch", training=False)


def test_rules_know_what_goes_together():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        flattened(Zeros(graph))
        rules = Rules(graph, "all:3", None, None)
        assert rules.allow(["units"])
        assert not rules.allow(["h"])  # a convolution needs it whole
        assert not rules.allow(["classes", "h"])
        rules.add(["units"])
        assert not rules.allow(["features"])  # dense/kernel has both
        assert rules.allow(["first/filters", "units"])

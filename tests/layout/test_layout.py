"""Layout: its parsers, its sizes, and slices that tile the tensor."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtf_hetero import Layout, mtf, split_by_share
from mtf_hetero.layout import UnevenShapeError
from mtf_hetero.layout.convert import convert_to_mesh_shape, convert_to_rules

PAPER = Layout("all:3", "filters:all", shares={"all": [70, 25, 5]})


def make_shape(text):
    return mtf.convert_to_shape(text)


@st.composite
def layouts_and_shapes(draw):
    """A layout on one to three axes, and a tensor that it can hold."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axes = [f"axis{i}" for i in range(len(counts))]
    weights = st.integers(1, 50) | st.floats(0.01, 100)
    shares = {
        axis: draw(st.lists(weights, min_size=n, max_size=n))
        for axis, n in zip(axes, counts, strict=True)
        if draw(st.booleans())
    }
    split_axes = draw(st.lists(st.sampled_from(axes), unique=True))
    rules = [(f"dim/{axis}", axis) for axis in split_axes]
    sizes, dims = {}, [mtf.Dimension("whole", draw(st.integers(1, 3)))]
    for dim, axis in rules:
        count = counts[axes.index(axis)]
        if draw(st.booleans()):
            sizes[dim] = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any))
        exact, least = sum(sizes.get(dim, [count])), sum(size > 0 for size in sizes.get(dim, [1] * count))
        dims.append(mtf.Dimension(dim, draw(st.just(exact) | st.integers(least, 13))))
    return Layout(zip(axes, counts, strict=True), rules, shares, sizes), mtf.Shape(draw(st.permutations(dims)))


class TestParsing:
    @pytest.mark.parametrize(
        "mesh_shape",
        [
            "rows:2;cols:3",
            "rows:2,cols:3",
            "rows:2.cols:3",
            " rows:2  cols:3 ",
            [("rows", 2), ("cols", 3)],
            mtf.Shape([mtf.Dimension("rows", 2), mtf.Dimension("cols", 3)]),
        ],
    )
    def test_mesh_shape(self, mesh_shape):
        assert convert_to_mesh_shape(mesh_shape) == (("rows", 2), ("cols", 3))
        layout = Layout(mesh_shape, "")
        assert layout.mesh_text == "rows:2;cols:3"
        assert layout.size == 6
        assert convert_to_mesh_shape(layout.mesh_text) == layout.mesh_shape

    @pytest.mark.parametrize(
        "rules",
        [
            "filters:cols;batch:rows",
            "batch:rows, filters:cols",
            {"filters": "cols", "batch": "rows"},
            [("filters", "cols"), ("batch", "rows"), ("batch", "rows")],
            mtf.LayoutRules([("filters", "cols"), ("batch", "rows")]),
        ],
    )
    def test_rules(self, rules):
        assert convert_to_rules(rules) == (("batch", "rows"), ("filters", "cols"))

    def test_agrees_with_mtf(self):
        text = "a/b:x;c:y,d:x e:z"
        assert convert_to_rules(mtf.convert_to_layout_rules(text)) == convert_to_rules(text)
        assert convert_to_mesh_shape(mtf.convert_to_shape("x:2;y:3")) == convert_to_mesh_shape("x:2;y:3")

    def test_equal_however_written(self):
        a = Layout("all:3", "b:all;a:all", {"all": [70, 25, 5]}, {"a": [1, 2, 3]})
        b = Layout([("all", 3)], {"a": "all", "b": "all"}, [("all", (70, 25, 5))], {"a": (1, 2, 3)})
        assert a == b
        assert hash(a) == hash(b)
        assert a == dataclasses.replace(b)

    @pytest.mark.parametrize(
        ("mesh_shape", "rules", "message"),
        [
            ("all", "", "mesh shape 'all': 'all' is not a pair; write name:value pairs"),
            ("all:", "", "mesh shape 'all:': 'all:' is not a pair; write"),
            ("a:1:2", "", "mesh shape 'a:1:2': 'a:1:2' is not a pair; write"),
            ("all:three", "", "mesh shape 'all:three': the size of axis 'all' must be a whole number, got 'three'"),
            ("all:-3", "", "the size of axis 'all' must be a whole number, got '-3'"),
            ("all:0", "", "mesh axis 'all' has 0 processors; it needs at least one"),
            ([("all", -1)], "", "mesh axis 'all' has -1 processors; it needs at least one"),
            ("a:2;a:3", "", "names an axis twice; give each axis a name of its own"),
            ("all:3", "filters", "layout 'filters': 'filters' is not a pair; write"),
        ],
    )
    def test_errors(self, mesh_shape, rules, message):
        with pytest.raises(ValueError, match=message) as caught:
            Layout(mesh_shape, rules)
        assert "\n" not in str(caught.value)


class TestSplit:
    def test_shares(self):
        assert PAPER.split("filters", 60) == (42, 15, 3)
        assert PAPER.bounds("filters", 60) == (0, 42, 57, 60)
        assert Layout("all:3", "filters:all").split("filters", 64) == (22, 21, 21)

    def test_whole(self):
        assert PAPER.split("batch", 7) == (7,)
        assert PAPER.bounds("batch", 7) == (0, 7)
        assert PAPER.axis_of("batch") is None
        assert PAPER.axis_name_of("batch") is None

    def test_sizes_win_over_shares(self):
        layout = Layout("all:3", "filters:all;units:all", {"all": [70, 25, 5]}, {"filters": [10, 20, 30]})
        assert layout.split("filters", 60) == (10, 20, 30)
        assert layout.split("filters", 30) == (5, 10, 15)
        assert layout.split("units", 60) == (42, 15, 3)

    def test_two_axes(self):
        layout = Layout("rows:2;cols:3", "batch:rows;filters:cols", {"rows": [3, 1], "cols": [2, 1, 1]})
        shape = make_shape("batch:8;height:5;filters:12")
        assert (layout.axis_of("batch"), layout.axis_of("filters")) == (0, 1)
        assert (layout.axis_name_of("batch"), layout.axis_name_of("filters")) == ("rows", "cols")
        assert [layout.slice_shape(shape, p) for p in range(6)] == [
            *([6, 5, 6], [6, 5, 3], [6, 5, 3]),
            *([2, 5, 6], [2, 5, 3], [2, 5, 3]),
        ]
        assert [layout.slice_begin(shape, p) for p in range(6)] == [
            *([0, 0, 0], [0, 0, 6], [0, 0, 9]),
            *([6, 0, 0], [6, 0, 6], [6, 0, 9]),
        ]

    def test_rule_for_an_absent_axis_is_without_effect(self):
        layout = Layout("all:3", "filters:all;batch:rows")
        assert layout.axis_of("batch") is None
        assert layout.split("batch", 2) == (2,)

    def test_what_is_too_small_is_kept_whole(self):
        small, large = (mtf.Dimension("filters", size) for size in (2, 3))
        assert PAPER.split("filters", 2) == (2,)
        assert PAPER.axis_of(small) is None and PAPER.axis_name_of(small) is None and PAPER.is_kept_whole(small)
        assert PAPER.axis_of(large) == 0 and not PAPER.is_kept_whole(large)
        assert not PAPER.is_kept_whole(mtf.Dimension("batch", 2))
        assert [PAPER.slice_shape([small, large], pnum) for pnum in range(3)] == [[2, 1]] * 3
        PAPER.check([small, large])  # one of them is split

    def test_sizes_of_zero(self):
        layout = Layout("all:4", "filters:all", {"all": [1, 2, 3, 4]}, {"filters": [4, 0, 2, 0]})
        assert layout.split("filters", 6) == (4, 0, 2, 0)
        assert layout.bounds("filters", 6) == (0, 4, 4, 6, 6)
        assert layout.split("filters", 3) == (2, 0, 1, 0)
        assert layout.split("filters", 2) == (1, 0, 1, 0)
        assert layout.axis_of(mtf.Dimension("filters", 2)) == 0
        assert layout.split("filters", 1) == (1,) and layout.is_kept_whole(mtf.Dimension("filters", 1))
        shape = make_shape("batch:3;filters:6")
        assert [layout.slice_shape(shape, pnum) for pnum in range(4)] == [[3, 4], [3, 0], [3, 2], [3, 0]]
        assert layout.weights("all") == (1, 2, 3, 4)

    def test_one_unit_for_one_of_many(self):
        layout = Layout("all:3", "filters:all", sizes={"filters": [0, 1, 0]})
        assert [layout.split("filters", size) for size in (1, 2, 7)] == [(0, 1, 0), (0, 2, 0), (0, 7, 0)]
        assert layout.weights("all") == (0, 1, 0)


class TestSlices:
    @settings(derandomize=True, deadline=None)
    @given(layouts_and_shapes())
    @example((Layout("", ""), mtf.Shape([])))
    def test_slices_tile_the_tensor_in_the_sizes_of_the_split(self, drawn):
        layout, shape = drawn
        times = np.zeros(shape.to_integer_list, int)
        for pnum in range(layout.size):
            begin, size = layout.slice_begin(shape, pnum), layout.slice_shape(shape, pnum)
            exact = dict(layout.sizes)
            for dim, part in zip(shape, size, strict=True):
                assert part > 0 or 0 in exact.get(dim.name, [1])
            times[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))] += 1
        split_axes = {layout.axis_of(dim.name) for dim in shape} - {None}
        replicas = math.prod(n for axis, (_, n) in enumerate(layout.mesh_shape) if axis not in split_axes)
        assert (times == replicas).all()
        self.check_bounds(layout, shape)
        self.check_shape_without_a_processor(layout, shape)

    def check_bounds(self, layout, shape):
        for dim in shape:
            sizes, bounds = layout.split(dim.name, dim.size), layout.bounds(dim.name, dim.size)
            assert np.diff(bounds).tolist() == list(sizes)
            assert (bounds[0], bounds[-1]) == (0, dim.size)
            weights = dict(layout.sizes).get(dim.name) or dict(layout.shares).get(layout.axis_name_of(dim.name))
            if weights:
                assert [size > 0 for size in sizes] == [weight > 0 for weight in weights]
                positive = [weight for weight in weights if weight]
                assert tuple(size for size in sizes if size) == split_by_share(dim.size, positive)
            else:
                assert max(sizes) - min(sizes) <= 1

    def check_shape_without_a_processor(self, layout, shape):
        shapes = {tuple(layout.slice_shape(shape, pnum)) for pnum in range(layout.size)}
        if len(shapes) == 1:
            assert (tuple(layout.slice_shape(shape)),) == (*shapes,)
        else:
            with pytest.raises(UnevenShapeError, match="is split unevenly over mesh axis .* give the number of a proc"):
                layout.slice_shape(shape)

    def test_uneven_message(self):
        message = (
            r"dimension 'filters' of size 60 is split unevenly over mesh axis 'all', into \(42, 15, 3\); "
            "give the number of a processor"
        )
        with pytest.raises(UnevenShapeError, match=message):
            PAPER.slice_shape(make_shape("batch:4;filters:60"))

    @pytest.mark.parametrize("mesh_shape", ["", "a:1", "a:5", "a:2;b:3", "a:3;b:1;c:2"])
    def test_coordinates(self, mesh_shape):
        layout = Layout(mesh_shape, "")
        coordinates = [layout.coordinates(pnum) for pnum in range(layout.size)]
        assert coordinates == list(itertools.product(*(range(n) for _, n in layout.mesh_shape)))
        assert [layout.pnum(c) for c in coordinates] == list(range(layout.size))
        mesh = mtf.Shape(layout.mesh_shape)
        assert coordinates == [tuple(mtf.pnum_to_processor_coordinates(mesh, p)) for p in range(layout.size)]

    def test_two_dimensions_on_one_axis(self):
        layout = Layout("rows:2;all:3", "filters:all;channels:all;batch:rows")
        layout.check(make_shape("batch:4;filters:6;height:3"))
        message = (
            "a tensor has dimensions 'channels', 'filters', and the layout splits all of them over mesh axis 'all'"
        )
        with pytest.raises(ValueError, match=message):
            layout.check(make_shape("channels:6;batch:4;filters:6"))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"rows": [1, 2]}, "shares name mesh axis 'rows', which the mesh all:3 does not have"),
        ({"al": [1, 2, 3]}, "shares name mesh axis 'al', .*; its axes are all; the nearest is 'all'$"),
        ({"all": [1]}, r"are \[1\]: 1 number for 3 processors; give one per processor"),
        ({"all": [1, 2]}, r"shares of mesh axis 'all' are \[1, 2\]: 2 numbers for 3 processors; give one"),
        ({"all": [50, 50, 0]}, r"shares of mesh axis 'all' are \[50, 50, 0\]: number 2 is 0, but each must"),
        ({"all": [1, 1, math.nan]}, "shares of mesh axis 'all' are .*: number 2 is nan, but each must"),
        ({"all": [2, 1, 0]}, "number 2 is 0, .*; remove a processor .*, or give the Layout sizes with a z"),
    ],
)
def test_wrong_shares(shares, message):
    check_refused("f:all", message, shares=shares)


def check_refused(rules, message, **options):
    with pytest.raises(ValueError, match=message) as caught:
        Layout("all:3", rules, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "sizes", "message"),
    [
        ("f:all", {"g": [1, 2, 3]}, "sizes name dimension 'g', which no rule splits over the mesh all:3; add a rule"),
        ("f:rows;g:all", {"f": [1, 2, 3]}, "sizes name dimension 'f', .* add a rule f:AXIS .*; the rules split g$"),
        ("hidden:all", {"hiden": [1, 2, 3]}, "rules split hidden; the nearest is 'hidden'$"),
        ("f:al", {}, "layout rule f:al names mesh axis 'al', which the mesh all:3 does not have; its axes are all"),
        ("f:all;g:alll", {}, "layout rule g:alll names mesh axis 'alll', .*; the nearest is 'all'$"),
        ("f:rows;g:cols", {}, "layout rule f:rows names mesh axis 'rows', .*; its axes are all$"),
        ("f:all", {"f": [1, 2]}, r"are \[1, 2\]: 2 numbers for the 3 processors of mesh axis"),
        ("f:all", {"f": [1, 2, 1.5]}, r"of dimension 'f' are \[1, 2, 1\.5\]; each must be zero or a positive"),
        ("f:all", {"f": [1, True, 1]}, r"of dimension 'f' are \[1, True, 1\]; each must be zero or a positive"),
        ("f:all", {"f": [1, 3, -1]}, r"of dimension 'f' are \[1, 3, -1\]; each .* at least one must be positive"),
        ("f:all", {"f": [0, 0, 0]}, r"of dimension 'f' are \[0, 0, 0\]; .* positive; use zero for a proc"),
    ],
)
def test_wrong_rules_and_sizes(rules, sizes, message):
    check_refused(rules, message, sizes=sizes)


@pytest.mark.parametrize(
    ("mesh_shape", "rules"),
    [
        ("batch:2;model:2", "ensemble:ensemble,batch:batch,d_ff:model,heads:model,vocab:model,experts:batch"),
        ("", "batch:batch"),  # one processor
        ("batch:1", "d_ff:model"),
        ("b1:2", "x:b1;y:b2"),  # an axis of another number is another axis
    ],
)
def test_rules_for_meshes_of_several_kinds(mesh_shape, rules):
    """Rules in the form of Mesh-TensorFlow's own programs."""
    layout = Layout(mesh_shape, rules)
    axes = dict(layout.mesh_shape)
    for dim, axis in layout.rules:
        assert layout.axis_name_of(dim) == (axis if axis in axes else None)


def test_dimension_on_two_axes():
    with pytest.raises(ValueError, match="split dimension 'f' over more than one axis of the mesh a:2;b:2; keep one"):
        Layout("a:2;b:2", "f:a;f:b").axis_of("f")

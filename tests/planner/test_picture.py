"""The picture of a plan: rows, bars and lanes as planned, legible letters, and PNG, SVG and PDF files."""

import dataclasses
import struct

import pytest

from mtf_hetero.layout import Layout
from mtf_hetero.planner import outline, picture
from mtf_hetero.planner.plan import LayerPlan, Plan, Span

KINDS = {"batch": "batch", "filters": "outputs", "channels": "inputs", "height": "space", "other": "other"}


def layer(name, along, sizes, sent=0):
    """A layer that is divided along one dimension of its own; none: each device does it whole."""
    seconds = tuple(1e-3 if size else 0.0 for size in sizes)
    if along is None:
        return LayerPlan(name, {}, seconds, (sent,) * len(sizes))
    dim = f"{name}/{along}"
    return LayerPlan(name, {dim: tuple(sizes)}, seconds, (sent,) * len(sizes), dim, KINDS[along])


def plan_of(layers, devices):
    """A plan whose devices compute one layer after the other, forward and back."""
    split = {name: sizes for one in layers for name, sizes in one.split.items()}
    spans = []
    for number in range(len(devices)):
        order = [(one, False) for one in layers] + [(one, True) for one in reversed(layers)]
        working = [(one, backward) for one, backward in order if one.seconds[number]]
        spans += [Span(number, one.name, i, i + 0.9, backward) for i, (one, backward) in enumerate(working)]
    return Plan(
        devices=tuple(devices),
        layout=Layout(f"all:{len(devices)}", [(name, "all") for name in split], (), split),
        seconds=2.0 * len(layers),
        alone=(devices[0], 3.0 * len(layers)),
        gap=0.0,
        layers=tuple(layers),
        memory_bytes=(1,) * len(devices),
        extents={},
        timeline=tuple(spans),
    )


THREE = plan_of(
    [
        LayerPlan("input", {}, (0.0,) * 3, (0,) * 3),
        layer("conv1", "batch", (5, 2, 1), 10),
        layer("conv2", "filters", (40, 20, 0), 20),
        layer("conv3", "channels", (30, 20, 10)),
        layer("conv4", "height", (8, 8, 8)),
        layer("odd", "other", (3, 2, 1)),
        layer("dense", None, (1, 1, 0)),
    ],
    ("gpu:0", "gpu:1", "cpu:0"),
)
ALONE = plan_of([layer("conv1", None, (1,)), layer("dense", None, (1,))], ("a device with a long name",))
DEEP = plan_of(
    [layer(f"stage/block{i}/conv", "batch" if i < 50 else "filters", (62, 27, 39)) for i in range(60)], ("a", "b", "c")
)
MIXED = plan_of([layer(f"stage/conv{i}", ("batch", "filters")[i % 2], (60, 40)) for i in range(70)], ("a", "b"))
KIND_NAMES = [*(f"V100:{i}" for i in range(32)), *(f"P100:{i}" for i in range(32))]
MANY = plan_of([layer(f"conv{i}", "batch", (3,) * 32 + (1,) * 32, 5) for i in range(5)], KIND_NAMES)
STRANGERS = plan_of([layer("conv", "batch", (1,) * 20)], [f"device{i}" for i in range(20)])
PLANS = {"three": THREE, "alone": ALONE, "deep": DEEP, "mixed": MIXED, "many": MANY, "strangers": STRANGERS}


def bars_of(row):
    """Those that are there."""
    return [bar for bar in row.bars if bar is not None]


def test_a_row_for_each_layer_that_does_something():
    shown = outline.outline(THREE)
    assert [row.name for row in shown.rows] == ["conv1", "conv2", "conv3", "conv4", "odd", "dense"]
    assert [row.kind for row in shown.rows] == ["batch", "outputs", "inputs", "space", "other", outline.WHOLE]
    assert [row.what for row in shown.rows][1:] == ["filters 60", "channels 60", "height 24", "other 6", "whole"]
    assert [row.sent_bytes for row in shown.rows] == [30, 60, 0, 0, 0, 0]


def test_bars_are_the_parts_of_the_devices():
    shown = outline.outline(THREE)
    for row, planned in zip(shown.rows, THREE.layers[1:], strict=True):
        for number, bar in enumerate(row.bars):
            if row.kind == outline.WHOLE:
                assert (bar is not None) == bool(planned.seconds[number])
                continue
            sizes = planned.split[planned.along]
            assert (bar.fractions, bar.text) == ((sizes[number] / sum(sizes),), str(sizes[number])) if bar else True
            assert (bar is None) == (sizes[number] == 0)
    assert shown.widest == 40 / 60


def test_lanes_are_the_timeline():
    shown = outline.outline(THREE)
    for number, blocks in enumerate(shown.lanes):
        spans = [span for span in THREE.timeline if span.device == number]
        found = [(shown.rows[block.row].name, block.backward, block.begin, block.end) for block in blocks]
        assert found == [(span.layer, span.backward, span.begin, span.end) for span in spans]


def test_layers_that_are_divided_alike_share_a_row_in_a_deep_network():
    first, second = outline.outline(DEEP).rows
    assert first.name == "stage/block0/conv to stage/block49/conv" and len(second.layers) == 10
    assert [bar.text for bar in bars_of(first)] == ["62", "27", "39"]
    layers = [*DEEP.layers[:-1], layer("stage/last", "filters", (124, 54, 78))]
    *_, last = outline.outline(dataclasses.replace(DEEP, layers=tuple(layers))).rows
    assert [bar.text for bar in bars_of(last)] == ["48 %", "21 %", "30 %"] and last.what == "filters"
    assert len(outline.outline(MIXED).rows) == 70


def test_many_devices_share_columns():
    shown = outline.outline(MANY)
    assert [column.name for column in shown.columns] == ["V100 x 32", "P100 x 32"]
    assert [len(bar.fractions) for bar in bars_of(shown.rows[0])] == [32, 32]
    assert [bar.length for bar in bars_of(shown.rows[0])] == pytest.approx([0.75, 0.25])
    assert len(shown.lanes) == 2 and len(shown.lanes[0]) == 10
    columns = outline.outline(STRANGERS).columns
    assert len(columns) <= outline.MOST_COLUMNS and columns[0].name == "device0 to device2"
    assert sorted(number for column in columns for number in column.devices) == list(range(20))


@pytest.mark.parametrize("name", PLANS)
def test_the_picture_is_a_png(name, tmp_path):
    path = tmp_path / "plan.png"
    picture.draw(PLANS[name], path, title="a network", offered=[*PLANS[name].devices, "cpu:7"])
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and 10_000 < len(data) < 1_000_000
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1600 and 500 < height < 4000


@pytest.mark.parametrize("name", PLANS)
def test_letters_are_legible_at_800_pixels(name):
    plan = PLANS[name]
    figure = picture._Drawing(plan, outline.outline(plan)).figure("a network", plan.devices)
    texts = [text for ax in figure.axes for text in (*ax.texts, *ax.get_xticklabels()) if text.get_text()]
    assert texts and figure.get_figwidth() == 8 and min(text.get_fontsize() for text in texts) >= 7


@pytest.mark.parametrize(("ending", "first"), [("svg", b"<?xml"), ("PDF", b"%PDF-")])
def test_the_ending_says_the_format(ending, first, tmp_path):
    paths = [tmp_path / f"{number}.{ending}" for number in range(2)]
    for path in paths:
        picture.draw(THREE, path)
    assert paths[0].read_bytes().startswith(first) and paths[0].read_bytes() == paths[1].read_bytes()
    if ending == "svg":
        assert "Split over gpu:0-1, cpu:0: 14.00 s per step" in paths[0].read_text()


def test_a_plan_from_a_file_has_no_timeline(tmp_path):
    picture.draw(THREE, tmp_path / "with.png")
    picture.draw(dataclasses.replace(THREE, timeline=()), tmp_path / "without.png")
    heights = [struct.unpack(">I", (tmp_path / name).read_bytes()[20:24])[0] for name in ("with.png", "without.png")]
    assert heights[1] < heights[0]

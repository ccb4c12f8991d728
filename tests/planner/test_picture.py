"""The picture of a plan: rows, bars and lanes as planned, legible letters, and PNG, SVG and PDF files."""

import dataclasses
import struct

import pytest
from PIL import Image
from plans import DEEP, MANY, MIXED, PLANS, STRANGERS, THREE, layer

from mtf_hetero.planner import outline, picture


def bars_in(row):
    """Return the bars of a row, without None."""
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
    assert [bar.text for bar in bars_in(first)] == ["62", "27", "39"]
    layers = [*DEEP.layers[:-1], layer("stage/last", "filters", (124, 54, 78))]
    *_, last = outline.outline(dataclasses.replace(DEEP, layers=tuple(layers))).rows
    assert [bar.text for bar in bars_in(last)] == ["48 %", "21 %", "30 %"] and last.what == "filters"
    assert len(outline.outline(MIXED).rows) == 70


def test_many_devices_share_columns():
    shown = outline.outline(MANY)
    assert [column.name for column in shown.columns] == ["V100:0-31", "P100:0-31"]
    assert [len(bar.fractions) for bar in bars_in(shown.rows[0])] == [32, 32]
    assert [bar.length for bar in bars_in(shown.rows[0])] == pytest.approx([0.75, 0.25])
    assert len(shown.lanes) == 2 and len(shown.lanes[0]) == 10
    columns = outline.outline(STRANGERS).columns
    assert len(columns) <= outline.MOST_COLUMNS and columns[0].name == "device0 to device2"
    assert sorted(number for column in columns for number in column.devices) == list(range(20))


@pytest.mark.parametrize("name", ["three", "many"])
def test_the_picture_is_a_png(name, tmp_path):
    """Each row has the colour of its kind, and each block of the backward pass a paler one."""
    path = tmp_path / "plan.png"
    picture.draw(PLANS[name], path, title="a network", offered=[*PLANS[name].devices, "cpu:7"])
    shown = outline.outline(PLANS[name])
    with Image.open(path) as image:
        counted: list = image.convert("RGB").getcolors(2**24) or []
    height = picture._DPI * picture._Drawing(PLANS[name], shown).height
    assert image.format == "PNG" and image.width == 1600 and abs(image.height - height) <= 1
    drawn = {f"#{red:02X}{green:02X}{blue:02X}" for _, (red, green, blue) in counted}
    colours = {picture._KINDS[row.kind][0] for row in shown.rows}
    assert colours | set(map(picture._pale, colours)) <= drawn


@pytest.mark.parametrize("name", PLANS)
def test_letters_are_legible_at_800_pixels(name):
    plan = PLANS[name]
    figure = picture._Drawing(plan, outline.outline(plan)).figure("a network", plan.devices)
    texts = [text for ax in figure.axes for text in (*ax.texts, *ax.get_xticklabels()) if text.get_text()]
    assert texts and figure.get_figwidth() == 8 and min(float(text.get_fontsize()) for text in texts) >= 7


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

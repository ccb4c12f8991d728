"""The stored reports follow from the stored rows, and rows that they lack have a line too."""

import json
import pathlib
import re
import shutil
import struct

import numpy as np
import pytest
from tiers import parametrize

from benchmarks import report, rows
from benchmarks.cases import CASES
from benchmarks.cases.learning import WAYS
from benchmarks.pictures import pack, unpack
from benchmarks.renderers import RENDERERS
from benchmarks.renderers.document import MOST_CONCLUSIONS
from benchmarks.renderers.writer import to_markdown
from benchmarks.rows import Writer
from mtf_hetero.layouts import LAYOUTS

FOLDER = pathlib.Path(report.__file__).parent
LONGEST_CONCLUSION = 200  # letters: two lines of a page
MOST_PIXELS = 1472  # of a picture's width: letters of 9 points are 11 pixels high where a page shows 800
SLOW = "heterogeneous"  # the traffic of its rows is counted again
QUICK = [case for case in RENDERERS if case != SLOW]


def stored_rows(case):
    return rows.read(FOLDER / "results" / f"{case}.jsonl")


@parametrize("case", RENDERERS, first=QUICK)
def test_a_stored_report_is_that_of_the_stored_rows(case):
    found = stored_rows(case)
    text = (FOLDER / "reports" / f"{case}.md").read_text(encoding="utf-8")
    assert text == to_markdown(case, RENDERERS[case](found), found), "run python -m benchmarks.report"
    check_form(case, text)


def check_form(case, text):
    """A report begins with at most five lines of conclusions and its picture, and ends with its provenance."""
    title, conclusions, picture = text.split("\n\n")[:3]
    assert title == f"# {case}: {CASES[case].summary}"
    lines = conclusions.splitlines()
    assert 2 <= len(lines) <= MOST_CONCLUSIONS + 1
    assert all(line.startswith("* ") and len(line) <= LONGEST_CONCLUSION for line in lines)
    assert re.fullmatch(r"\* Measured \d{4}-\d\d-\d\d.* cores of .*: \[provenance\]\(#provenance\)\.", lines[-1])
    assert picture.startswith("![") and picture.endswith(f"]({case}.png)")
    provenance = text.rpartition("## Provenance\n\n")[2]
    assert "load average before" in provenance and "#" not in provenance
    assert provenance.startswith("<details") and provenance.endswith("</details>\n")


@parametrize("case", QUICK, first=["cosmology", "sequences"])
def test_a_report_is_written_with_a_legible_picture(case, tmp_path):
    shutil.copy(FOLDER / "results" / f"{case}.jsonl", tmp_path)
    (path,) = report.write_reports(tmp_path, tmp_path / "reports")
    assert path.read_text(encoding="utf-8") == (FOLDER / "reports" / f"{case}.md").read_text(encoding="utf-8")
    for folder in (path.parent, FOLDER / "reports"):
        head = (folder / f"{case}.png").read_bytes()[:24]
        assert head.startswith(b"\x89PNG") and struct.unpack(">II", head[16:])[0] <= MOST_PIXELS


@pytest.mark.parametrize("case", QUICK)
def test_the_conclusions_and_tables_of_a_run(case):
    made = RENDERERS[case](stored_rows(case))
    text = made.as_text()
    assert f"* {made.conclusions[0][:40].replace('`', '')}" in text.replace("\n  ", " ")
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "|" not in text and "##" not in text


RARE = [  # case, what differs from its first stored row, and the line of the report
    ("any_step", {"refused": "x is not followed", "layouts": {}}, "{variant} was refused: x is not followed"),
    ("any_step", {"failed": "no memory", "layouts": {}}, "{variant}: no memory"),
    ("any_step", {"tolerance": 1e-30}, "{variant} differs by "),
    (
        "faults",
        {"part": "faults", "variant": "faults/disk/full", "done": "full", "skipped": "no root"},
        "| no root | - |",
    ),
    ("one_device", {"failed": "no compiler"}, "could not be measured: no compiler"),
    ("splitbrain", {"failed": "no torch"}, "could not be measured: no torch"),
    ("lowering", {"failed": "x does not divide"}, "{variant} could not be lowered: x does not divide"),
    ("keras_models", {"failed": "no memory"}, "could not be compared: no memory"),
]


@pytest.mark.parametrize(("case", "changes", "line"), RARE)
def test_rows_that_are_rare_have_a_line(case, changes, line):
    first, *others = stored_rows(case)
    found = [{**first, **changes}, *others]
    assert line.format(**found[0]) in to_markdown(case, RENDERERS[case](found), found)


def test_the_cluster_learns_by_every_layout():
    assert set(LAYOUTS) <= {way.get("layout") for way in WAYS.values()}


def test_rows_of_a_trial_are_not_shown(tmp_path):
    Writer("lowering", tmp_path, toy=True).write("filters/1/stock mtf, even", {})
    with pytest.raises(ValueError, match="which has no rows of .*; measure first"):
        report.write_reports(tmp_path, tmp_path / "reports")


def test_a_picture_in_a_row():
    picture = np.random.default_rng(0).integers(0, 256, [5, 7])
    np.testing.assert_array_equal(unpack(json.loads(json.dumps(pack(picture)))), picture)

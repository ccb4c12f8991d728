"""The papers' figures that a benchmark prints at its end."""

import re

import pytest

from benchmarks import papers
from benchmarks.cases import CASES


def test_a_command_gives_the_rows_that_it_reproduces():
    text = papers.compare("heterogeneous", "marques")
    assert text.splitlines()[:3] == [
        "The papers' figures (docs/reproduction.md):",
        "Ancestor: Marques, Falcao and Alexandre (2018), 500 and 1500 filters",
        "  paper: 3.28 times on four CPUs, 2.45 times on three GPUs",
    ]
    assert text.count("  ours, stored: ") == 1 and text.count("  why: ") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert (
        papers.compare("splitbrain", None).count("  paper: ")
        > papers.compare("splitbrain", "/8").count("  paper: ")
        > 1
    )
    assert papers.compare("one_device", None) == papers.compare("splitbrain", "vgg99") == ""


@pytest.mark.parametrize("line", re.findall(r"^.*benchmarks\.run \w+.*\|$", papers.PAGE.read_text(), re.MULTILINE))
def test_each_command_of_the_page_gives_its_row(line):
    result = re.sub(r"[*`]", "", line.strip("|").split("|")[0].strip())
    for case, only in re.findall(r"benchmarks\.run (\w+)(?:(?: --[a-np-z]\S+)* --only=([^\s`]+))?", line):
        assert case in CASES and result in papers.compare(case, only or None)

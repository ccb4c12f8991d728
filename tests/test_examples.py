"""The examples run as a user runs them, and print what their docstrings say."""

import ast
import re

import pytest
from documents import ROOT, run

EXAMPLES = {path.name: path for path in sorted((ROOT / "examples").glob("*.py"))}
SAME_EVERYWHERE = {  # of the expected output: what does not depend on the machine
    "local_cluster.py": r"batch \(\d+, \d+\):",
    "own_cnn.py": r"^(?:\w+ +\d\.\d\d)|all layouts agree",
    "transformer.py": r"heads .*?: loss \d\.\d\d",
    "two_names.py": r".*",
    "volume.py": r"slabs.*|mean loss",
}
MAX_LINES = 60
SLOW = {"local_cluster.py", "transformer.py", "volume.py"}


def expected_output(path):
    """The last indented paragraph of the docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.findall(r"(?:^    .*\n?)+", docstring, flags=re.MULTILINE)[-1]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in EXAMPLES]
)
def test_example(name, tmp_path):
    printed = run(EXAMPLES[name], tmp_path)
    for line in map(str.strip, expected_output(EXAMPLES[name]).splitlines()):
        shared = re.search(SAME_EVERYWHERE[name], line)
        if line != "..." and shared:
            assert shared[0] in printed, printed


def test_examples_are_short_and_say_how_to_run_them():
    assert set(EXAMPLES) == set(SAME_EVERYWHERE)
    for name, path in EXAMPLES.items():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MAX_LINES, name
        assert f"\n    python examples/{name}\n" in text

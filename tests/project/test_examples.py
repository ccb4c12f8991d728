"""The examples run, and print what their docstrings say."""

import ast
import contextlib
import io
import re
import runpy

import pytest
from documents import ROOT, run

from mtf_hetero import tf

EXAMPLES = {path.name: path for path in sorted((ROOT / "examples").glob("*.py"))}
SAME_EVERYWHERE = {  # of the expected output: what does not depend on the machine
    "any_step.py": r"replicated on .* FLOPs|.*error below.*",
    "keras_model.py": r"evaluated by Keras alone: 0\.9",
    "local_cluster.py": r"batch \(\d+, \d+\):",
    "own_cnn.py": r"^(?:\w+ +\d\.\d\d)|all layouts agree",
    "transformer.py": r"heads .*?: loss \d\.\d\d",
    "two_names.py": r".*",
    "volume.py": r"slabs.*|mean loss",
}
MAX_LINES = 60
SLOW = {"any_step.py", "keras_model.py", "local_cluster.py", "transformer.py", "volume.py"}


def expected_output(path):
    """The last indented paragraph of the docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.findall(r"(?:^    .*\n?)+", docstring, flags=re.MULTILINE)[-1]


def assert_printed(name, printed):
    for line in map(str.strip, expected_output(EXAMPLES[name]).splitlines()):
        shared = re.search(SAME_EVERYWHERE[name], line)
        if line != "..." and shared:
            assert shared[0] in printed, printed


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - SLOW))
def test_example_in_this_process(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tf.Graph().as_default(), contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
    assert_printed(name, printed.getvalue())


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(SLOW))
def test_example(name, tmp_path):
    assert_printed(name, run(EXAMPLES[name], tmp_path))


def test_examples_are_short_and_say_how_to_run_them():
    assert set(EXAMPLES) == set(SAME_EVERYWHERE)
    for name, path in EXAMPLES.items():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MAX_LINES, name
        assert f"\n    python examples/{name}\n" in text

"""The README's program runs when it is pasted into a file, and the README is short."""

import pytest
from documents import BLOCKS, ROOT, run

README = ROOT / "README.md"
PROGRAMS = [block for block in BLOCKS if block.page == README and block.language == "python"]
MAX_LINES = 150


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_program(block, tmp_path):
    (tmp_path / "program.py").write_text(block.text, encoding="utf-8")
    lines = run(tmp_path / "program.py", tmp_path).splitlines()
    assert lines[0] == "Epoch 1/5"
    loss, accuracy = lines[-1].strip("[]").split(", ")
    assert float(loss) < 0.3
    assert float(accuracy) > 0.9


def test_it_is_short_and_has_a_program():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    assert len(PROGRAMS) == 1

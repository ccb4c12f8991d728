"""The README's program runs when it is pasted into a file, and the README is short."""

import os
import subprocess
import sys

from documents import BLOCKS, ROOT

from mtf_hetero._support import start_up

README = ROOT / "README.md"
(PROGRAM,) = [block for block in BLOCKS if block.page == README and block.language == "python"]
MAX_LINES = 150


def test_the_program_trains_in_a_process_of_its_own(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop(start_up.LEVEL, None)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not any(map(start_up.is_chatter, done.stderr.splitlines())), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Epoch 1/5"
    loss, accuracy = lines[-1].strip("[]").split(", ")
    assert float(loss) < 0.3
    assert float(accuracy) > 0.9


def test_it_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_LINES

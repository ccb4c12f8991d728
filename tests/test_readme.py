"""The programs in the README run."""

import pathlib
import re

import pytest

from mtf_hetero import tf

README = pathlib.Path(__file__).parents[1] / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program, capsys):
    with tf.Graph().as_default():
        exec(compile(program, "README.md", "exec"), {})
    if "print" in program:
        assert "(42, 15, 3)" in capsys.readouterr().out

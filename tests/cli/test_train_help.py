"""The help of the training program: every flag once, in a group, with its default, in 80 columns. No TensorFlow."""

import dataclasses
import re

import pytest

from mtf_hetero.cli.train import help as help_lib
from mtf_hetero.cli.train.config import Config

FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def test_every_flag_is_in_one_group():
    assert sorted(name for names in help_lib.GROUPS.values() for name in names) == sorted(FIELDS)


@pytest.mark.parametrize("program", ["mtf-hetero train", "python -m mtf_hetero train", "python -m models.train"])
def test_the_help_fits_80_columns_and_says_what_comes_next(program):
    text = help_lib.text("Trains.", program)
    assert max(map(len, text.splitlines())) <= 80
    titles = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert titles == [*help_lib.GROUPS, "next", "exit codes"]
    listed = re.findall(r"^  --(\w+)", text, re.MULTILINE)
    assert sorted(listed) == sorted([*FIELDS, "config"])
    words = " ".join(text.split())
    for name, field in FIELDS.items():
        if field.default not in (None, False, ()):
            begin = words.index(f" --{name}=")
            assert f"(default: {field.default})" in words[begin : words.find(" --", begin + 1)]
    base = program.removesuffix(" train") if program.endswith(" train") else "mtf-hetero"
    assert f"\n  {base} devices " in text and f"\n  {base} evaluate --model_dir=DIR " in text

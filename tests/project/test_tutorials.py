"""Every command of the tutorials runs, in order, and prints what the page shows."""

import os
import pathlib
import re
import sys

import pytest
import readers_files
import walk
from documents import BLOCKS, ROOT, TUTORIALS, expected


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial(page, tmp_path):
    readers_files.write_photos(tmp_path)
    programs = pathlib.Path(sys.executable).parent
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{programs}:{os.environ['PATH']}"}
    blocks = [block for block in BLOCKS if block.page == page]
    results = list(walk.walk(blocks, tmp_path, environment, limit=300))
    quick = [result for result in results if re.match("python -m benchmarks.* --(list|toy)", result.command)]
    results += [walk.run(result.block, result.command, tmp_path, environment, 300) for result in quick]
    assert [(result.command, result.lines[-5:]) for result in results if result.failed] == []
    printed = {" ".join(line.split()) for result in results for line in result.lines}
    shown = [line for block in blocks if block.language == "text" for line in block.text.splitlines()]
    assert [line for line in shown if " ".join(line.split()) not in printed] == []
    for block in (block for block in blocks if block.language == "python"):
        own = [line for result in results if result.block == block for line in result.lines]
        said = own or [line for result in results for line in result.lines]  # a command runs a file with a name
        assert [text for text in expected(block) if text not in "\n".join(said)] == []


def test_each_tutorial_is_in_the_navigation_of_tutorials():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    tutorials = navigation.partition("- Tutorials:")[2].partition("- Guides:")[0]
    assert [page.name for page in TUTORIALS if page.name not in tutorials] == []

"""Every command of the tutorials runs, in order, and prints what the page shows."""

import os
import pathlib
import re
import shlex
import sys

import forked
import pytest
import readers_files
import walk
from documents import BLOCKS, ROOT, TUTORIALS, expected

PROGRAMS = pathlib.Path(sys.executable).parent
RUN_IN_A_SHELL = walk.run


def run(block, command, directory, environment, limit):
    """Run a command as the walk does; in a fork if it is a Python program and needs no shell."""
    words = shlex.split(command)
    if words[0] not in ("python", "mtf-hetero") or re.search(rf"[*|&~$]|{walk.SERVES}", command):
        return RUN_IN_A_SHELL(block, command, directory, environment, limit)
    program = words[1:] if words[0] == "python" else [str(PROGRAMS / words[0]), *words[1:]]
    done = forked.run(program, cwd=directory, env=environment, timeout=limit)
    lines = (done.stdout + done.stderr).replace("\r", "\n").splitlines()
    return walk.Result(block, command, code=done.returncode, lines=tuple(line for line in lines if line.strip()))


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial(page, tmp_path, monkeypatch):
    monkeypatch.setattr(walk, "run", run)
    readers_files.write_photos(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    blocks = [block for block in BLOCKS if block.page == page]
    results = list(walk.walk(blocks, tmp_path, environment, limit=300))
    quick = [result for result in results if re.match("python -m benchmarks.* --(list|toy)", result.command)]
    results += [run(result.block, result.command, tmp_path, environment, 300) for result in quick]
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

"""The walk runs the commands of pages, saves their files, and reports each outcome."""

import os
import re
import sys

import walk
from documents import ROOT, TOP, Block, commands

PAGE = ROOT / "docs" / "page.md"
BLOCK = Block(PAGE, 10, "sh", "# A comment\ncat a.yaml && \\\n    echo 'b | c'\nfalse\nmake train\nls no_such\n")
FILE = Block(PAGE, 1, "yaml", "# a.yaml\na: 1\n")
PROGRAM = Block(PAGE, 20, "python", "print('<x>')\n")


def walk_through(blocks, directory, limit=20):
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # Debian has python3 alone
    return list(walk.walk(blocks, directory, {**os.environ, "PATH": path}, limit))


def test_commands_are_run_one_after_the_other(tmp_path):
    results = walk_through([PROGRAM, BLOCK, FILE], tmp_path)
    assert [(result.command, result.code, result.left_out) for result in results] == [
        ("python page_20.py", 0, ""),
        ("cat a.yaml && echo 'b | c'", 0, ""),
        ("false", 1, ""),
        ("make train", None, "needs a checkout"),
        ("ls no_such", 2, ""),
    ]
    assert [result.failed for result in results] == [False, False, True, False, True]
    assert results[1].lines == ("# a.yaml", "a: 1", "b | c")
    rows = walk.report("python3.0", results).splitlines()
    assert rows[0] == "4 commands on python3.0, of which 2 failed; 1 were not run."
    assert re.fullmatch(r"\| page.md:20 \| `python page_20.py` \| 0 \| \d+\.\d \| &lt;x> \|", rows[4])
    assert re.fullmatch(r"\| .* `cat a.yaml && echo 'b \\\| c'` \| 0 \| .* \| # a.yaml<br>a: 1<br>b \\\| c \|", rows[5])
    log = [*"ab", "I0000 00:00:1795 9", *"cdefg"]
    assert walk._ends(walk.Result(BLOCK, "", code=0, lines=tuple(log)))[:5] == ["a", "b", "...", "f", "g"]
    assert walk._ends(walk.Result(BLOCK, "", code=0, lines=tuple(log)))[5:] == ["(1 lines of TensorFlow's log)"]
    assert rows[-1] == "| page.md:10 | `make train` | needs a checkout |"


def test_it_walks_through_the_pages_of_the_site():
    pages = walk.pages()
    assert pages[0] == ROOT / "README.md" and {path for path in pages if not path.exists()} == set()
    assert {block.page for block, _ in commands()} <= {*pages, *TOP}

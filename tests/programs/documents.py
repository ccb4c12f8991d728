"""The programs, commands and links of the documentation, and how a user would run them."""

import dataclasses
import os
import pathlib
import re
import shlex

import forked

ROOT = pathlib.Path(__file__).parents[2]
TOP = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md")
PAGES = (*TOP, *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code in a page.

    Args:
      page: path of the page.
      line: where the block begins.
      language: "python", "sh" or "" for none.
      text: what it says.
    """

    page: pathlib.Path
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page.name}:{self.line}"


def _find_blocks(page):
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


TUTORIALS = (*sorted((ROOT / "docs").glob("tutorial_*.md")), ROOT / "docs" / "own_data.md")  # run as one
BLOCKS = [block for page in PAGES for block in _find_blocks(page)]


def commands():
    """(block, words) of each command in the shell blocks; of mtf-hetero launch, two."""
    for block in BLOCKS:
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:2] == ["mtf-hetero", "launch"] and "--" in words:
                    yield block, ["mtf-hetero", *words[words.index("--") + 1 :]]
                    words = words[: words.index("--")]
                if words:
                    yield block, words


def expected(block):
    """The texts that a program prints, from the comments behind its calls of print."""
    return re.findall(r"^ *print\(.*\)  # (.*?)(?::.*)?$", block.text, flags=re.MULTILINE)


def prose(page):
    """A page without its blocks of code."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def run(program, directory):
    """Return a program's output, run as by `python FILE` in a directory without other files."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    done = forked.run([str(program)], cwd=directory, env=environment)
    assert done.returncode == 0, f"{program} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout

"""The programs and commands of the documentation, and how a user would run them."""

import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code in a page.

    Args:
      page: the page's file name.
      line: where the block begins.
      language: "python", "sh" or "" for none.
      text: what it says.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(language):
    """All blocks of a language."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page.name, line, match[1], match[2]))
    return [block for block in found if block.language == language]


def commands():
    """(block, words) of each command in the shell blocks; comments and continued lines are taken care of."""
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            for part in shlex.split(line, comments=True) and line.split("&&"):
                yield block, shlex.split(part, comments=True)


def run(program, directory, seconds=300):
    """What a program prints, run as a user would: by `python FILE` in a directory that has nothing else.

    Args:
      program: path of a file.
      directory: the working directory.
      seconds: after which it is ended.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TF_CONFIG", "SLURM"))}
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=directory,
        env={**kept, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{program} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout

"""The documentation's programs run and print what their comments say; its commands, links and pages exist."""

import functools
import os
import re
import subprocess
import sys

import forked
import pytest
from documents import BLOCKS, PAGES, ROOT, TUTORIALS, commands, expected, prose, run

PROGRAMS = [  # those of tutorials run with their other commands
    block
    for block in BLOCKS
    if block.page.parent == ROOT / "docs" and block.page not in TUTORIALS and block.language == "python"
]
OTHERS = {"mlflow", "wandb"}  # programs that need them run where they are installed
NOT_RUN = {
    ".venv/bin/pytest",
    ".venv/bin/python",
    "git",
    "make",
    "pip",
    "srun",
}  # checked in another way, or not of this project
SUBCOMMANDS = {"convert", "list", "prepare", "simulate"}


@pytest.mark.slow
@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_program(block, tmp_path):
    for package in OTHERS & set(re.findall(r"^import (\w+)", block.text, flags=re.MULTILINE)):
        pytest.importorskip(package)
    (tmp_path / "program.py").write_text(block.text, encoding="utf-8")
    printed = run(tmp_path / "program.py", tmp_path)
    for text in expected(block):
        assert text in printed, printed


@pytest.mark.slow
def test_a_program_in_a_fork_has_its_own_arguments_and_exit_code(tmp_path):
    (tmp_path / "program.py").write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])\nsys.exit('wrong')\n")
    done = forked.run(["program.py", "a"], cwd=tmp_path, env=os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (1, f"__main__ ['a'] {tmp_path}\n", "wrong\n")


@functools.cache
def read_help(*words):
    """Returns the help of a program, or its flags if it is a benchmark."""
    if words[0] != "mtf_hetero":
        source = (ROOT / words[0].replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        return " ".join(f"--{name}" for name in re.findall(r'flags\.DEFINE_\w+\(\s*"(\w+)"', source))
    command = [sys.executable, "-m", *words, "--helpfull" if words[-1] == "train" else "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr  # absl's programs end with 1
    return done.stdout + done.stderr


def own_program(words):
    """Returns the words after `python -m` that start a program of this project; () for other programs."""
    if words[0] == "mtf-hetero":
        return ("mtf_hetero", *words[1 : 3 if words[2:3] and words[2] in SUBCOMMANDS else 2])
    if words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):  # needs a checkout
        return (words[2],)
    assert words[0] in NOT_RUN or (words[0] == "python" and words[1].endswith(".py")), f"{words[0]} is in no list"
    return ()


def test_flags_of_commands_exist():
    unknown = []
    for block, words in commands():
        if program := own_program(words):
            for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
                if not re.search(rf"(?<![\w-])--(?:\[no\])?{flag[2:]}\b", read_help(*program)):
                    unknown.append(f"{block}: {' '.join(program)} has no {flag}")
    assert not unknown


def test_pages_name_commands_that_a_wheel_has():
    own = re.compile(r"python -m (?:models|layouts|mtf_hetero\.)|mtf_hetero\[\w")
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    assert [f"{name}: {found}" for name, text in texts.items() for found in own.findall(text)] == []


def test_benchmarks_that_the_pages_name_exist():
    from benchmarks.cases import CASES

    for page in PAGES:
        for case, only in re.findall(r"benchmarks\.run\s+(\w+)(?:[^`|]*?--only=([^`\s]+))?", prose(page)):
            assert case in CASES, f"{page.name}: {case}"
            assert not only or any(only in variant for variant in CASES[case].variants()), f"{page.name}: {case} {only}"


def test_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"`make ([\w-]+)`|^make ([\w-]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^{''.join(target)}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_make_help_has_a_line_for_each_target():
    command = ["make", "--no-print-directory", "help"]  # the tests may themselves be run by make
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    lines = done.stdout.splitlines()
    assert [re.match(r"make (\S+) +\S", line)[1] for line in lines] == targets
    assert max(map(len, lines)) <= 80


def _anchors(page):
    """The anchors that headings make."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    wrong = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", prose(page)):
            path = (page.parent / target).resolve() if target else page
            if not path.exists() or (anchor and anchor not in _anchors(path)):
                wrong.append(f"{page.name}: {target}#{anchor}")
    assert not wrong


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {f" {path.name}\n" for path in (ROOT / "docs").glob("*.md")}
    pages |= {f" reports/{path.name}\n" for path in (ROOT / "benchmarks" / "reports").glob("*.md")}
    assert not {page for page in pages if page not in navigation}

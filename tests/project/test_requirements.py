"""The requirements of setup.py: each has a lowest version, which `make test-oldest` installs; lock files fit them."""

import ast
import re

import pytest
from documents import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LINE = re.compile(
    r"^(\S+?)==(\S+?)(?: ; (?P<marker>.*?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def read_lists():
    """Return {name of a list of setup.py: its requirements}."""
    names = {"__file__": str(ROOT / "setup.py")}
    source = (ROOT / "setup.py").read_text(encoding="utf-8")
    module = ast.parse(source)
    (call,) = (node.value for node in module.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    install = next(word.value for word in call.keywords if word.arg == "install_requires")
    module.body = [node for node in module.body if not (isinstance(node, ast.Expr) and node.value is call)]
    exec(compile(module, "setup.py", "exec"), names)
    lists = {name: value for name, value in names.items() if name.isupper() and isinstance(value, list)}
    return lists | {"install_requires": eval(compile(ast.Expression(install), "setup.py", "eval"), names)}


LISTS = {name: list(map(Requirement, texts)) for name, texts in read_lists().items()}
TESTED = [*LISTS["install_requires"], *LISTS["TEST"]]


def read_lock(name):
    """Return {package: its version} of a lock file, in which everything has a hash."""
    text = (ROOT / ".ci" / name).read_text(encoding="utf-8")
    versions = {canonicalize_name(package): Version(version) for package, version, *_ in LINE.findall(text)}
    left = LINE.sub("", text)
    assert not [line for line in left.splitlines() if not line.startswith("#")]
    return versions


@pytest.mark.parametrize("name", LISTS)
def test_each_requirement_has_a_lowest_version(name):
    without = [str(wanted) for wanted in LISTS[name] if not re.search(">=|==", str(wanted.specifier))]
    assert without == []


def test_the_lock_file_has_an_allowed_version_of_each():
    locked = read_lock("requirements.lock")
    wrong = [str(wanted) for wanted in TESTED if locked[canonicalize_name(wanted.name)] not in wanted.specifier]
    assert wrong == []


def test_the_oldest_versions_are_the_lowest_ones():
    """A release such as 2.15.0 is the lowest one of >=2.15."""
    locked = read_lock("oldest.lock")
    for wanted in TESTED:
        (lowest,) = (Version(part.version) for part in wanted.specifier if part.operator in (">=", "=="))
        version = locked[canonicalize_name(wanted.name)]
        assert version.release[: len(lowest.release)] == lowest.release, f"{wanted}: {version}"


def test_ci_installs_the_lock_files():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for rule, lock in ((".venv/installed", "requirements"), (".venv-oldest/installed", "oldest")):
        recipe = makefile.partition(f"\n{rule}: ")[2].partition("\n\n")[0]
        assert f"pip install --quiet --require-hashes -r .ci/{lock}.lock\n" in recipe

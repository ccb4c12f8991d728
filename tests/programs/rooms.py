"""The rooms of the project, what each may import, and which tests a change can reach."""

import ast
import collections
import functools
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("mtf_hetero", "layouts", "models", "benchmarks", "examples", "tests")
LINKS = {"layouts", "models"}  # folders of the top level that are parts of the package
FACES = {"layers": "ops"}  # public name: the room whose functions users find under it
ROOMS = {  # of mtf_hetero: room -> the rooms it may import, beside _compat, _support and itself
    "_compat": set(),
    "_support": set(),
    "layout": set(),
    "cluster": set(),
    "checkpoint": set(),
    "mesh": {"cluster", "layout"},
    "ops": {"layout", "mesh"},
    "graph": {"layout", "ops"},
    "lowering": {"cluster", "graph", "layout", "mesh", "ops"},
    "cost": {"cluster", "graph", "layout", "lowering", "mesh", "ops"},
    "planner": {"cluster", "cost", "graph", "layout", "lowering", "mesh"},
    "placement": {"cluster", "cost", "graph", "layout", "layouts", "lowering", "planner"},
    "training": {"checkpoint", "cluster", "cost", "layout", "lowering", "mesh", "placement", "planner"},
    "estimator": {"checkpoint", "cluster", "mesh", "training"},
    "data": {"cluster", "layout"},
    "importer": {"cluster", "cost", "data", "layout", "lowering", "mesh", "ops", "placement", "training"},
    "keras": {
        "checkpoint",
        "cluster",
        "cost",
        "data",
        "graph",
        "importer",
        "mesh",
        "ops",
        "placement",
        "planner",
        "training",
    },
    "cli": {
        "checkpoint",
        "cluster",
        "cost",
        "data",
        "estimator",
        "graph",
        "keras",
        "layout",
        "layouts",
        "lowering",
        "mesh",
        "models",
        "ops",
        "placement",
        "planner",
        "training",
    },
}
USES_LAYOUTS = {"cli", "keras", "placement"}  # the rooms that train, as the binary does
ABOVE = {  # what stands on mtf_hetero's rooms -> what it may import beside them
    "layouts": {"layouts"},
    "models": {"layouts", "models"},
    "benchmarks": {"layouts", "models", "benchmarks"},
    "examples": {"layouts", "models"},
    "tests": set(PACKAGES),
}


def module_name(path):
    """The name by which a file is imported: "mtf_hetero.models.vgg" for models/vgg.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("mtf_hetero", *parts) if parts[0] in LINKS else parts).removesuffix(".__init__")


def _files():
    for package in PACKAGES:
        for directory, _, files in os.walk(ROOT / package):  # it does not follow links
            yield from (pathlib.Path(directory, file) for file in sorted(files) if file.endswith(".py"))


SOURCES = {module_name(path): path for path in _files()}


@functools.cache
def tree(name):
    """The syntax tree of a file."""
    return ast.parse(SOURCES[name].read_text(encoding="utf-8"))


@functools.cache
def find_imports(name):
    """Full names of everything that a file imports, inside functions and for type checkers too."""
    found = []
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: write the full name of what is imported"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@functools.cache
def files_imported_by(name):
    """The project's files that a file imports, of tests/programs/ too."""
    files = set()
    for imported in find_imports(name):
        full = f"tests.programs.{imported}" if f"tests.programs.{imported.split('.')[0]}" in SOURCES else imported
        parts = full.split(".")
        beginnings = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        files.add(next((beginning for beginning in beginnings if beginning in SOURCES), name))
    return files - {name}


def find_room(name):
    """The room of "mtf_hetero.lowering.loop" is lowering; "" is the package's own file."""
    part = [*name.split("."), ""][1]
    return FACES.get(part, part)


def find_package(name):
    """The folder of the top level: "models" for "mtf_hetero.models.vgg"."""
    package = name.split(".")[0]
    return find_room(name) if package == "mtf_hetero" and find_room(name) in LINKS else package


# Which tests a change can reach. A test reaches the rooms that it or its programs name, and all rooms below them.

PUBLIC = {name.rpartition(".")[2]: find_room(name) for name in find_imports("mtf_hetero") if name.count(".") > 1}
WITH_EVERYTHING = (
    "setup.py",
    "pyproject.toml",
    "tests/conftest.py",
    "mtf_hetero/__init__.py",
    "mtf_hetero/__main__.py",
)
ONLY_OF = {  # tests that promise nothing to users of the library: only a change of these files reaches them
    "tests/benchmarks/": ("benchmarks/", "tests/benchmarks/"),
    "tests/project/test_packaging.py": ("setup.py", "pyproject.toml", "MANIFEST.in", "Makefile"),
    "tests/project/test_site.py": ("docs/", "mkdocs.yml", "CHANGELOG.md", "benchmarks/README.md"),
}


@functools.cache
def rooms_named_by(name):
    """The rooms that a file imports, or names as an attribute of `mtf_hetero`."""
    names = {imported for imported in find_imports(name) if imported.startswith("mtf_hetero.")}
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mtf_hetero":
            names.add(f"mtf_hetero.{node.attr}")
    return {PUBLIC.get(find_room(used), find_room(used)) for used in names} & {*ROOMS, *LINKS}


@functools.cache
def _rooms_under(room):
    """The rooms that a room may import; those that a folder of the top level does import."""
    if room in ROOMS:
        return ROOMS[room]
    return {used for name in SOURCES if find_package(name) == room for used in rooms_named_by(name)}


def _all_from(starts, neighbours):
    """Everything that is reached from some starts, and these."""
    found, left = set(), [*starts]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += neighbours(one)
    return found


@functools.cache
def find_programs(test):
    """A test, the files of tests/programs/ that it imports, and those that these import."""
    return _all_from([test], lambda name: [f for f in files_imported_by(name) if f.startswith("tests.programs.")])


@functools.cache
def rooms_reached_by(test):
    """The rooms that can change a test's result: all, where it starts programs or looks at the whole project."""
    files = find_programs(test)
    starts_programs = any("sys.executable" in SOURCES[name].read_text(encoding="utf-8") for name in files)
    if starts_programs or test.startswith(("tests.project.", "tests.benchmarks.")):
        return {*ROOMS, *LINKS}
    return _all_from({"_compat", "_support"}.union(*map(rooms_named_by, files)), _rooms_under)


def all_tests():
    """The paths of all test files, by the names of their modules."""
    return {name: path.relative_to(ROOT).as_posix() for name, path in SOURCES.items() if ".test_" in name}


def reached_tests(changed):
    """The test files whose results some changed files can change; all paths as git writes them."""
    reached = set()
    for name, path in all_tests().items():
        only = next((files for start, files in ONLY_OF.items() if path.startswith(start)), "")
        if any(_reaches(name, file) for file in changed if file.startswith(only)):
            reached.add(path)
    return reached


def _reaches(test, path):
    name = module_name(ROOT / path) if path.endswith(".py") else ""
    if path in WITH_EVERYTHING or name == test:
        return True
    if name.startswith("tests."):
        return name in find_programs(test)
    if name.startswith("mtf_hetero."):
        return find_room(name) in rooms_reached_by(test)
    if name.startswith("benchmarks"):
        return any(imported.startswith("benchmarks") for file in find_programs(test) for imported in find_imports(file))
    return test.startswith("tests.project.")  # pages, examples, settings


Landing = collections.namedtuple("Landing", "number changed")  # changed: None where git does not tell


def this_landing():
    """The number of this landing, and the files that changed since the commit before it, both of `.ci/landing`."""
    number, base = (ROOT / ".ci/landing").read_text(encoding="utf-8").split()
    command = ["git", "diff", "--name-only", "--no-renames", base]  # with the changes that are not committed yet
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return Landing(int(number), None)
    return Landing(int(number), run.stdout.split())

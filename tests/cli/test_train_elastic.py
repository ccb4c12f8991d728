"""The training binary without a worker that it has lost."""

import os
import re
import signal
import time
from unittest import mock

import numpy as np
import pytest
from estimator_oracle import await_wanted
from tiers import losing_workers
from tiny_keras import tiny
from training_runs import FAST, ONE, act, read_losses, read_rows, run

from mtf_hetero.cli.train.config import Config
from mtf_hetero.cli.train.training import Training
from mtf_hetero.cluster import UnreachableWorkerError, claim
from mtf_hetero.placement import Request

ON_WORKERS = {name: value for name, value in FAST.items() if name != "devices"} | {"max_steps": 8, "summary_steps": 1}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"layout": "batch", "list_speed": "4,2,1"}, {"layout": "batch", "list_speed": "4,1"}),
        ({"layout": "batch", "list_speed": [4, 2, 1]}, {"layout": "batch", "list_speed": [4, 1]}),
        ({"layout": "batch", "list_speed": "auto"}, {"layout": "batch", "list_speed": "auto"}),
        (
            {"layout": "spatial", "mesh_shape": "depth:3", "list_speed": "depth:4,2,1"},
            {"layout": "spatial", "mesh_shape": "depth:2", "list_speed": "depth:4,1"},
        ),
        ({"layout": "hybrid", "dense_shares": "3,2,1"}, {"layout": "hybrid", "dense_shares": "3,1"}),
        ({"layout": "a:rows;b:cols", "mesh_shape": "rows:3;cols:1"}, {"layout": "auto"}),
        ({"layout": "plan.json"}, {"layout": "auto"}),
    ],
)
def test_a_request_without_one_of_three_devices(values, expected):
    assert Request(**values).only([0, 2]) == Request(**expected)


def test_seconds_to_wait_for_workers():
    seconds = [Config(wait_for_workers=text).wait_seconds for text in ("7.5", "forever")]
    assert seconds == [7.5, np.inf]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"layout": "batch"}, {"layout": "batch"}),
        ({"layout": "batch", "list_speed": "4,2"}, {"layout": "batch", "list_speed": "auto"}),
        ({"layout": "batch", "mesh_shape": "all:2", "list_speed": "4,2"}, {"layout": "auto"}),
        ({"layout": "auto", "memory_limit": "4,2", "devices": "cpu:0,cpu:1"}, {"layout": "auto"}),
        ({"layout": "plan.json"}, {"layout": "auto"}),
    ],
)
def test_a_request_for_more_devices(values, expected):
    assert Request(**values).with_more() == Request(**expected)


@pytest.fixture
def soon(monkeypatch):
    """Training looks for workers every 0.2 seconds, in place of 5."""
    monkeypatch.setattr("mtf_hetero.training.elastic._LOOK_SECONDS", 0.2)


def await_move(training):
    await_wanted(training._course.elastic)


@pytest.mark.full
@losing_workers
def test_a_worker_that_is_removed_from_the_file_is_released(soon, workers, tmp_path, capfd, monkeypatch):
    hosts, other, seen = tmp_path / "hosts.txt", claim._Holding(workers.addresses[0]), []
    hosts.write_text("\n".join(workers.addresses))

    def remove(training):
        hosts.write_text("\n".join(workers.addresses[1:]))
        await_move(training)

    def list_while_another_training_has_it(training):
        assert other.take() == ""
        hosts.write_text("\n".join(workers.addresses))
        time.sleep(1)  # it looks five times
        seen.append(training._course.elastic.is_wanted)
        other.release()
        await_move(training)

    def remove_too_many(training):
        hosts.write_text(workers.addresses[2])
        while training._course._needed.keys() != {0, 1}:  # since the first removal it has worker 0
            time.sleep(0.1)
        seen.append(claim._Holding(workers.addresses[0]).take())

    act(monkeypatch, {2: remove, 4: list_while_another_training_has_it, 6: remove_too_many})
    options = ON_WORKERS | {"layout": "batch", "model_dir": tmp_path / "run", "min_workers": 2}
    assert run(**options, workers=f"@{hosts}") == 0
    err = capfd.readouterr().err
    name, continues = rf"worker 0 \({workers.addresses[0]}\)", r"training continues from step"
    assert re.search(
        rf"{name} was removed: {continues} 2 \(memory\) .* on worker:1/cpu:0, worker:2/(.|\n)*"
        rf"{name} answers again: {continues} 4 \(memory\)(.|\n)*"
        r"training continues with worker 0 .*, worker 1 .*: 1 would be left, and min_workers is 2",
        err,
    )
    assert seen[0] is False and seen[1].startswith(f"pid {os.getpid()} on ")
    assert "Traceback" not in err


@pytest.mark.full
@losing_workers
@pytest.mark.parametrize("of_keras", [False, True], ids=["own network", "Keras file"])
def test_training_continues_without_a_killed_worker(of_keras, soon, workers, tmp_path, capfd, monkeypatch):
    model = {}
    if of_keras:
        model = {"model": tmp_path / "my.keras"}
        tiny(model["model"])

    def kill(training):
        os.kill(workers.pids[1], signal.SIGKILL)

    def restart(training):
        workers.restart(1)
        await_move(training)

    assert run(**ONE | model | {"max_steps": 8, "summary_steps": 1, "model_dir": tmp_path / "one"}) == 0
    capfd.readouterr()
    act(monkeypatch, {3: kill, 5: restart})
    options = model | {"layout": "batch", "list_speed": "3,2,1", "model_dir": tmp_path / "split", "wait_for_workers": 1}
    assert run(**ON_WORKERS | options, workers=",".join(workers.addresses), save_checkpoints_secs=1) == 0
    err = capfd.readouterr().err
    assert "Traceback" not in err
    name, continues = rf"worker 1 \({workers.addresses[1]}\)", r"training continues from step \d+"
    assert re.search(
        rf"{name} was lost: {continues} \((memory|checkpoint).* after \d+\.\d s, with mesh all:2 on worker:0/cpu:0, "
        rf"worker:2/cpu:0\n(.|\n)*{name} answers again: {continues} \(memory\) after \d+\.\d s, with mesh all:3 on "
        r"worker:0/cpu:0, worker:1/cpu:0, worker:2/cpu:0\n",
        err,
    )
    event, back = read_rows(tmp_path / "split", "event")
    assert (back["source"], back["repeated_steps"], len(back["devices"].split())) == ("memory", 0, 3)
    assert event["devices"] == "worker:0/cpu:0, worker:2/cpu:0"
    assert event["why"] == f"worker 1 ({workers.addresses[1]}) was lost" and event["seconds_paused"] >= 1
    found, expected = (read_losses(tmp_path / name) for name in ("split", "one"))
    assert found == pytest.approx(expected, rel=1e-3) and sorted(found) == list(range(1, 9))


def test_a_worker_that_is_lost_in_the_last_test_is_left_out():
    error = UnreachableWorkerError("worker 1 (b:2): connection refused", {1: "b:2"})
    after = mock.Mock(test=mock.Mock(return_value={"accuracy": 0.5}))
    training = mock.Mock(run=mock.Mock(test=mock.Mock(side_effect=error)))
    stage = mock.Mock(begin=lambda: setattr(training, "run", after))
    training._course.without = mock.Mock(return_value=stage)
    assert Training._test(training, "test", None) == {"accuracy": 0.5}
    training._course.without.assert_called_once_with({1: "b:2"})
    training.run = mock.Mock(test=mock.Mock(side_effect=error))
    with pytest.raises(UnreachableWorkerError):  # the Estimator, which trains meanwhile, continues elsewhere
        Training._test(training, "validation", "model.ckpt-5")

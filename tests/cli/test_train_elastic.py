"""The training binary without a worker that it has lost."""

import json
import os
import re
import signal
import subprocess
import time
from unittest import mock

import numpy as np
import pytest
from tiers import losing_workers
from training_runs import FAST, ONE, Reader, restored_logging, run, start  # noqa: F401 - one is a fixture

from mtf_hetero.cli.train.config import Config
from mtf_hetero.cli.train.course import Course
from mtf_hetero.cluster import UnreachableWorkerError, WorkerClaim
from mtf_hetero.cluster.claim import WorkerHeldError
from mtf_hetero.placement import Request

pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wait_for_workers": "soon"}, "--wait_for_workers is 'soon'; write seconds, such as 60, or forever"),
        ({"wait_for_workers": "-1"}, "--wait_for_workers is '-1'; write seconds, such as 60, or forever"),
        ({"min_workers": 0}, "--min_workers is 0; it must be a whole number, 1 or more"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2(values, message, capfd):
    assert run(model="lenet", **values) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


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


def test_a_configuration_without_one_of_two_devices():
    config = Config(layout="hybrid", mesh_shape="rows:2;cols:1", dense_rounds=True, wait_for_workers="7.5")
    left = config.only([1])
    assert (left.layout, left.mesh_shape, left.dense_rounds) == ("auto", None, False)
    assert (config.wait_seconds, Config(wait_for_workers="forever").wait_seconds) == (7.5, np.inf)


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


@pytest.mark.full
@losing_workers
def test_a_worker_that_is_added_to_the_file_is_taken_in(workers, tmp_path):
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("\n".join(workers.addresses[:2]))
    options = FAST | {"layout": "filters", "list_speed": "2,1", "model_dir": tmp_path / "run", "workers": f"@{hosts}"}
    options |= {"train_epochs": 1250, "max_steps": 100_000}
    args = [f"--{name}={value}" for name, value in options.items() if name != "devices" and value is not None]
    with start(*args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        reader = Reader(process.stdout)
        seen = reader.await_line("step 10/")
        try:
            with hosts.open("a") as file:
                file.write(f"\n{workers.addresses[2]}\n")
            said = rf"worker {workers.addresses[2]} joined: training continues from step \d+ \(memory\) after .* on "
            seen = reader.await_line(said, seen, seconds=120)
            reader.await_line("step .*/", seen + 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
        finally:
            process.kill()
    text = "".join(reader.lines)
    assert "Traceback" not in text


@pytest.mark.full
@losing_workers
def test_a_worker_that_is_removed_from_the_file_is_released(workers, tmp_path):
    hosts, whole = tmp_path / "hosts.txt", "\n".join(workers.addresses)
    hosts.write_text(whole)
    options = FAST | {"layout": "batch", "model_dir": tmp_path / "run", "workers": f"@{hosts}", "min_workers": 2}
    options |= {"train_epochs": 1250, "max_steps": 100_000}
    args = [f"--{name}={value}" for name, value in options.items() if name != "devices"]
    with start(*args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        reader = Reader(process.stdout)
        seen = reader.await_line("step 10/")
        name, continues = rf"worker 0 \({workers.addresses[0]}\)", r"training continues from step \d+ \(memory\)"
        try:
            hosts.write_text("\n".join(workers.addresses[1:]))
            seen = reader.await_line(
                rf"{name} was removed: {continues} .* on worker:1/cpu:0, worker:2/", seen, seconds=60
            )
            with WorkerClaim(workers.addresses[:1]):  # as another training
                hosts.write_text(whole)
                time.sleep(6)  # it looks every 5 seconds
            seen = reader.await_line(rf"{name} answers again: {continues}", seen, seconds=60)
            hosts.write_text(workers.addresses[2])
            seen = reader.await_line(r"training continues with worker 0 .*, worker 1 .*: --min_workers is 2", seen)
            seen = reader.await_line("step .*/", seen + 1)
            with pytest.raises(WorkerHeldError, match=r"worker 0 .* belongs to another training"):
                WorkerClaim(workers.addresses[:1]).__enter__()
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
        finally:
            process.kill()
    assert "Traceback" not in "".join(reader.lines)


@pytest.mark.full
@losing_workers
def test_training_continues_without_a_killed_worker(workers, tmp_path, capfd):
    options = FAST | {"layout": "batch", "list_speed": "3,2,1", "model_dir": tmp_path / "split", "summary_steps": 1}
    options |= {"train_epochs": 1250, "max_steps": 100_000, "save_checkpoints_secs": 1, "wait_for_workers": 1}
    options |= {"workers": ",".join(workers.addresses)}
    del options["devices"]
    args = [f"--{name}={value}" for name, value in options.items()]
    with start(*args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        reader = Reader(process.stdout)
        seen = reader.await_line("step 10/")
        try:
            os.kill(workers.pids[1], signal.SIGKILL)
            name, continues = rf"worker 1 \({workers.addresses[1]}\)", r"training continues from step \d+"
            seen = reader.await_line(rf"{name} was lost: {continues} \((memory|checkpoint)", seen, seconds=90)
            seen = reader.await_line("step .*/", seen + 1)
            workers.restart(1)
            seen = reader.await_line(rf"{name} answers again: {continues} \(memory\)", seen, seconds=240)
            reader.await_line("step .*/", seen + 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
        finally:
            process.kill()
            workers.restart(1)
    text = "".join(reader.lines)
    assert "Traceback" not in text
    for mesh in ("all:2 on worker:0/cpu:0, worker:2/cpu:0", "all:3 on worker:0/cpu:0, worker:1/cpu:0, worker:2/cpu:0"):
        assert re.search(rf"after \d+\.\d s, with mesh {mesh}\n", text)
    rows = [json.loads(line) for line in (tmp_path / "split" / "metrics.jsonl").read_text().splitlines()]
    event, back = (row for row in rows if row["kind"] == "event")
    assert (back["source"], back["repeated_steps"], len(back["devices"].split())) == ("memory", 0, 3)
    assert event["devices"] == "worker:0/cpu:0, worker:2/cpu:0"
    assert event["why"] == f"worker 1 ({workers.addresses[1]}) was lost" and event["seconds_paused"] >= 1
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}
    assert sorted(losses) == list(range(1, len(losses) + 1))
    expected = ONE | {"model_dir": tmp_path / "one", "train_epochs": 1250, "summary_steps": 1}
    assert run(**expected | {"max_steps": min(event["step"] + 5, len(losses))}) == 0
    for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "train":
            assert losses[row["step"]] == pytest.approx(row["loss"], rel=1e-3)


def test_a_worker_that_is_lost_in_the_last_test_is_left_out():
    error = UnreachableWorkerError("worker 1 (b:2): connection refused", {1: "b:2"})
    after = mock.Mock(test=mock.Mock(return_value={"accuracy": 0.5}))
    course = mock.Mock(run=mock.Mock(test=mock.Mock(side_effect=error)))
    place = mock.Mock(begin=lambda: setattr(course, "run", after))
    course._without = mock.Mock(return_value=place)
    assert Course._test(course, "test", None) == {"accuracy": 0.5}
    course._without.assert_called_once_with({1: "b:2"})
    course.run = mock.Mock(test=mock.Mock(side_effect=error))
    with pytest.raises(UnreachableWorkerError):  # the Estimator, which trains meanwhile, continues elsewhere
        Course._test(course, "validation", "model.ckpt-5")

"""The training program gives devices other shares in mid-run."""

import concurrent.futures

import pytest
from training_runs import read_losses, read_rows, run

from mtf_hetero.cli.train.config import Config
from mtf_hetero.cost import trace
from mtf_hetero.training import rebalancing


def at_once(work, name):
    future = concurrent.futures.Future()
    future.set_result(work())
    return future


@pytest.mark.full
def test_shares_follow_a_slower_device_and_the_losses_do_not(tmp_path, monkeypatch, capfd):
    count = iter(range(1000))

    def usage(events, devices):  # cpu:1 takes three times as long from the 21st step on, with half of the batch
        slow = 300.0 if next(count) >= 20 else 100.0
        return {device: trace.Usage(each, 0.0, 400.0 - each) for device, each in zip(devices, (100.0, slow))}

    monkeypatch.setattr(trace, "usage", usage)
    monkeypatch.setattr(rebalancing.threads, "begin", at_once)
    flags = {"model": "lenet", "devices": "cpu:0,cpu:1", "layout": "batch", "batch_size": 32, "max_steps": 40}
    flags |= {"optimizer": "sgd", "learning_rate": 0.01, "summary_steps": 1, "busy_steps": 1}
    assert run(**flags, model_dir=tmp_path / "a", rebalance="auto") == 0
    err = capfd.readouterr().err
    assert run(**flags, model_dir=tmp_path / "b", rebalance="off") == 0
    (event,) = read_rows(tmp_path / "a", "event")
    assert 25 < event["step"] < 32
    assert event["why"].startswith("cpu:1 is 3.00x as slow as at the beginning, and a step is predicted to take ")
    first, second = event["sizes"]["batch"]
    assert first + second == 32 and first >= 24
    assert (event["source"], event["repeated_steps"]) == ("memory", 0)
    assert 0.2 < event["predicted_gain"] < 0.6
    assert f"{event['why']}: training continues from step {event['step']} (memory) after " in err
    assert f"with batch {first}, {second}" in err
    assert read_losses(tmp_path / "a") == pytest.approx(read_losses(tmp_path / "b"), rel=1e-4)
    assert read_rows(tmp_path / "b", "event") == []


@pytest.mark.parametrize("text", ["soon", "0", "-1"])
def test_what_rebalance_may_be(text):
    with pytest.raises(
        ValueError, match=f"^--rebalance is '{text}'; write auto, off, or a positive number of seconds$"
    ):
        Config(rebalance=text)
    seconds = [Config(rebalance=each).rebalance_seconds for each in ("off", "auto", "30")]
    assert seconds == [None, 0.0, 30.0]


def test_nothing_is_measured_to_rebalance_by():
    with pytest.raises(ValueError, match="^--rebalance is '30' and --busy_steps is 0, which measures nothing"):
        Config(rebalance="30", busy_steps=0)
    assert Config(busy_steps=0).rebalance_seconds == 0.0

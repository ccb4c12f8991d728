"""`mtf-hetero devices`: what there is here, what it is called, and why there is no GPU."""

import importlib
import json

import pytest
from tiers import on_workers

from mtf_hetero import placement, tf
from mtf_hetero._compat import status_devices
from mtf_hetero.cli import devices
from mtf_hetero.cluster import Cluster, gpus, granted, probe
from mtf_hetero.cluster.devices import local_device
from mtf_hetero.cost import hardware


def run_devices(capsys, *arguments):
    assert devices.main(list(arguments)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


def test_a_machine_without_gpu(capsys, monkeypatch):
    monkeypatch.setattr(gpus, "has_driver", lambda: False)
    lines = run_devices(capsys)
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    assert f"TensorFlow {tf.__version__} " in text and "mesh-tensorflow 0.1.21" in text
    assert [line.split()[0] for line in lines if line.startswith(("cpu:", "gpu:"))] == ["cpu:0"]
    assert f"No GPU: no NVIDIA driver is installed: for an NVIDIA GPU, install its driver, then {gpus.INSTALL}." in text
    assert "--devices=cpu:0 is all of them." in text and "--list_speed=2,1 says" in text


def test_a_machine_with_gpus(capsys, monkeypatch):
    names = {0: "NVIDIA GeForce RTX 3090", 1: "NVIDIA GeForce GT 1030"}
    listed = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 2 if kind == "GPU" else listed(kind))
    monkeypatch.setattr(hardware, "memory_limits", lambda cluster, session: dict.fromkeys(cluster.devices, 24e9))
    monkeypatch.setattr(hardware, "local_gpu", lambda index: hardware.Gpu(names[index], "8.6"))
    monkeypatch.setattr(granted, "cores", lambda read: 1.5)
    lines = run_devices(capsys)
    assert max(map(len, lines)) <= 80
    assert "gpu:0    24 GB  NVIDIA GeForce RTX 3090, compute capability 8.6" in lines
    text = " ".join(lines)
    assert "mtf-hetero plan knows gpu:0 as RTX-3090: a step is assumed to reach 14.2 TFLOP/s and 936 GB/s." in text
    assert text.count("mtf-hetero plan knows") == 1 and "No GPU" not in text and "1.5 cores' time" in text
    assert "--devices=gpu:0,gpu:1,cpu:0 is all of them." in text and "--list_speed=3,2,1 says" in text
    found = json.loads("\n".join(run_devices(capsys, "--json")))
    assert [device["device"] for device in found["devices"]] == ["gpu:0", "gpu:1", "cpu:0"]
    assert found["devices"][0]["kind"]["name"] == "RTX-3090" and "kind" not in found["devices"][1]
    assert found["no_gpu"] is None and found["versions"]["tensorflow"] == tf.__version__


@pytest.mark.parametrize(
    ("visible", "driver", "cuda", "reason"),
    [
        ("", True, "12", "CUDA_VISIBLE_DEVICES is '', which hides all GPUs: unset it"),
        ("-1", False, None, "CUDA_VISIBLE_DEVICES is '-1'"),
        (None, False, "12", "no NVIDIA driver is installed"),
        ("0", True, None, f"this TensorFlow was built without CUDA: {gpus.INSTALL}"),
        (None, True, "12", f"TensorFlow cannot use it, mostly because CUDA libraries are missing: {gpus.INSTALL}"),
    ],
)
def test_why_there_is_no_gpu(visible, driver, cuda, reason, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpus, "has_driver", lambda: driver)
    monkeypatch.setattr(gpus, "cuda_version", lambda: cuda)
    assert reason in gpus.why_no_gpu()
    with pytest.raises(ValueError, match="device 'gpu:0' does not exist: TensorFlow finds no GPU; ") as raised:
        local_device("gpu:0", 0)
    assert reason in str(raised.value) and str(raised.value).endswith("; or name another device, such as cpu:0")


@pytest.mark.parametrize(("visible", "is_said"), [("0", True), ("-1", False)])
def test_a_gpu_that_cannot_be_used_is_said(visible, is_said, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpus, "has_driver", lambda: True)
    said = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: said.append(text % values))
    assert placement.requested_cluster(placement.Request()).devices == ("cpu:0",)
    assert [text.startswith("no GPU is used: an NVIDIA driver is installed, but ") for text in said] == [True] * is_said


def test_a_worker_that_does_not_answer_is_one_line(capsys):
    assert devices.main(["--workers=localhost:1"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: worker 0 (localhost:1): ") and err.count("\n") == 1


@on_workers
def test_the_devices_of_workers(workers, capsys):
    arguments = f"--workers={','.join(workers.addresses[:2])}"
    here, *_ = json.loads("\n".join(run_devices(capsys, "--json")))["devices"]
    there = json.loads("\n".join(run_devices(capsys, arguments, "--json")))["devices"]
    assert [device.pop("device") for device in there] == ["worker:0/cpu:0", "worker:1/cpu:0"]
    assert [device.pop("address") for device in there] == workers.addresses[:2]
    del here["device"]
    for device in there:
        # three workers share this machine, and two were named; a worker may be bound to some of the cores
        changed = dict.fromkeys(("usable_cores", "quota_cores"))
        assert {**device, **changed} == {**here, **changed, "memory_bytes": here["memory_bytes"] // 2}
    lines = run_devices(capsys, arguments)
    assert max(map(len, lines)) <= 80
    assert f"worker:0 is {workers.addresses[0]}, worker:1 is {workers.addresses[1]}" in lines


@on_workers
def test_the_gpus_of_a_worker(workers, capsys, monkeypatch):
    address = workers.addresses[0]
    status = probe.ask(address, 5.0).status
    assert [(device.name, device.device_type) for device in status_devices(status)] == [
        ("/job:server/replica:0/task:0/device:CPU:0", "CPU")
    ]
    attributes = importlib.import_module("tensorflow.core.framework.device_attributes_pb2").DeviceAttributes
    text = "device: 0, name: NVIDIA H100 80GB HBM3, pci bus id: 0000:1b:00.0, compute capability: 9.0"
    gpus = [
        attributes(device_type="GPU", memory_limit=80 * 10**9, incarnation=7, physical_device_desc=text),
        attributes(device_type="GPU"),
    ]
    status += tf.train.BytesList(value=[gpu.SerializeToString() for gpu in gpus]).SerializeToString()
    monkeypatch.setattr(
        probe, "ask_all", lambda workers, timeout_seconds: {0: probe.Answer(probe.Outcome.ANSWERED, status=status)}
    )
    names = tuple(f"/job:worker/task:0/device:{place}" for place in ("GPU:0", "GPU:1", "CPU:0"))
    monkeypatch.setattr(Cluster, "from_workers", lambda workers: Cluster(workers, names))
    lines = run_devices(capsys, f"--workers={address}")
    assert "worker:0/gpu:0    80 GB  NVIDIA H100 80GB HBM3, compute capability 9.0" in lines
    assert "worker:0/gpu:1        -  GPU" in lines
    assert any(line.startswith("mtf-hetero plan knows worker:0/gpu:0 as H100: ") for line in lines)

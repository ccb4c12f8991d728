"""Names of devices: read, written and completed in one place."""

import pytest

from mtf_hetero.cluster.devices import Device, complete, listed_devices, local_device, shorten


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("", Device()),
        ("gpu:1", Device(None, None, "GPU", 1)),
        ("/device:CPU:0", Device(None, None, "CPU", 0)),
        ("/CPU:0", Device(None, None, "CPU", 0)),
        ("worker:1/gpu:0", Device("worker", 1, "GPU", 0)),
        ("Worker:1/GPU:0", Device("worker", 1, "GPU", 0)),
        ("/job:worker/replica:0/task:1/device:GPU:0", Device("worker", 1, "GPU", 0)),
        ("/job:ps/task:2", Device("ps", 2)),
        ("/device:XLA_CPU:*", Device(kind="XLA_CPU")),
    ],
)
def test_a_name_is_read_and_written(text, device):
    assert Device.parse(text) == device
    assert Device.parse(device.name) == device


@pytest.mark.parametrize("text", ["cpu", "tpu:0", "gpu:x", "cpu:0/gpu:0", "worker:1/worker:2", "job:a b", "a:1/cpu:0"])
def test_what_is_no_name_is_an_error(text):
    with pytest.raises(ValueError, match=f"device '{text}' is not known; write cpu:N, gpu:N or, of a worker, worker:N"):
        Device.parse(text)


def test_what_a_name_leaves_out_is_of_the_process_that_trains():
    alone = complete(["", "gpu:0", "/job:localhost/replica:0/task:0/device:CPU:0"])
    assert [device.name for device in alone.values()] == [
        "/job:localhost/task:0/device:CPU:0",
        "/job:localhost/task:0/device:GPU:0",
        "/job:localhost/task:0/device:CPU:0",
    ]
    cluster = complete(["", "/job:worker/task:1", "/job:chief/task:0/device:CPU:0"])
    assert cluster[""] == cluster["/job:chief/task:0/device:CPU:0"] == Device("chief", 0, "CPU", 0)
    assert cluster["/job:worker/task:1"] == Device("worker", 1, "CPU", 0)


def test_names_for_people():
    assert shorten("/job:worker/task:1/device:GPU:0, /job:chief/task:0/device:CPU:1") == "worker:1/gpu:0, cpu:1"
    listed = listed_devices([f"/job:a/task:0/device:{kind}:0" for kind in ("CPU", "XLA_CPU", "GPU")])
    assert [device.short_name for device in listed] == ["gpu:0", "cpu:0"]


def test_a_device_of_this_process():
    assert local_device("GPU:1", 2) == Device(kind="GPU", index=1)
    with pytest.raises(
        ValueError, match="device 'gpu:2' does not exist: TensorFlow finds gpu:0, gpu:1; name an existing"
    ):
        local_device("gpu:2", 2)
    with pytest.raises(ValueError, match="device 'worker:0/cpu:0' is not known"):
        local_device("worker:0/cpu:0", 2)

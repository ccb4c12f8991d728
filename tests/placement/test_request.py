"""A request for a placement: the same words as flags and as arguments, and a line for each mistake."""

import numpy as np
import pytest

from mtf_hetero.cluster import Cluster, LocalCluster, UnreachableWorkerError
from mtf_hetero.placement import Request, requested_cluster


def test_shares_of_several_axes():
    assert Request(layout="batch", list_speed="70,25,5").shares == {"all": (70, 25, 5)}
    assert Request(layout="batch", list_speed="rows:2,1;cols:3,1").shares == {"rows": (2, 1), "cols": (3, 1)}
    for speeds in ([2, 1], (2.0, 1.0), np.array([2, 1])):
        request = Request(layout="batch", list_speed=speeds, mesh_shape="x:2")
        assert request == Request(layout="batch", list_speed="2,1", mesh_shape="x:2") and request.shares == {
            "x": (2, 1)
        }
    assert Request(layout="batch", list_speed="auto").shares == Request().shares == {}


def test_devices_are_written_in_one_way():
    request = Request(devices="GPU:1, worker:0/cpu:1,/job:worker/task:2/device:GPU:0,/device:CPU:3")
    assert request.devices == ("gpu:1", "worker:0/cpu:1", "worker:2/gpu:0", "cpu:3")
    assert Request(workers="a:1, b:2").workers == ("a:1", "b:2")
    assert Request(workers=Cluster(("a:1", "b:2"), ("worker:0/cpu:0",))).workers == ("a:1", "b:2")


def test_workers_of_a_local_cluster():
    local = LocalCluster([0.5], report=lambda line: None)
    with local as cluster:
        assert Request(workers=local).workers == Request(workers=cluster).workers == cluster.workers
    with pytest.raises(ValueError, match=r"^workers is a LocalCluster without workers; write `with LocalCluster\("):
        Request(workers=local)
    with pytest.raises(
        UnreachableWorkerError, match=r"refused; the LocalCluster was closed; call this inside its `with`"
    ):
        requested_cluster(Request(workers=cluster))


def test_what_is_measured():
    assert Request().is_measured and Request(layout="batch", list_speed="auto").is_measured
    assert not Request(layout="batch").is_measured and not Request(layout="plan.json").is_measured


def test_slots_are_one_number_or_one_per_device():
    assert Request(layout="batch").slots_on("abc") is None
    for slots in (2, "2", [2]):
        assert Request(layout="batch", slots=slots).slots_on("abc") == (2, 2, 2)
    request = Request(layout="batch", slots="4,2,1", list_speed="3,2,1")
    assert request.slots_on("abc") == (4, 2, 1) and request.only([0, 2]).slots_on("ac") == (4, 1)
    with pytest.raises(ValueError, match=r"^slots is '4,2,1'; give one number, or one for each of the 2 devices"):
        request.slots_on("ab")


def test_memory():
    assert Request(memory_limit=[16, 8]).memory_bytes(["a", "b"]) == {"a": 16 * 10**9, "b": 8 * 10**9}
    assert Request(memory_limit=0.5).memory_bytes(["a"]) == {"a": 5 * 10**8}
    with pytest.raises(ValueError, match=r"^memory_limit is \['x'\]: 'x' is not a number; give one per processor"):
        Request(memory_limit=["x"])
    request = Request(memory_limit="16,8.5")
    assert request.memory_bytes(["gpu:0", "cpu:0"]) == {"gpu:0": 16 * 10**9, "cpu:0": 85 * 10**8}
    with pytest.raises(ValueError, match="^memory_limit is '16,8.5'; write the gigabytes of each of the 3 devices"):
        request.memory_bytes(["a", "b", "c"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"devices": []}, "devices is empty"),
        ({"devices": "tpu:0"}, "devices names 'tpu:0'; write cpu:N or gpu:N"),
        ({"devices": "cpu:0,CPU:0"}, "devices names 'cpu:0' twice; name each device once, and give"),
        ({"layout": "batch", "slots": "4,x"}, "slots is '4,x'; give the number of slots of each device, such as 4"),
        ({"layout": "batch", "slots": [2, 0]}, r"slots is \[2, 0\]; give the number"),
        ({"slots": 2}, "slots is 2, but auto chooses devices, sizes and slots itself; give"),
        ({"layout": "batch", "slots": 2, "mesh_shape": "x:2;y:2"}, "slots is 2 and"),
        ({"layout": "plan.json", "slots": 2}, "slots is 2 and"),
        ({"workers": "a:1", "local_cluster": "1.0"}, "workers is 'a:1' and local_cluster '1.0'; give one of the two"),
        (
            {"workers": [1, 0.5]},
            r"workers is \[1, 0.5\]; name each one, as in \[.*\]; to start some on this machine, write",
        ),
        ({"port": 2300}, "port is 2300 without workers, which connect to it; remove it"),
        ({"port": 2300, "local_cluster": "1.0"}, "port is 2300 without workers"),
        ({"port": 65536, "workers": "a:1"}, "port is 65536; it must be from 1 to 65535"),
        ({"port": "2300", "workers": "a:1"}, "port is '2300'; it must be from 1 to 65535"),
        ({"layout": "plan.json", "list_speed": "2,1"}, "list_speed is '2,1' and layout 'plan.json': a plan has"),
        ({"mesh_shape": "a:2"}, "mesh_shape is 'a:2' and layout 'auto': it chooses all sizes; remove mesh_shape"),
        ({"layout": "even", "list_speed": "2,1"}, "list_speed is '2,1' and layout 'even', which uses no speeds"),
        (
            {"layout": "stages", "list_speed": "auto"},
            "list_speed is 'auto' and layout 'stages', which places layers and measures nothing; give one number per",
        ),
        ({"layout": "batch", "list_speed": "a:1;a:2"}, "list_speed is 'a:1;a:2': it names axis 'a' twice"),
        ({"layout": "batch", "list_speed": 3}, "list_speed is 3; give one number per device"),
        ({"layout": "batch", "measure_seconds": 5.0}, "measure_seconds is 5.0, which only layout='auto' and list"),
        ({"layout": "batch", "dense_shares": "2,1"}, "dense_shares is '2,1', which only layout='hybrid' uses"),
    ],
)
def test_mistakes(values, message):
    for are_flags in (False, True):
        with pytest.raises(ValueError, match=f"^{'--' if are_flags else ''}{message.partition(' ')[0]} ") as caught:
            Request(**values, are_flags=are_flags)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=f"^{message}"):
        Request(**values)

"""The limits of control groups: the time of cores and the memory, of this machine and of a worker's."""

import dataclasses

import pytest
from tiers import on_workers

from mtf_hetero import tf
from mtf_hetero._support import cores
from mtf_hetero.cluster import granted, worker
from mtf_hetero.cost import hardware

V1 = """32 31 0:29 / /v1/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /v1/memory rw,relatime - cgroup cgroup rw,memory
"""
V2 = "30 23 0:26 / /v2 rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
MACHINE = "MemTotal:       16000 kB\nMemFree:        8000 kB\n"


def reading(mounts, membership, files):
    texts = {"/proc/self/mountinfo": mounts, "/proc/self/cgroup": membership, "/proc/meminfo": MACHINE, **files}
    return lambda name: texts.get(name, "")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"/v2/a/b/cpu.max": "max 100000\n"}, None),
        ({"/v2/a/b/cpu.max": "max 100000\n", "/v2/a/cpu.max": "150000 100000\n"}, 1.5),
        ({"/v2/a/b/cpu.max": "20000 100000\n", "/v2/a/cpu.max": "150000 100000\n"}, 0.2),
    ],
)
def test_cores_of_version_2(files, found):
    assert granted.cores(reading(V2, "0::/a/b\n", files)) == found


@pytest.mark.parametrize(("quota", "found"), [("-1", None), ("200000", 2.0)])
def test_cores_of_version_1(quota, found):
    files = {"/v1/cpu/job/cpu.cfs_quota_us": f"{quota}\n", "/v1/cpu/job/cpu.cfs_period_us": "100000\n"}
    assert granted.cores(reading(V1, "4:memory:/other\n1:cpu,cpuacct:/job\n", files)) == found


def test_memory():
    groups = "4:memory:/job/step\n1:cpu,cpuacct:/job\n"
    assert granted.memory_bytes(reading(V1, groups, {})) == 16_384_000
    unlimited = {"/v1/memory/job/step/memory.limit_in_bytes": "9223372036854771712\n"}
    assert granted.memory_bytes(reading(V1, groups, unlimited)) == 16_384_000
    limited = {**unlimited, "/v1/memory/job/memory.limit_in_bytes": "8000000\n"}
    assert granted.memory_bytes(reading(V1, groups, limited)) == 8_000_000
    of_version_2 = {"/v2/a/memory.max": "max\n", "/v2/memory.max": "9000000\n"}
    assert granted.memory_bytes(reading(V2, "0::/a\n", of_version_2)) == 9_000_000
    assert granted.memory_bytes(lambda name: "") is None


@pytest.mark.parametrize(("quota", "flags", "threads"), [(None, [], 6), (1.5, [], 2), (1.5, ["--threads=3"], 3)])
def test_a_worker_has_as_many_threads_as_it_is_granted_cores(quota, flags, threads, monkeypatch):
    monkeypatch.setattr(granted, "cores", lambda: quota)
    monkeypatch.setattr(cores, "usable_cores", lambda: [*range(6)])
    config = worker._session_config(worker._parse(["--port=0", *flags], "worker"))
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (threads, 8)


@on_workers
def test_workers_of_a_host_share_its_memory(workers):
    here = dataclasses.replace(workers.cluster, devices=(*workers.cluster.devices, "/job:chief/task:0/device:CPU:0"))
    with tf.Graph().as_default(), tf.Session(here.target, config=here.session_config()) as session:
        limits = hardware.memory_limits(here, session)
        assert granted.reader(here.devices[1], session)("/no/such/file") == ""
    machine = granted.memory_bytes()
    assert machine is not None
    assert list(limits.values()) == [machine // 3] * 3 + [machine]

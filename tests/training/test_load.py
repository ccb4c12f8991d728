"""The load of devices, by processor time and by traces."""

import time

import pytest

from mtf_hetero import tf
from mtf_hetero.cluster import processor_time
from mtf_hetero.cost import trace
from mtf_hetero.training import load as load_lib
from mtf_hetero.training.load import DeviceLoad


def adder():
    clock = processor_time.WorkClock()
    return lambda names, lines: clock.add(processor_time.Counts.read(names, lines))


def counts(computing, busy, cores="0-1,4,6", throttled=0):
    """Return lines of Linux; `throttled` in seconds, the times of the process and of core 0 in hundredths of them."""
    process = f"7 (a (b) c) S 1 2 3 0 -1 4 5 6 7 8 {computing - 10} 10 0 0 20 0 9 0 100 0 0"
    processor = [
        "cpu  9 9 9 9",
        f"cpu0 {busy - 30} 1 2 987 654 5 6 16 0 0",
        "cpu1 0 0 0 9 9 0 0 0 0 0",
        "cpu2 9 9 9 9 9 9 9 9 9 9",
    ]
    return [
        process,
        "Name:\tcpu0 9 9",
        f"Cpus_allowed_list:\t{cores}",
        *processor,
        f"throttled_usec {throttled * 10**6}",
    ]


def test_the_time_with_work_is_the_computing_time_stretched_by_the_wait_of_the_busiest_thread():
    add = adder()
    assert add(["a", "b"], ["1000000000 0 7", "5 5 2", *counts(100, 100)]) is None
    lines = ["3000000000 1000000000 7", "2000000005 9000000005 2", *counts(500, 5000, cores="0")]
    stretched = add(["a", "b"], lines)
    assert stretched is not None
    assert stretched == pytest.approx((2 + 2) * 5.5)  # both threads computed as long; the longer wait counts
    lines = ["6000000000 4000000000 7", "3000000005 99000000005 2", *counts(900, 10000)]
    later = add(["a", "b"], lines)
    assert later == pytest.approx(stretched + (3 + 1) * 2 / 4)  # four cores


@pytest.mark.parametrize(("busy", "throttled", "seconds"), [(300, 0, 2), (400, 0, 3), (300, 3, 5), (500, 4, 6)])
def test_threads_that_wait_for_each_other_do_not_stretch_the_time(busy, throttled, seconds):
    add = adder()
    assert add(["a"], ["0 0 7", *counts(100, 100, cores="0")]) is None
    lines = ["2000000000 4000000000 7", *counts(300, busy, cores="0", throttled=throttled)]
    assert add(["a"], lines) == pytest.approx(seconds)


def test_threads_that_compute_in_turn_count_as_well_as_those_that_are_read():
    add = adder()
    assert add(["a"], ["0 0 7", *counts(100, 100)]) is None
    assert add(["a"], ["1000000000 1000000000 7", *counts(300, 9000)]) == pytest.approx(2 * 2 / 4)
    lines = ["1000001000 1900000000 7", *counts(700, 90000)]  # "a" has only woken up: its wait says nothing
    assert add(["a"], lines) == pytest.approx((2 * 2 + 4 * 2) / 4)


def test_a_quota_is_looked_for_in_both_versions_of_control_groups_and_on_all_levels():
    lines = ["7:devices:/a", "4:cpu,cpuacct:/a/b", "0::/c"]
    assert processor_time.Counts.read([], lines).groups == lines
    mounts = [
        "31 25 0:27 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices",
        "32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
        "33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    ]
    groups = "cpu,cpuacct/a/b", "cpu,cpuacct/a", "cpu,cpuacct", "unified/c", "unified"
    files = [f"/sys/fs/cgroup/{group}/cpu.stat" for group in groups]
    assert processor_time._quota_files(mounts, lines) == files


def test_this_process_counts_its_time():
    reader, begin = processor_time.OwnReader(), time.process_time()
    assert reader.read() is None
    while time.process_time() < begin + 0.1:
        pass
    assert (reader.read() or 0.0) > 0.05 / 256


def run_steps(load, count, monkeypatch, seconds=1.0, used=None):
    """Run steps of a training whose clock and processor times are made up."""
    clock = {"now": 0.0, "used": 0.0}
    monkeypatch.setattr(load_lib.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(processor_time.OwnReader, "read", lambda reader: clock["used"])
    for step in range(count):
        load.before_run(None)
        clock["now"] += seconds if used is None else used[step][0]
        clock["used"] += 0.5 * seconds if used is None else used[step][1]
        load.after_run(None, None)


def test_one_slow_step_changes_nothing(monkeypatch):
    load = DeviceLoad(["cpu:0"])
    steps = [(1.0, 0.5)] * 16
    steps[13] = (9.0, 9.0)
    run_steps(load, 16, monkeypatch, used=steps)
    assert load.options is None
    assert load.shares() == {"cpu:0": 0.5}
    assert load.measure(None) == {"step_seconds": 1.0, "busy_seconds": {"cpu:0": 0.5}, "utilization": {"cpu:0": 0.5}}


def test_samples_are_half_a_second_apart(monkeypatch):
    load, samples = DeviceLoad(["cpu:0"]), []
    load.listeners.append(samples.append)
    run_steps(load, 400, monkeypatch, seconds=1 / 128)
    assert [sample.step for sample in samples] == [6, 70, 134, 198, 262, 326, 390]
    assert {(sample.step_seconds, sample.busy_seconds["cpu:0"]) for sample in samples} == {(1 / 128, 1 / 256)}


def test_devices_that_share_a_process_are_traced(monkeypatch):
    load = DeviceLoad(["cpu:0", "cpu:1"])
    assert load.options is not None
    steps = iter([(0.2, 1.0), (0.6, 1.4), (0.6, 1.4)])  # seconds of two, in which each device computes
    monkeypatch.setattr(trace, "read", lambda metadata: ())
    monkeypatch.setattr(
        trace, "usage", lambda _, devices: {d: trace.Usage(s, 0.0, 2.0 - s) for d, s in zip(devices, next(steps))}
    )
    assert load.shares() == {}
    row = {
        "step_seconds": 2.0,
        "busy_seconds": {"cpu:0": 0.2, "cpu:1": 1.0},
        "utilization": {"cpu:0": 0.1, "cpu:1": 0.5},
    }
    assert load.measure(None) == row
    load.measure(None)
    load.measure(None)
    assert load.shares() == pytest.approx({"cpu:0": 0.3, "cpu:1": 0.7})


def test_devices_of_a_gpu_or_of_one_worker_are_traced():
    assert DeviceLoad(["worker:0/cpu:0", "worker:1/cpu:0"], ["a:1", "b:1"]).options is None
    assert DeviceLoad(["worker:0/cpu:0", "worker:0/cpu:1"], ["a:1"]).options is not None
    assert DeviceLoad(["worker:0/gpu:0", "cpu:0"], ["a:1"]).options is not None


def test_a_sample_has_the_devices_of_the_mesh_by_their_names():
    """TensorFlow's trace has other names, and none for a device that does nothing."""
    devices, metadata = ["cpu:0", "cpu:1", "cpu:2"], tf.RunMetadata()
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        products = []
        for device in devices[:2]:
            with tf.device(device):
                products.append(tf.linalg.matmul(*[tf.random.normal([300, 300])] * 2))
        load = DeviceLoad(devices)
        samples = []
        load.listeners.append(samples.append)
        session.run(products, options=load.options, run_metadata=metadata)
        load.measure(metadata)
    (sample,) = samples
    assert list(sample.busy_seconds) == devices
    assert min(sample.busy_seconds["cpu:0"], sample.busy_seconds["cpu:1"]) > 0 and sample.busy_seconds["cpu:2"] == 0

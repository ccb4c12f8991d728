"""Parts of what measures devices: links, hardware, where measurements are kept. No claim about times."""

import pytest

from mtf_hetero.cost.hardware import cache_directory, representatives
from mtf_hetero.cost.machines import Link
from mtf_hetero.cost.microbenchmarks import fit


def test_fit():
    link = fit([(n, 1e-4 + n / 1e9) for n in (1 << 10, 1 << 16, 1 << 20, 1 << 23)])
    assert link.latency_seconds == pytest.approx(1e-4, rel=1e-3)
    assert link.bytes_per_second == pytest.approx(1e9, rel=1e-3)
    assert fit([(1, 1.0), (2, 1.0)]).bytes_per_second == 1e13


@pytest.mark.parametrize(
    ("latency", "rate", "message"),
    [(-1.0, 1e9, "latency_seconds of a link is -1.0"), (0.0, 0.0, "bytes_per_second of a link is 0.0")],
)
def test_a_link_that_cannot_be(latency, rate, message):
    with pytest.raises(ValueError, match=message):
        Link(latency, rate)


def test_logical_cpus_of_a_process_are_one_cpu():
    worker = "/job:worker/task:{}/device:{}"
    devices = ["gpu:0", "gpu:1", "cpu:1", "cpu:0", *(worker.format(t, "CPU:0") for t in (0, 1))]
    found = representatives(devices)
    assert found == {device: device for device in devices} | {"cpu:0": "cpu:1"}


def test_cache_directory(tmp_path):
    assert cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "mtf_hetero"
    assert cache_directory({}).parts[-2:] == (".cache", "mtf_hetero")
    assert cache_directory({"XDG_CACHE_HOME": "relative"}) == cache_directory({})

"""The oracle on workers: what is computed does not depend on who computes it, nor on how it is sent."""

import pytest
from oracle import TOLERANCE, assert_same, one_device, run
from test_operations import PROGRAMS, layouts

from mtf_hetero import UnevenMeshImpl, collectives, tf
from mtf_hetero.cluster import LocalCluster

QUICK = ("conv2d_same", "dense", "along")


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster([1.0, 0.7, 0.3], report=lambda line: None) as entered:
        yield entered


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROGRAMS]
)
def test_operation_is_the_same_on_workers(name, cluster, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", 400)
    build, rules = PROGRAMS[name]
    reference = one_device(build)
    for layout in layouts(*rules):
        devices = [cluster.devices[pnum % len(cluster.devices)] for pnum in range(layout.size)]
        found = run(build, lambda: UnevenMeshImpl.from_layout(layout, devices), tf.float64, cluster)  # noqa: B023
        assert_same(reference, found, TOLERANCE[tf.float64])

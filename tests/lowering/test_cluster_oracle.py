"""The oracle on workers: what is computed does not depend on who computes it, nor on how it is sent."""

from operations import PROGRAMS, layouts
from oracle import TOLERANCE, assert_same, one_device, run
from tiers import few, on_workers, parametrize

from mtf_hetero import UnevenMeshImpl, tf
from mtf_hetero.mesh import collectives


@on_workers
@parametrize("name", PROGRAMS, first=["conv2d_same"])
def test_operation_is_the_same_on_workers(name, workers, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", 400)
    build, rules = PROGRAMS[name]
    reference, cluster = one_device(build), workers.cluster
    for layout in few(layouts(*rules)):
        devices = [cluster.devices[pnum % len(cluster.devices)] for pnum in range(layout.size)]
        found = run(build, lambda: UnevenMeshImpl.from_layout(layout, devices), tf.float64, cluster)  # noqa: B023
        assert_same(reference, found, TOLERANCE[tf.float64])

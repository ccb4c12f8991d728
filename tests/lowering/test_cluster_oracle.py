"""The oracle on workers: what is computed does not depend on who computes it, nor on how it is sent."""

from operations import PROGRAMS, layouts, layouts_with_zeros
from oracle import TOLERANCE, assert_same, one_device, run
from tiers import few, on_workers, parametrize

from mtf_hetero import UnevenMeshImpl, tf
from mtf_hetero.mesh import collectives

# One of each kind of message: small and large sums, largest values, halos, halos of gradients, and moved slices
SENDING = ["conv2d_same", "dense", "reductions", "softmax_loss", "conv3d_transpose", "pool2d_across", "lookup", "along"]


@on_workers
@parametrize("name", SENDING, first=["conv2d_same"])
def test_operation_is_the_same_on_workers(name, workers, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", 400)
    build, rules = PROGRAMS[name]
    reference, cluster = one_device(build), workers.cluster
    for layout in (*few(layouts(*rules), 2), *few(layouts_with_zeros(build, rules), 1)):
        devices = [cluster.devices[pnum % len(cluster.devices)] for pnum in range(layout.size)]
        found = run(build, lambda: UnevenMeshImpl.from_layout(layout, devices), tf.float64, cluster)  # noqa: B023
        assert_same(reference, found, TOLERANCE[tf.float64])

"""A step is placed again without workers that are lost, also while its first place is searched."""

import pytest

from mtf_hetero.cluster import Cluster, UnreachableWorkerError
from mtf_hetero.placement import Request, Search, placer
from mtf_hetero.placement.placer import Placer

DEVICES = ("worker:0/cpu:0", "worker:1/cpu:0", "worker:2/cpu:0")


@pytest.fixture
def placed(monkeypatch):
    """The speeds and the devices of each place that was found."""
    found = []

    def place(request, cluster, build, **options):
        if "worker:1/cpu:0" in cluster.devices and not found:
            raise UnreachableWorkerError("worker 1 (b:1): gone", {1: "b:1"})
        found.append((request.shares["all"], cluster.devices))
        return placer.Placement(cluster, None)

    monkeypatch.setattr(placer, "place", place)
    return found


def test_a_worker_that_is_lost_during_the_first_search_is_left_out(placed):
    cluster = Cluster(("a:1", "b:1", "c:1"), DEVICES)
    found = Placer(Request("batch", "4,2,1"), cluster, Search(), announces=False)
    with pytest.raises(UnreachableWorkerError):
        found(None, None)
    first = found.without([1], None, None)
    assert placed == [((4, 1), ("worker:0/cpu:0", "worker:2/cpu:0"))]
    assert found.without([], None, None) is first and len(placed) == 1


def test_speeds_stay_with_their_devices(placed):
    cluster = Cluster(("a:1", "b:1", "c:1"), DEVICES[::2])
    found = Placer(Request("batch", "4,1"), cluster, Search(), announces=False)
    first = found(None, None)
    found.without([0], None, None)
    assert placed[1] == ((1,), ("worker:2/cpu:0",))
    assert found.without([], None, None) is first

"""Place a step on the devices that a user asked for, and on those that are left after a loss."""

from collections.abc import Callable, Collection

from mtf_hetero._compat import mtf
from mtf_hetero.cluster import Cluster
from mtf_hetero.placement.placing import Placement, Search, leave_out, place
from mtf_hetero.placement.request import Request


class Placer:
    """Places a step, and places it again without some workers."""

    def __init__(self, request: Request, cluster: Cluster, search: Search, *, announces: bool) -> None:
        self._request, self._cluster, self._search, self._announces = request, cluster, search, announces
        self._first: Placement | None = None

    @property
    def has_stages(self) -> bool:
        """Return whether the batch of an imported step is to have a name in each stage."""
        return self._request.has_stages

    def __call__(self, build: Callable[[], mtf.Graph], graph: mtf.Graph) -> Placement:
        """Return where a step lies on all devices; the arguments are those of `place`."""
        self._first = place(self._request, self._cluster, build, graph=graph, search=self._search)
        self._first.report(announces=self._announces)
        return self._first

    def without(self, lost: Collection[int], build: Callable[[], mtf.Graph], graph: mtf.Graph) -> Placement:
        """Return where a step lies without some workers, by their indices; without none, where it lay first."""
        if not lost and self._first is not None:
            return self._first
        choice = None if self._first is None else self._first.choice
        kept, left, machines = leave_out(self._cluster, choice and choice.machines, lost)
        placed = place(self._request.only(kept), left, build, graph=graph, search=self._search, machines=machines)
        self._first = self._first or placed  # a worker was lost while the first layout was searched
        return placed

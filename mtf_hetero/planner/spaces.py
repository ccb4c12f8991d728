"""The cost model and the layouts of one step, for any devices; what does not depend on the devices is computed once."""

from collections.abc import Collection, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cost.machines import Machines, device_kinds
from mtf_hetero.cost.model import AXIS, Model
from mtf_hetero.cost.sample import crowd_by_kind, crowds_by_kind, crowds_for
from mtf_hetero.layout import Layout
from mtf_hetero.planner.space import MeshShape, Space


class Spaces:
    """The model and the layouts of one training step on any devices.

    Args:
      graph: mtf.Graph of a training step, on one mesh. Nothing of it is lowered.

    Raises:
      ValueError: the graph has no operation.
    """

    def __init__(self, graph: mtf.Graph) -> None:
        self._graph = graph
        self._model: Model | None = None
        self._spaces: dict[tuple, tuple[Machines, Space]] = {}

    def model(self, machines: Machines) -> Model:
        """Return the cost model of the step on some devices; like devices are priced once."""
        crowds = (crowd_by_kind(device_kinds(machines, [])),)
        if self._model is None:
            self._model = Model(self._graph, machines, crowds)
        return self._model.on(machines, crowds)

    def model_for(self, machines: Machines, layout: Layout, subsets: Sequence[Collection[int]] = ()) -> Model:
        """Return the cost model for one layout with exact sizes; see `cost.sample.crowds_for`."""
        return self.model(machines).on(machines, crowds_for(machines, layout, subsets))

    def space(self, machines: Machines, subsets: Sequence[Sequence[int]] = (), shape: MeshShape | None = None) -> Space:
        """Return the layouts on some devices, which share all that the figures do not change.

        Args:
          machines: the devices.
          subsets: as of `cost.sample.crowds_by_kind`.
          shape: (axis, count) of each mesh axis; None: a single one.
        """
        key = machines.names, tuple(map(tuple, subsets)), None if shape is None else tuple(shape)
        if key not in self._spaces:
            crowds = crowds_by_kind(machines, shape or [(AXIS, len(machines.devices))], subsets)
            self._spaces[key] = machines, Space(self.model(machines).on(machines, crowds), shape)
        known, space = self._spaces[key]
        return space if known == machines else space.on(machines)

"""Layout rules that are put together one by one, each only if no tensor of the graph forbids it."""

import collections
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.layers.lookups import split_shapes
from mtf_hetero.layout import Layout, MeshShapeLike
from mtf_hetero.lowering.loop import operations_within


def require_units(dim: mtf.Dimension, count: int, axis: str) -> None:
    """Raises ValueError where a dimension that is to be split has fewer units than its mesh axis has processors."""
    if dim.size < count:
        raise ValueError(
            f"dimension {dim.name!r} of size {dim.size} cannot be split over the {count} processors of mesh axis "
            f"{axis!r}: each processor needs one unit; use fewer processors, or do not split this dimension"
        )


class Rules:
    """The rules of one mesh axis for one graph.

    Args:
      graph: mtf.Graph.
      mesh_shape: mesh axes and their sizes, as in Layout.
      shares: {mesh axis: one positive weight per coordinate}, as in Layout.
      axis: the mesh axis to split over; None: the first.

    Raises:
      ValueError: the mesh has no such axis, or the shares do not fit it.
    """

    def __init__(
        self,
        graph: mtf.Graph,
        mesh_shape: MeshShapeLike,
        shares: Mapping[str, Sequence[float]] | None,
        axis: str | None,
    ) -> None:
        self._empty = Layout(mesh_shape, (), shares or ())
        sizes = dict(self._empty.mesh_shape)
        if not sizes:
            raise ValueError("the mesh has no axis; give a mesh shape such as 'all:3'")
        if axis is not None and axis not in sizes:
            raise ValueError(f"axis is {axis!r}, which the mesh {self._empty.mesh_text} does not have")
        self.axis = next(iter(sizes)) if axis is None else axis
        self.count = sizes[self.axis]
        self.names: set[str] = set()
        self._dims_of: dict[str, set[mtf.Dimension]] = collections.defaultdict(set)
        self._neighbours: dict[str, set[str]] = collections.defaultdict(set)
        self._whole: set[str] = set()
        for op in operations_within(graph.operations):
            self._whole |= op.unsplittable_dims
            for shape in split_shapes(op):
                names = set(shape.dimension_names)
                for dim in shape.dims:
                    self._dims_of[dim.name].add(dim)
                    self._neighbours[dim.name] |= names - {dim.name}

    def is_large_enough(self, name: str) -> bool:
        """Whether every processor would get a unit of the dimension, wherever it occurs."""
        return all(dim.size >= self.count for dim in self._dims_of[name])

    def allow(self, names: Iterable[str]) -> bool:
        """Whether all these dimensions can be split, beside those that are: no tensor is split twice over the axis."""
        new = set(names) - self.names
        split = self.names | new
        return all(
            name not in self._whole and self.is_large_enough(name) and not self._neighbours[name] & split
            for name in new
        )

    def keep_whole(self, names: Iterable[str]) -> None:
        """Lets nothing split these dimensions any more."""
        self._whole |= set(names)

    def add(self, names: Iterable[str]) -> None:
        """Splits these dimensions."""
        self.names |= set(names)

    def require(self, name: str) -> None:
        """Raises ValueError where a dimension that is to be split has fewer units than the axis has processors."""
        for dim in self._dims_of[name]:
            require_units(dim, self.count, self.axis)

    def layout(self) -> Layout:
        """The layout with these rules."""
        pairs = [(name, self.axis) for name in self.names]
        return Layout(self._empty.mesh_shape, pairs, self._empty.shares)

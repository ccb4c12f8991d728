"""Collect layout rules one by one, each only if no tensor of the graph forbids it."""

from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph.names import conflicts, dimension_sizes, unsplittable
from mtf_hetero.graph.walk import within
from mtf_hetero.layout import Layout
from mtf_hetero.layout.convert import MeshShapeLike


def require_units(dim: mtf.Dimension, count: int, axis: str) -> None:
    """Raise ValueError if a dimension to split has fewer units than its mesh axis has processors."""
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
        self._sizes = dimension_sizes(within(graph.operations))
        self._conflicts, self._unsplit = conflicts(graph.operations), unsplittable(graph.operations)

    def is_large_enough(self, name: str) -> bool:
        """Return whether every processor would get a unit of the dimension in each tensor."""
        return all(size >= self.count for size in self._sizes.get(name, ()))

    def allow(self, names: Iterable[str]) -> bool:
        """Return whether all these dimensions can be split too, so that no tensor is split twice over the axis."""
        new = set(names) - self.names
        split = self.names | new
        return all(
            name not in self._unsplit and self.is_large_enough(name) and not self._conflicts[name] & split
            for name in new
        )

    def keep_whole(self, names: Iterable[str]) -> None:
        """Exclude these dimensions from later splits."""
        self._unsplit |= set(names)

    def add(self, names: Iterable[str]) -> None:
        """Split these dimensions."""
        self.names |= set(names)

    def require(self, name: str) -> None:
        """Raise ValueError if a dimension to split has fewer units than the axis has processors."""
        for size in self._sizes.get(name, ()):
            require_units(mtf.Dimension(name, size), self.count, self.axis)

    def layout(self) -> Layout:
        """Return the layout with these rules."""
        pairs = [(name, self.axis) for name in self.names]
        return Layout(self._empty.mesh_shape, pairs, self._empty.shares)

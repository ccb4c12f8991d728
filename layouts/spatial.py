"""Spatial partitioning: the depth, height or width of each example by share, and the batch over another mesh axis.

The scheme of Oyama et al. (IEEE TPDS 32(7), 2021), for any graph of convolutions and pools, 2D or 3D. A dimension of
the images is split under each name that it has in a convolution or pool. Two conditions hold: every processor's part
is at least as large as the halo of half a window, and the map is large enough to be worth the exchanges. Small feature
maps and the inputs of dense layers are replicated. A model with a name per layer (`conv1/depth`) is split up to such a
layer. A model with one name is split in all layers or in none.

Dense layers with their own name for the batch are data-parallel: each processor computes its share of the examples. A
convolution of a small map, or a dense layer for a single example, is then still replicated. If it has many weights, its
filters and channels are split, as in layouts/filters.py.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph import list_layers
from mtf_hetero.graph.names import Renames, conflicts, dimension_names, dimension_sizes, names_in_variables
from mtf_hetero.graph.walk import imported
from mtf_hetero.layout import Layout
from mtf_hetero.layout.convert import MeshShapeLike
from mtf_hetero.layouts.filters import alternate
from mtf_hetero.layouts.rules import Rules, require_units
from mtf_hetero.ops.pool import ForwardPool
from mtf_hetero.ops.traits import find_images, find_traits

BATCH_AXES = ("batch", "data")  # a mesh axis with such a name splits the batch
LEAST_VALUES = 2048  # per channel, of all examples: for fewer, an exchange costs more time than it saves
LEAST_WEIGHTS = 2**17  # with about as many or more, a replicated kernel costs more time than an exchange


def spatial(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
    dims: Mapping[str, str] | None = None,
    least_values: int = LEAST_VALUES,
) -> Layout:
    """Split spatial dimensions, each over a mesh axis.

    The images are the largest imported tensor that is convolved or pooled, or the largest tensor if no imported one is.

    Args:
      graph: mtf.Graph, with or without its gradients.
      mesh_shape: mesh axes and their sizes, "depth:4" or "batch:2;depth:4".
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is split evenly.
      axis: the only mesh axis to split over; None: all of them.
      dims: {mesh axis: dimension of the images}. None: an axis called "batch" or "data" splits the batch, an axis with
        the name of a spatial dimension splits that one, and the others split the rest in their order.
      least_values: values per channel, of all examples, that a dimension's largest map needs for a split.

    Raises:
      ValueError: the graph convolves no tensor, a mesh axis has no dimension that can be split, or no layer
        is large enough for the mesh.

    Example:
      >>> layout = spatial(graph, mesh_shape="batch:2;depth:3", shares={"depth": [2, 1, 1]})  # volumes of 128^3
      >>> layout.split("conv1/depth", 128), layout.split("conv4/depth", 8), layout.split("conv6/filters", 256)
      ((64, 32, 32), (4, 2, 2), (128, 64, 64))
    """
    mesh = Layout(mesh_shape, (), shares or ())
    Rules(graph, mesh_shape, shares, axis)  # raises if the axis and the mesh do not fit
    names = _Names(graph, mesh, least_values)
    assigned = _assigned(names, mesh, axis, dims)
    for mesh_axis, dim in assigned.items():
        names.add(dim, mesh_axis)
        names.require(dim, mesh_axis)
    for mesh_axis, dim in assigned.items():
        if dim in names.spatial:
            names.add_examples(mesh_axis)
            names.add_filters(graph, mesh_axis)
    return Layout(mesh.mesh_shape, names.rules, mesh.shares)


class _Names:
    """The names of dimensions in a graph, and the splits of them.

    Args:
      graph: mtf.Graph.
      mesh: a Layout without rules.
      least_values: least values per channel for a split.

    Attributes:
      rules: {name: mesh axis}.
      images: shape of the images.
      spatial: names of the images' dimensions over which windows pass.
      batch: names of the dimensions before the spatial ones.
    """

    def __init__(self, graph: mtf.Graph, mesh: Layout, least_values: int) -> None:
        self.rules: dict[str, str] = {}
        self._mesh = mesh
        self._halos: dict[tuple[str, int], int] = {}
        self._values: dict[str, int] = collections.defaultdict(int)
        self._least_values = least_values
        self._alike: dict[str, tuple[str, ...]] = {}  # spatial dimensions of maps that count as one of the images'
        self._renames = Renames(graph.operations)
        self._extents, self._conflicts = dimension_sizes(graph.operations), conflicts(graph.operations)
        whole: set[str] = set()
        for op in graph.operations:
            for shape in (tensor.shape for tensor in op.outputs):
                for name in shape.dimension_names:
                    self._values[name] = max(self._values[name], shape.size // shape.dims[-1].size)
            for name, extent, size in _windows(op):
                self._halos[name, extent] = max(self._halos.get((name, extent), 0), size // 2)
            if isinstance(op, mtf.SlicewiseOperation):
                whole |= op.unsplittable_dims
        self._windowed = dict.fromkeys(name for name, _ in self._halos)
        self._in_kernels = names_in_variables(graph) - set(self._windowed)
        self._unsplit = whole | self._in_kernels
        self.images, self.spatial = self._find_images(graph)
        self.batch = self.images.dimension_names[: self.images.dimension_names.index(self.spatial[0])]

    def _find_images(self, graph: mtf.Graph) -> tuple[mtf.Shape, list[str]]:
        candidates = []
        for shape in imported(graph):
            spatial = [name for name in shape.dimension_names if self._windowed_names(name)]
            candidates += [(shape, spatial)] if spatial else []
        return max(candidates, key=lambda pair: pair[0].size) if candidates else self._find_maps(graph)

    def _find_maps(self, graph: mtf.Graph) -> tuple[mtf.Shape, list[str]]:
        """Return the largest map, where windows pass over none of the images: a padding gives dimensions other names.

        The first spatial dimensions of all maps count as one, and so do the second ones.
        """
        windows = {op: [name for name, _, _ in _windows(op)] for op in graph.operations}
        maps = [(op.inputs[0].shape, spatial) for op, spatial in windows.items() if spatial]
        if not maps:
            raise ValueError("the graph convolves or pools no tensor; choose another layout")
        largest, names = max(maps, key=lambda pair: pair[0].size)
        for number, name in enumerate(names):
            alike = (spatial[number] for _, spatial in maps if len(spatial) == len(names))
            self._alike[name] = tuple(dict.fromkeys([name, *alike]))
        return largest, names

    def _later_names(self, origin: str) -> list[str]:
        names = (name for other in self._alike.get(origin, (origin,)) for name in self._renames.later_names(other))
        return [*dict.fromkeys(names)]

    def _windowed_names(self, origin: str) -> list[str]:
        return [name for name in self._later_names(origin) if name in self._windowed]

    def add(self, origin: str, axis: str) -> None:
        """Split a dimension of the images over a mesh axis, under each name that can be split and is worth it."""
        for least_values in (self._least_values, 1):
            for name in self._later_names(origin):
                if name not in self._windowed or self._values[name] >= least_values:
                    self._split(name, axis)
            if any(self.rules.get(name) == axis for name in self._windowed_names(origin)):
                return  # otherwise all maps are small, and are split still

    def add_examples(self, axis: str) -> None:
        """Split the batch over a mesh axis of space, under the names that only dense layers have."""
        in_maps = {name for origin in self.spatial for name in self._later_names(origin)} - self._in_kernels
        for origin in self.batch:
            for name in self._renames.later_names(origin):
                if not self._conflicts[name] & in_maps:
                    self._split(name, axis)

    def _split(self, name: str, axis: str) -> None:
        """Split a dimension if no operation forbids it."""
        if name not in self.rules and self._is_free(name, axis) and self._is_large_enough(name, axis):
            self.rules[name] = axis

    def add_filters(self, graph: mtf.Graph, axis: str) -> None:
        """Split the filters and channels of large layers without a split over a mesh axis."""
        rules = Rules(graph, self._mesh.mesh_shape, dict(self._mesh.shares), axis)
        rules.add(name for name, other in self.rules.items() if other == axis)
        rules.keep_whole(self.rules)
        whole = [
            layer
            for layer in list_layers(graph)
            if layer.weights >= LEAST_WEIGHTS and rules.names.isdisjoint(dimension_names(layer.operation))
        ]
        alternate(rules, whole)
        self.rules |= {name: axis for name in rules.names if name not in self.rules}

    def require(self, origin: str, axis: str) -> None:
        """Raise ValueError unless a dimension of the images is split in a layer that matters."""
        (dim,) = (dim for dim in self.images.dims if dim.name == origin)
        require_units(dim, dict(self._mesh.mesh_shape)[axis], axis)
        needed = self._windowed_names(origin) or [origin]
        if any(self.rules.get(name) == axis for name in needed):
            return
        name = max(needed, key=lambda name: min(self._extents[name]))
        halo = max((halo for (other, _), halo in self._halos.items() if other == name), default=0)
        raise ValueError(
            f"dimension {name!r} shrinks to {min(self._extents[name])} units, too few for the "
            f"{dict(self._mesh.mesh_shape)[axis]} processors of mesh axis {axis!r} and a halo of {halo}; use fewer "
            "processors, or give this dimension another name in each layer"
        )

    def _split_alone(self, name: str, axis: str) -> Layout:
        return Layout(self._mesh.mesh_shape, [(name, axis)], self._mesh.shares)

    def _is_free(self, name: str, axis: str) -> bool:
        """Return whether no operation needs the dimension unsplit, and no tensor with it is split over the axis."""
        return name not in self._unsplit and all(self.rules.get(other) != axis for other in self._conflicts[name])

    def _is_large_enough(self, name: str, axis: str) -> bool:
        """Return whether every part of the dimension, in each tensor, is as large as the halo."""
        layout = self._split_alone(name, axis)
        count = dict(self._mesh.mesh_shape)[axis]
        return all(
            extent >= count and min(layout.split(name, extent)) >= self._halos.get((name, extent), 0)
            for extent in self._extents[name]
        )


def _windows(op: mtf.Operation) -> Iterator[tuple[str, int, int]]:
    """Yield name and extent of each dimension over which windows of an operation pass, and the windows' size."""
    images = find_images(op)
    if images is not None and (find_traits(op).is_layer or isinstance(op, ForwardPool)):
        for dim, size in zip(images.space(op.inputs[0]), images.sizes, strict=True):
            yield dim.name, dim.size, size


def _assigned(names: _Names, mesh: Layout, axis: str | None, dims: Mapping[str, str] | None) -> dict[str, str]:
    """Return {mesh axis: dimension of the images}."""
    axes = [name for name, _ in mesh.mesh_shape] if axis is None else [axis]
    if dims is None:
        data = [name for name in axes if name in BATCH_AXES][:1] if names.batch else []
        others = [name for name in axes if name not in data]
        if not 1 <= len(others) <= len(names.spatial):
            raise ValueError(
                f"the spatial dimensions {', '.join(names.spatial)} of the images need one to {len(names.spatial)} "
                f"mesh axes, but the mesh has {', '.join(others) or 'none'} for them; change the mesh shape"
            )
        named = {name: name for name in others if name in names.spatial}
        left = [name for name in names.spatial if name not in named]
        in_turn = zip((name for name in others if name not in named), left, strict=False)
        return dict(zip(data, names.batch, strict=False)) | named | dict(in_turn)
    possible = [*names.batch, *names.spatial]
    for name, dim in dims.items():
        if name not in axes or dim not in possible:
            raise ValueError(
                f"dims map mesh axis {name!r} to dimension {dim!r}; the axes are {', '.join(axes)}, and the dimensions "
                f"that can be split are {', '.join(possible)}"
            )
    if len(set(dims.values())) != len(dims):
        raise ValueError(f"dims are {dict(dims)}; give each mesh axis another dimension")
    return dict(dims)

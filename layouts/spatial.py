"""Spatial partitioning: the depth, height or width of each example by share, and the batch over another mesh axis.

The scheme of Oyama et al. (IEEE TPDS 32(7), 2021), for any graph of convolutions and pools, 2D or 3D. A dimension of
the images is split under each name that it has in a convolution or pool, so long as every processor's part is no
smaller than the halo that half a window reaches into, and the map is large enough to be worth the exchanges. Elsewhere
it is whole: from where the feature map is too small, and where a dense layer takes it. A model whose layers have names
of their own for it (`conv1/depth`) is split up to there; under one name throughout, it is split throughout or not at
all.

Dense layers that give the batch a name of their own are data-parallel: each processor takes its share of the examples
that are left to it. What is then still whole, a convolution of a small map or a dense layer for a single example, costs
what its weights cost: where there are many, its filters and channels are split, as in layouts/filters.py.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence

from mtf_hetero import layers
from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout, MeshShapeLike
from mtf_hetero.layouts import anatomy
from mtf_hetero.layouts.filters import alternate
from mtf_hetero.layouts.rules import Rules, require_units

BATCH_AXES = ("batch", "data")  # a mesh axis of such a name takes the batch
LEAST_VALUES = 2048  # per channel, of all examples: below, an exchange takes longer than the part that it saves
LEAST_WEIGHTS = 2**17  # from about as many on, a kernel that is whole everywhere takes longer than an exchange


def spatial(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
    dims: Mapping[str, str] | None = None,
    least_values: int = LEAST_VALUES,
) -> Layout:
    """Splits spatial dimensions, each over a mesh axis.

    The images are the largest imported tensor that is convolved or pooled.

    Args:
      graph: mtf.Graph, with or without its gradients.
      mesh_shape: mesh axes and their sizes, "depth:4" or "batch:2;depth:4".
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.
      axis: the only mesh axis to split over; None: all of them.
      dims: {mesh axis: dimension of the images}. None: an axis called "batch" or "data" takes the batch, one called as
        a spatial dimension takes that, and the others take those that are left in their order.
      least_values: values per channel, of all examples, that the largest map of a dimension's name must have for that
        to be split.

    Raises:
      ValueError: the graph convolves no imported tensor, a mesh axis has no dimension or one that cannot be split, or
        no layer is large enough for the mesh.

    Example:
      >>> layout = spatial(graph, mesh_shape="batch:2;depth:3", shares={"depth": [2, 1, 1]})  # volumes of 128^3
      >>> layout.split("conv1/depth", 128), layout.split("conv4/depth", 8), layout.split("conv6/filters", 256)
      ((64, 32, 32), (4, 2, 2), (128, 64, 64))
    """
    mesh = Layout(mesh_shape, (), shares or ())
    Rules(graph, mesh_shape, shares, axis)  # raises where the axis and the mesh do not fit
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
    """The names of dimensions in a graph, and which of them are split.

    Args:
      graph: mtf.Graph.
      mesh: a Layout without rules.
      least_values: values per channel from which on a dimension is split.

    Attributes:
      rules: {name: mesh axis}.
      images: shape of the images.
      spatial: names of the images' dimensions over which windows pass.
      batch: names of those before them.
    """

    def __init__(self, graph: mtf.Graph, mesh: Layout, least_values: int) -> None:
        self.rules: dict[str, str] = {}
        self._mesh = mesh
        self._extents: dict[str, set[int]] = collections.defaultdict(set)
        self._neighbours: dict[str, set[str]] = collections.defaultdict(set)
        self._halos: dict[tuple[str, int], int] = {}
        self._values: dict[str, int] = collections.defaultdict(int)
        self._least_values = least_values
        self._sources = anatomy.renames(graph.operations)
        whole: set[str] = set()
        for op in graph.operations:
            for tensor in op.outputs:
                dims = set(tensor.shape.dimension_names)
                for dim in tensor.shape.dims:
                    self._extents[dim.name].add(dim.size)
                    values = tensor.shape.size // tensor.shape.dims[-1].size
                    self._values[dim.name] = max(self._values[dim.name], values)
                    self._neighbours[dim.name] |= dims - {dim.name}
            for name, extent, size in _windows(op):
                self._halos[name, extent] = max(self._halos.get((name, extent), 0), size // 2)
            if isinstance(op, mtf.SlicewiseOperation):
                whole |= op.unsplittable_dims
        self._windowed = dict.fromkeys(name for name, _ in self._halos)
        in_variables = {name for variable in graph.all_variables for name in variable.shape.dimension_names}
        self._in_kernels = in_variables - set(self._windowed)
        self._whole = whole | self._in_kernels
        self.images, self.spatial = self._find_images(graph)
        self.batch = self.images.dimension_names[: self.images.dimension_names.index(self.spatial[0])]

    def _find_images(self, graph: mtf.Graph) -> tuple[mtf.Shape, list[str]]:
        candidates = []
        for op in graph.operations:
            if isinstance(op, (mtf.ImportOperation, mtf.ImportLaidOutTensorOperation)):
                shape = op.outputs[0].shape
                spatial = [name for name in shape.dimension_names if self._windowed_names(name)]
                candidates += [(shape, spatial)] if spatial else []
        if not candidates:
            raise ValueError("the graph convolves or pools no imported tensor; choose another layout")
        return max(candidates, key=lambda pair: pair[0].size)

    def _names_of(self, origin: str) -> list[str]:
        """The name of a dimension of the images, and those that it is given later."""
        later = [new for new in self._sources if anatomy.path_from(new, {origin}, self._sources) is not None]
        return list(dict.fromkeys([origin, *later]))

    def _windowed_names(self, origin: str) -> list[str]:
        return [name for name in self._names_of(origin) if name in self._windowed]

    def add(self, origin: str, axis: str) -> None:
        """Splits a dimension of the images over a mesh axis, under each of its names that can be and is worth it."""
        for least_values in (self._least_values, 1):
            for name in self._names_of(origin):
                if name not in self._windowed or self._values[name] >= least_values:
                    self._split(name, axis)
            if any(self.rules.get(name) == axis for name in self._windowed_names(origin)):
                return  # otherwise all maps are small, and still to be split

    def add_examples(self, axis: str) -> None:
        """Splits the batch over a mesh axis of space, under those of its names that only dense layers have."""
        in_maps = {name for origin in self.spatial for name in self._names_of(origin)} - self._in_kernels
        for origin in self.batch:
            for name in self._names_of(origin):
                if not self._neighbours[name] & in_maps:
                    self._split(name, axis)

    def _split(self, name: str, axis: str) -> None:
        """Splits a dimension where nothing forbids it."""
        if name not in self.rules and self._is_free(name, axis) and self._is_large_enough(name, axis):
            self.rules[name] = axis

    def add_filters(self, graph: mtf.Graph, axis: str) -> None:
        """Splits the filters and channels of large layers in which nothing is split over a mesh axis."""
        rules = Rules(graph, self._mesh.mesh_shape, dict(self._mesh.shares), axis)
        rules.add(name for name, other in self.rules.items() if other == axis)
        rules.keep_whole(self.rules)
        whole = [
            layer
            for layer in anatomy.layers(graph)
            if layer.weights >= LEAST_WEIGHTS and rules.names.isdisjoint(layer.names)
        ]
        alternate(rules, whole)
        self.rules |= {name: axis for name in rules.names if name not in self.rules}

    def require(self, origin: str, axis: str) -> None:
        """Raises ValueError unless a dimension of the images is split where it matters."""
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
        """Whether nothing needs the dimension whole, and no tensor that has it is split over the axis already."""
        return name not in self._whole and all(self.rules.get(other) != axis for other in self._neighbours[name])

    def _is_large_enough(self, name: str, axis: str) -> bool:
        """Whether every part of the dimension, wherever it occurs, is as large as the halo."""
        layout = self._split_alone(name, axis)
        count = dict(self._mesh.mesh_shape)[axis]
        return all(
            extent >= count and min(layout.split(name, extent)) >= self._halos.get((name, extent), 0)
            for extent in self._extents[name]
        )


def _windows(op: mtf.Operation) -> Iterator[tuple[str, int, int]]:
    """Name and extent of each dimension over which windows of a convolution or pool pass, and the windows' size."""
    if isinstance(op, anatomy.CONVOLUTIONS):
        sizes = [dim.size for dim in op.inputs[1].shape.dims[:-2]]
    elif isinstance(op, layers.PoolOperation):
        sizes = op.windows.sizes
    elif isinstance(op, mtf.PoolOperation):
        sizes = op._ksize
    else:
        return
    dims = op.inputs[0].shape.dims[-len(sizes) - 1 : -1]
    for dim, size in zip(dims, sizes, strict=True):
        yield dim.name, dim.size, size


def _assigned(names: _Names, mesh: Layout, axis: str | None, dims: Mapping[str, str] | None) -> dict[str, str]:
    """{mesh axis: dimension of the images}."""
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

"""The mesh of a run, the dimensions of its batch, and the layout that a recipe or the user's rules make."""

from collections.abc import Sequence

from mtf_hetero import Layout, mtf
from mtf_hetero._support import graphs
from mtf_hetero.layout import convert_to_mesh_shape
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.layouts.hybrid import batch_sizes, member_sizes
from mtf_hetero.lowering import names
from mtf_hetero.models.train.config import AUTO, HYBRID, SPATIAL, Config, parse_list_speed, parse_shares
from mtf_hetero.models.train.program import IMAGE
from mtf_hetero.planner.plan import Plan


def make_mesh(config: Config, devices: tuple[str, ...]) -> Layout:
    """A layout of the mesh and the shares, without rules."""
    mesh_shape = convert_to_mesh_shape(config.mesh_shape or f"all:{len(devices)}")
    if not mesh_shape:
        raise ValueError(f"--mesh_shape is {config.mesh_shape!r}, which has no axis; write one such as all:3")
    shares = {} if config.list_speed in (None, AUTO) else parse_list_speed(config.list_speed, mesh_shape[0][0])
    layout = Layout(mesh_shape, (), shares)
    if layout.size != len(devices):
        raise ValueError(
            f"mesh {layout.mesh_text} has {layout.size} processors, but there are {len(devices)} devices, "
            f"{','.join(devices)}; give one device per processor with --devices, or another --mesh_shape"
        )
    return layout


def check_axes(config: Config, image_shape: Sequence[int]) -> None:
    """Raises ValueError where --layout=spatial has a mesh axis called as a dimension that the images do not have."""
    if config.layout != SPATIAL or config.mesh_shape is None:
        return
    own = IMAGE[-len(image_shape) :]
    for axis, _ in convert_to_mesh_shape(config.mesh_shape):
        if axis in IMAGE[:-1] and axis not in own:
            raise ValueError(
                f"--mesh_shape is {config.mesh_shape!r} and --layout {SPATIAL!r}, but the images of {config.dataset} "
                f"have no {axis} to split; name the axis {' or '.join(own[:-1])}"
            )


def divide_batch(config: Config, empty: Layout) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Sizes of the batch's dimensions, and of the parts of its last one that pass the dense layers in turn."""
    if config.layout != HYBRID:
        return (config.batch_size,), None
    sizes = batch_sizes(config.batch_size, empty.mesh_shape, dict(empty.shares))
    if not config.dense_rounds:
        return sizes, None
    return sizes, member_sizes(sizes, empty.mesh_shape, dict(empty.shares))


def make_layout(config: Config, graph: mtf.Graph, empty: Layout) -> Layout:
    """The layout that a recipe or the user's rules make for a graph."""
    if ":" in config.layout:
        layout = Layout(empty.mesh_shape, config.layout, empty.shares)
    else:
        dense_shares = config.dense_shares
        options = {} if dense_shares is None else {"dense_shares": parse_shares(dense_shares, "dense_shares")}
        layout = LAYOUTS[config.layout](graph, mesh_shape=empty.mesh_shape, shares=dict(empty.shares), **options)
    try:
        names.check(layout, graphs.mtf_sizes(graph))
    except ValueError as error:
        raise ValueError(f"--layout is {config.layout!r}: {error}") from error
    for axis, count in layout.mesh_shape:
        if count > 1 and axis not in dict(layout.rules).values():
            raise ValueError(
                f"mesh axis {axis!r} is used by no rule of layout {config.layout!r}; drop it from --mesh_shape, or "
                "give rules that split a dimension over it"
            )
    _check_tensors(graph, layout)
    used = {layout.axis_name_of(mtf.Dimension(*dim)) for dim in split_dims(graph, layout)}
    for axis, count in layout.mesh_shape:
        if count > 1 and axis not in used:
            small = ", ".join(repr(dim) for dim, other in layout.rules if other == axis)
            raise ValueError(
                f"--layout is {config.layout!r}, but {small} cannot be split over the {count} processors of mesh axis "
                f"{axis!r}: each needs at least one unit; use fewer processors or split another dimension"
            )
    return layout


def planned_layout(plan: Plan, graph: mtf.Graph, devices: tuple[str, ...]) -> Layout:
    """The layout of a plan, which has to be for this graph and these devices."""
    plan.check((dim for shape in graphs.mtf_shapes(graph) for dim in shape), devices)
    _check_tensors(graph, plan.layout)
    return plan.layout


def _check_tensors(graph: mtf.Graph, layout: Layout) -> None:
    """Raises ValueError where the layout cannot hold a tensor of the graph."""
    for shape in graphs.mtf_shapes(graph):
        layout.check(shape)


def split_dims(graph: mtf.Graph, layout: Layout) -> tuple[tuple[str, int], ...]:
    """The dimensions of a graph that a layout splits, as (name, size)."""
    dims = [mtf.Dimension(name, size) for name, sizes in graphs.mtf_sizes(graph).items() for size in sizes]
    return tuple((dim.name, dim.size) for dim in dims if layout.axis_of(dim) is not None)


def described(dims: Sequence[tuple[str, int]], layout: Layout) -> list[tuple[str, str]]:
    """How dimensions are divided, as (name, description).

    Each layer has a name of its own for a dimension of the images, "conv1/batch": where it is divided as the images'
    own of its size would be, it is described once, as "batch".

    Args:
      dims: those that the layout splits, as (name, size).
      layout: the layout.
    """
    rows = []
    for name, size in dims:
        own = name.rpartition("/")[2]
        alike = layout.axis_of(own) == layout.axis_of(name) and layout.split(own, size) == layout.split(name, size)
        parts = ", ".join(str(part) for part in layout.split(name, size))
        rows.append((own if alike else name, f"{size:6} over {layout.axis_name_of(name)}: {parts}"))
    return list(dict.fromkeys(rows))

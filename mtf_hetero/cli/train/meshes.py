"""The dimensions of a run's batch on a mesh, and how split dimensions are described."""

from collections.abc import Sequence

from mtf_hetero.cli.train.config import SPATIAL, Config
from mtf_hetero.cli.train.program import IMAGE
from mtf_hetero.layout import Layout
from mtf_hetero.layout.convert import convert_to_mesh_shape
from mtf_hetero.layouts.hybrid import batch_sizes, member_sizes


def check_axes(config: Config, image_shape: Sequence[int]) -> None:
    """Raise ValueError if --layout=spatial has a mesh axis with the name of a dimension that the images lack."""
    if config.layout != SPATIAL or config.mesh_shape is None:
        return
    own = IMAGE[-len(image_shape) :]
    for axis, _ in convert_to_mesh_shape(config.mesh_shape):
        if axis in IMAGE[:-1] and axis not in own:
            raise ValueError(
                f"--mesh_shape is {config.mesh_shape!r} and --layout {SPATIAL!r}, but the images of {config.dataset} "
                f"have no {axis} to split; name the axis {' or '.join(own[:-1])}"
            )


def divide_batch(config: Config, empty: Layout, *, is_hybrid: bool) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the sizes of the batch's dimensions, and of the last one's parts that pass the dense layers in turn."""
    if not is_hybrid:
        return (config.batch_size,), None
    sizes = batch_sizes(config.batch_size, empty.mesh_shape, dict(empty.shares))
    if not config.dense_rounds:
        return sizes, None
    return sizes, member_sizes(sizes, empty.mesh_shape, dict(empty.shares))


def describe_splits(dims: Sequence[tuple[str, int]], layout: Layout) -> list[tuple[str, str]]:
    """Describe the splits of dimensions, given as (name, size), as (name, description).

    Each layer has its own name for a dimension of the images, "conv1/batch". Layers that split it like the images'
    dimension of that size are described once, as "batch".
    """
    rows = []
    for name, size in dims:
        own = name.rpartition("/")[2]
        alike = layout.axis_of(own) == layout.axis_of(name) and layout.split(own, size) == layout.split(name, size)
        parts = ", ".join(str(part) for part in layout.split(name, size))
        rows.append((own if alike else name, f"{size:6} over {layout.axis_name_of(name)}: {parts}"))
    return list(dict.fromkeys(rows))

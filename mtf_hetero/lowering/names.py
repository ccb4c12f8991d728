"""Layout rules and sizes whose dimensions no tensor of a graph has: refused, reported or dropped.

Mesh-TensorFlow's own programs share one string of rules among models, modes and meshes: the default of its Transformer,
"ensemble:ensemble,batch:batch,d_ff:model,heads:model,vocab:model,experts:batch", names dimensions and axes that most of
its models lack. So `Lowering` refuses only what is most likely a mistake, and reports the rest in one line. A layout
for one graph alone, such as that of `mtf_hetero.keras.fit` or of a plan's file, is held to its names.
"""

from collections.abc import Collection

from mtf_hetero._support.names import absent_axis, listing, nearest
from mtf_hetero.layout import Layout


def check(layout: Layout, dim_names: Collection[str], splittable: Collection[str]) -> None:
    """Raise ValueError where a rule names no dimension of a graph, or no axis: for a layout of this graph alone.

    Args:
      layout: the layout.
      dim_names: names of the dimensions of the graph's tensors.
      splittable: those of them that may be split, which an error lists.
    """
    axes = [axis for axis, _ in layout.mesh_shape]
    for dim, axis in layout.rules:
        if dim not in dim_names:
            _refuse(dim, axis, splittable)
        if axis not in axes:
            raise ValueError(absent_axis(f"layout rule {dim}:{axis} names", axis, axes, layout.mesh_text))


def check_shared(layout: Layout, dim_names: Collection[str]) -> tuple[str, ...]:
    """Raise ValueError where a rule is most likely a mistake: for a layout that may be for other graphs as well.

    That is a name that is nearly one of the graph's, which no rule names.

    Args:
      layout: as of `check`.
      dim_names: likewise.

    Returns:
      The rules without effect, "dimension:axis".
    """
    axes = {axis for axis, _ in layout.mesh_shape}
    idle = [rule for rule in layout.rules if rule[0] not in dim_names or rule[1] not in axes]
    free = set(dim_names) - {dim for dim, _ in layout.rules}
    for dim, axis in idle:
        if dim not in dim_names and nearest(dim, free):
            _refuse(dim, axis, dim_names)
    return tuple(f"{dim}:{axis}" for dim, axis in idle)


def keep(layout: Layout, dim_names: Collection[str]) -> Layout:
    """Return a layout that was checked for one graph, for another one: without the dimensions that this one lacks.

    A test has no gradients, a prediction no targets, and a layout may split dimensions of these.
    """
    if all(dim in dim_names for dim, _ in layout.rules):
        return layout
    rules = [rule for rule in layout.rules if rule[0] in dim_names]
    sizes = [item for item in layout.sizes if item[0] in dim_names]
    return Layout(layout.mesh_shape, rules, layout.shares, sizes, layout.slots)


def _refuse(dim: str, axis: str, dim_names: Collection[str]) -> None:
    raise ValueError(
        f"layout rule {dim}:{axis} names dimension {dim!r}, which no tensor of the graph has; the dimensions are "
        f"{listing(dim, dim_names)}"
    )

"""All ways to divide a small network, layer by layer: what a plan for it can be compared with."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from mtf_hetero import Layout, mtf
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.model import Model
from mtf_hetero.graph import roles
from mtf_hetero.planner.space import Menus, Space, Split

ONE = "one device"


def every_way(graph: mtf.Graph, machines: Machines) -> dict[str, Layout]:
    """{"conv1 batch, conv2 outputs, ...": layout}, of all that can be: each layer by each of its product's dimensions.

    A layer may be the fastest device's alone, too. What has no product of its own, a pool or the loss, is divided as
    the layer before it. The sizes are in proportion to what the devices do of a layer's operations.
    """
    model = Model(graph, machines)
    space = Space(model)
    products = roles.products(model.operations, model.layers)
    fastest = max(range(len(machines.devices)), key=lambda pnum: machines.devices[pnum].flops_per_second)
    followers, menus = _followers(model.operations, products), space.menus()
    layouts: dict[str, Layout] = {}
    for ways in itertools.product(*(_ways(space, menus, products[layer][1], fastest) for layer in products)):
        splits: dict[str, Split] = {}
        for layer, (_, chosen) in zip(products, ways, strict=True):
            splits |= chosen
            families = {frozenset(family): name for family in space.families for name in chosen if name in family}
            for family, name in families.items():
                splits |= {other: chosen[name] for other in followers[layer] if other in family}
        if space.is_allowed(splits):
            layouts[", ".join(f"{layer} {way}" for layer, (way, _) in zip(products, ways, strict=True))] = space.layout(
                splits
            )
    return layouts


def _ways(space: Space, menus: Menus, kinds: Mapping[str, str], fastest: int) -> Iterator[tuple[str, dict[str, Split]]]:
    """Yield the ways to divide a layer's product: what it is to be divided by, and {dimension: split}."""
    for name, kind in kinds.items():
        if kind == roles.SPACE or not menus.get(name):
            continue
        yield kind, {name: menus[name][0]}
        if kind == roles.BATCH:
            extent, count = max(space.extents[name]), len(space.model.machines.devices)
            yield ONE, {name: Split(0, tuple(extent * (pnum == fastest) for pnum in range(count)))}


def _followers(operations: Sequence[mtf.Operation], products: Mapping[str, roles.Product]) -> dict[str, list[str]]:
    """{layer: names that no product has, and that come first after it}."""
    of_products = {name for _, kinds in products.values() for name in kinds}
    last, followers = next(iter(products)), {layer: [] for layer in products}
    layers = {op: layer for layer, (op, _) in products.items()}
    for op in operations:
        last = layers.get(op, last)
        names = [name for x in op.outputs for name in x.shape.dimension_names]
        followers[last] += [name for name in names if name not in of_products]
        of_products.update(names)
    return followers

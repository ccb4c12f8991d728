"""Roles of a layer's dimensions in its product: the batch, its outputs, its inputs, or the space of an image."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from mtf_hetero._compat import mtf
from mtf_hetero.graph.layers import list_kernels
from mtf_hetero.ops.traits import find_traits

BATCH, OUTPUTS, INPUTS, SPACE = KINDS = ("batch", "outputs", "inputs", "space")
OTHER = "other"  # of a layer without a product
Product: TypeAlias = tuple[mtf.Operation, dict[str, str]]


def products(operations: Iterable[mtf.Operation], owners: Mapping[mtf.Operation, str]) -> dict[str, Product]:
    """Map each layer to its first contraction with a variable, or lookup, and to the roles of its dimensions.

    Args:
      operations: of a step, in the graph's order.
      owners: {operation: its layer}.

    Example:
      >>> products(operations, owners)["dense1"][1]  # [batch, inputs] by [inputs, units]
      {'dense1/batch': 'batch', 'dense1/inputs': 'inputs', 'dense1/units': 'outputs'}
    """
    found: dict[str, Product] = {}
    for op in operations:
        layer = owners.get(op)
        traits = find_traits(op)
        if layer is None or layer in found or not (traits.is_layer or traits.multiplied):
            continue
        kernels = list_kernels(op)
        if len(kernels) == 1:
            found[layer] = op, _kinds(op, kernels[0][0])
    return found


def along(product: Product | None, split: Iterable[str], own: Iterable[str]) -> tuple[str, str]:
    """Return the split dimension of a layer and its role, or ("", "").

    Args:
      product: of the layer, as `products` has it; None: it has none.
      split: the dimensions that a layout splits.
      own: those of the layer, of which the first counts without a product.
    """
    if product is None:
        return next(((name, OTHER) for name in own), ("", ""))
    return next(((name, product[1][name]) for name in split if name in product[1]), ("", ""))


def _kinds(op: mtf.Operation, kernel: mtf.Tensor) -> dict[str, str]:
    names = list(dict.fromkeys(name for x in (*op.inputs, *op.outputs) for name in x.shape.dimension_names))
    weights, (out,) = set(kernel.shape.dimension_names), op.outputs
    arriving = {name for x in op.inputs if x is not kernel for name in x.shape.dimension_names}
    traits = find_traits(op)
    if traits.rows is not None:
        arriving.add(traits.rows(op).name)
    space = () if traits.images is None else {dim.name for dim in traits.images(op).space(out)}
    kinds = {}
    for name in names:
        if name in space:
            kinds[name] = SPACE
        elif name in weights and name in out.shape.dimension_names:
            kinds[name] = OUTPUTS
        elif name in arriving:
            kinds[name] = INPUTS if name in weights else BATCH
    return kinds

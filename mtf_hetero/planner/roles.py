"""What the dimensions of a layer are to its product: the batch, its outputs, its inputs, or the space of an image."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from mtf_hetero._compat import mtf
from mtf_hetero._support import graphs
from mtf_hetero.layers import LookupOperation
from mtf_hetero.planner import work

BATCH, OUTPUTS, INPUTS, SPACE = KINDS = ("batch", "outputs", "inputs", "space")
OTHER = "other"  # of a layer without a product
_MAPS = ("Conv2d", "Conv3d", "GroupedConv2d")  # how classes of convolutions begin
Product: TypeAlias = tuple[mtf.Operation, dict[str, str]]


def products(operations: Iterable[mtf.Operation], owners: Mapping[mtf.Operation, str]) -> dict[str, Product]:
    """{layer: (its first contraction with a variable, or lookup, {dimension: what it is to it})}, in the graph's order.

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
        if layer is None or layer in found or not (work.is_contraction(op) or isinstance(op, LookupOperation)):
            continue
        kernels = [x for x in op.inputs if graphs.variable_of(x) is not None]
        if len(kernels) == 1:
            found[layer] = op, _kinds(op, kernels[0])
    return found


def along(product: Product | None, split: Iterable[str], own: Iterable[str]) -> tuple[str, str]:
    """(the dimension over which a layer is divided, what it is to its product), or ("", "") if there is none.

    Args:
      product: of the layer, as `products` has it; None: it has none.
      split: the dimensions that a layout splits.
      own: those of them that are the layer's, of which the first counts where there is no product.
    """
    if product is None:
        return next(((name, OTHER) for name in own), ("", ""))
    return next(((name, product[1][name]) for name in split if name in product[1]), ("", ""))


def _kinds(op: mtf.Operation, kernel: mtf.Tensor) -> dict[str, str]:
    names = list(dict.fromkeys(name for x in (*op.inputs, *op.outputs) for name in x.shape.dimension_names))
    weights, out = set(kernel.shape.dimension_names), op.outputs[0].shape.dimension_names
    arriving = {name for x in op.inputs if x is not kernel for name in x.shape.dimension_names}
    if isinstance(op, LookupOperation):  # it sums over the rows, as a product with a one-hot tensor does
        arriving.add(op.rows.name)
    space = _space(op, out)
    kinds = {}
    for name in names:
        if name in space:
            kinds[name] = SPACE
        elif name in weights and name in out:
            kinds[name] = OUTPUTS
        elif name in arriving:
            kinds[name] = INPUTS if name in weights else BATCH
    return kinds


def _space(op: mtf.Operation, out: Sequence[str]) -> Sequence[str]:
    """The height, width and depth of what a convolution gives out: what is between its batch and its filters."""
    name = type(op).__name__
    if not name.startswith(_MAPS):
        return ()
    return out[-4:-1] if name.startswith("Conv3d") else out[-3:-1]

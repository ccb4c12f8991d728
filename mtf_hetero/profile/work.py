"""The operations of a training step, the layer that each belongs to, and names for those that do the same work."""

import collections
import hashlib
from collections.abc import Collection, Iterator, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support import graphs
from mtf_hetero.layers import LookupGradientOperation, LookupOperation
from mtf_hetero.layers.slices import FUNCTIONS
from mtf_hetero.lowering import native
from mtf_hetero.profile.identity import text_of

CONTRACTIONS = (
    mtf.Conv2dOperation,
    mtf.Conv3dOperation,
    mtf.Conv2dTransposeOperation,
    mtf.Conv3dTransposeOperation,
    mtf.Conv2or3dBackpropInputOperation,
    mtf.Conv2or3dBackpropFilterOperation,
    mtf.EinsumOperation,
)
LOOKUPS = (LookupOperation, LookupGradientOperation)
# These have no part in the time of a step, and belong to no layer.
_RESIDENT = (mtf.Variable, mtf.ReadVariable, mtf.ImportOperation, mtf.ImportLaidOutTensorOperation, mtf.Assign)
_NO_ATTRIBUTE = ("_name", "_inputs", "_outputs", "_mesh", "_splittable_dims", "_unsplittable_dims", "lower")


def live(graph: mtf.Graph) -> list[mtf.Operation]:
    """The operations that are lowered and run, in the graph's order."""
    _, unneeded = native.plan(graph.operations)
    updates = [op for op in graph.operations if isinstance(op, mtf.Assign)]
    live = graphs.mtf_ancestors(updates or graph.operations)
    return [op for op in graph.operations if op in live and op not in unneeded]


def _shapes(op: mtf.Operation) -> Iterator[mtf.Shape]:
    for tensor in (*op.inputs, *op.outputs):
        yield tensor.shape


def layer_of(operations: Sequence[mtf.Operation], trainable: Sequence[mtf.Variable]) -> dict[mtf.Operation, str]:
    """{operation: the layer it belongs to}: that of its kernel, or of what it comes from."""
    trainable_set = set(trainable)
    contracted: dict[mtf.Tensor, list[mtf.Variable]] = collections.defaultdict(list)  # {activation: kernels}
    owner: dict[mtf.Operation, str] = {}
    order = {op: i for i, op in enumerate(operations)}
    last = "input"
    for op in operations:
        kernel = _kernel(op, trainable_set, contracted) if isinstance(op, (*CONTRACTIONS, *LOOKUPS)) else None
        if isinstance(op, _RESIDENT):
            continue
        if kernel is not None:
            owner[op] = last = _layer_name(kernel)
            continue
        before = [x.operation for x in op.inputs if owner.get(x.operation, "input") != "input"]
        variables = [_layer_name(x.operation) for x in op.inputs if isinstance(x.operation, mtf.Variable)]
        named = [name for name in variables if name in owner.values()]
        owner[op] = owner[max(before, key=order.__getitem__)] if before else named[0] if named else last
    return owner


def _layer_name(variable: mtf.Variable) -> str:
    """The layer of "conv1/kernel", or of an optimizer's "conv1/kernel_slot_v", is "conv1"."""
    return variable.name.rpartition("/")[0] or variable.name


def _kernel(
    op: mtf.Operation, trainable: set[mtf.Variable], contracted: dict[mtf.Tensor, list[mtf.Variable]]
) -> mtf.Variable | None:
    """The trainable variable whose layer a contraction or a lookup is, or a gradient of which it is; or None."""
    kernels = [variable for x in op.inputs if (variable := graphs.variable_of(x)) in trainable]
    if len(kernels) == 1:
        for x in op.inputs:
            if graphs.variable_of(x) is None:
                contracted[x].append(kernels[0])
        return kernels[0]
    dims = _dims(op.outputs[0].shape)
    return next((v for x in op.inputs for v in contracted.get(x, ()) if _dims(v.shape) == dims), None)


def _dims(shape: mtf.Shape) -> set[mtf.Dimension]:
    """Return the dimensions that count anything."""
    return {dim for dim in shape.dims if dim.size > 1}


def key_of(operations: Sequence[mtf.Operation], names: Collection[str] = ()) -> str:
    """Return a name for all operations that do the same work: a summary of the largest one, and a digest of all.

    Args:
      operations: mtf operations, in the graph's order.
      names: of dimensions, in whose places others may stand.
    """
    numbers_of: dict[mtf.Tensor, int] = {}
    lines = []

    def text(tensor: mtf.Tensor) -> str:
        number = numbers_of.setdefault(tensor, len(numbers_of))
        return f"{number}:{tensor.dtype.name}[{_extents(tensor.shape, names)}]"

    dim_numbers: dict[str, int] = {}
    for op in operations:
        layout = [
            dim_numbers.setdefault(dim, len(dim_numbers)) for shape in _shapes(op) for dim in shape.dimension_names
        ]
        attributes = _attributes(op)
        inputs, outputs = [text(x) for x in op.inputs], [text(y) for y in op.outputs]
        lines.append(f"{type(op).__name__} {inputs} {outputs} {layout} {attributes}")
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    main = max(operations, key=lambda op: (isinstance(op, CONTRACTIONS), max((s.size for s in _shapes(op)), default=0)))
    kind = type(main).__name__.removesuffix("Operation")
    shapes = ",".join(_extents(x.shape, names) for x in main.inputs)
    return f"{kind}({shapes})-{digest}"


def _attributes(op: mtf.Operation) -> list[str]:
    """Describe all of an operation but its tensors."""
    if isinstance(op, FUNCTIONS):
        return [op.function.describe()]
    return [f"{name}={text_of(entry)}" for name, entry in sorted(vars(op).items()) if name not in _NO_ATTRIBUTE]


def _extents(shape: mtf.Shape, names: Collection[str]) -> str:
    return "x".join(f"{dim.size}{'*' if dim.name in names else ''}" for dim in shape.dims)

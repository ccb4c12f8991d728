"""What a step of an mtf graph consists of, under the rules of a layout: parts that depend on one split dimension each.

No operation is split twice over one mesh axis, so that each belongs to one dimension, or to none and is done whole by
every processor. A dimension that a reshape renames is one dimension under two names.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support import graphs
from mtf_hetero.layers import LookupGradientOperation, LookupOperation
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import native
from mtf_hetero.profile.footprint import bytes_by_dim
from mtf_hetero.profile.identity import text_of
from mtf_hetero.speeds import Layer, Work

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
# What has no part in the time of a step: variables are there, the input comes from elsewhere, and an assignment hands
# a tensor over.
_RESIDENT = (mtf.Variable, mtf.ReadVariable, mtf.ImportOperation, mtf.ImportLaidOutTensorOperation, mtf.Assign)
_SILENT = (mtf.PrintOperation, mtf.ScalarSummaryOperation)
_NO_ATTRIBUTE = ("_name", "_inputs", "_outputs", "_mesh", "_splittable_dims", "_unsplittable_dims", "lower")


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Operations that are measured together.

    Args:
      layer: what they are.
      names: those of the split dimension, all of which are divided alike; none if it is done whole.
      operations: mtf operations, in the graph's order.
      needed: tensors of theirs that others need.
    """

    layer: Layer
    names: frozenset[str]
    operations: tuple[mtf.Operation, ...]
    needed: tuple[mtf.Tensor, ...]


def read(graph: mtf.Graph, layout: Layout) -> tuple[Work, tuple[Group, ...]]:
    """What a step of a graph consists of.

    Args:
      graph: mtf.Graph on one mesh. If it assigns variables, what no assignment needs is left out.
      layout: its rules say which dimensions are split; its sizes and shares do not matter.

    Raises:
      ValueError: the layout splits no dimension of the graph, or over more than one axis; or the graph has no
        operation, or more than one mesh.
    """
    operations = live(graph)
    meshes = {op.mesh for op in operations}
    if len(meshes) != 1:
        raise ValueError(f"the graph has operations on {len(meshes)} meshes; give one with operations on a single mesh")
    families = _families([op for op in operations if not isinstance(op, _RESIDENT)], layout)
    if not families.dims:
        raise ValueError("the layout splits no dimension of the graph, so there is nothing to measure; add a rule")
    owners = layer_of(operations, graph.trainable_variables)
    operations_of: dict[tuple[str, str | None], list[mtf.Operation]] = collections.defaultdict(list)
    for op in operations:
        if not isinstance(op, (*_RESIDENT, *_SILENT)):
            operations_of[owners[op], families.of(op)].append(op)
    consumers = _consumers(operations)
    groups = tuple(_group(name, dim, ops, families, consumers) for (name, dim), ops in operations_of.items())
    held = bytes_by_dim(operations, families.of_shape)
    dim_bytes = {dim: held.get(dim, 0) for dim in families.dims}
    work = Work(tuple(group.layer for group in groups), families.dims, held.get(None, 0), dim_bytes)
    return work, groups


def live(graph: mtf.Graph) -> list[mtf.Operation]:
    """The operations that are lowered and run, in the graph's order."""
    _, unneeded = native.plan(graph.operations)
    updates = [op for op in graph.operations if isinstance(op, mtf.Assign)]
    live = graphs.mtf_ancestors(updates or graph.operations)
    return [op for op in graph.operations if op in live and op not in unneeded]


def _shapes(op: mtf.Operation) -> Iterator[mtf.Shape]:
    for tensor in (*op.inputs, *op.outputs):
        yield tensor.shape


class _Families:
    """Split dimensions, each with all of its names.

    Args:
      dims: {the name that came first: {each name: largest extent}}.
      leader: {each name: the name that came first}.
    """

    def __init__(self, dims: Mapping[str, Mapping[str, int]], leader: Mapping[str, str]) -> None:
        self.dims = dims
        self._leader = leader

    def of(self, op: mtf.Operation) -> str | None:
        """The split dimension of an operation, or None."""
        return next((d for shape in _shapes(op) if (d := self.of_shape(shape)) is not None), None)

    def of_shape(self, shape: mtf.Shape) -> str | None:
        """The split dimension of a tensor, or None."""
        return next((self._leader[dim.name] for dim in shape.dims if dim.name in self._leader), None)


def _families(operations: Iterable[mtf.Operation], layout: Layout) -> _Families:
    extents: dict[str, int] = {}
    leader: dict[str, str] = {}
    axes = set()
    for op in operations:
        names = []
        for shape in _shapes(op):
            for dim in shape.dims:
                axis = layout.axis_name_of(dim)
                if axis is not None:
                    axes.add(axis)
                    names.append(dim.name)
                    leader.setdefault(dim.name, dim.name)
                    extents[dim.name] = max(extents.get(dim.name, 1), dim.size)
        for name in names[1:]:
            old, new = leader[name], leader[names[0]]
            leader = {key: new if value == old else value for key, value in leader.items()}
    if len(axes) > 1:
        raise ValueError(
            f"the layout splits dimensions over the mesh axes {', '.join(sorted(axes))}; times are measured for a "
            "layout that splits over one"
        )
    dims: dict[str, dict[str, int]] = collections.defaultdict(dict)
    first = {value: next(name for name in leader if leader[name] == value) for value in leader.values()}
    for name, value in leader.items():
        dims[first[value]][name] = extents[name]
    return _Families(dict(dims), {name: first[value] for name, value in leader.items()})


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
    dims = set(op.outputs[0].shape.dims)
    return next((v for x in op.inputs for v in contracted.get(x, ()) if set(v.shape.dims) == dims), None)


def _consumers(operations: Iterable[mtf.Operation]) -> dict[mtf.Tensor, set[mtf.Operation]]:
    consumers: dict[mtf.Tensor, set[mtf.Operation]] = collections.defaultdict(set)
    for op in operations:
        for x in op.inputs:
            consumers[x].add(op)
    return consumers


def _group(
    name: str,
    dim: str | None,
    operations: list[mtf.Operation],
    families: _Families,
    consumers: Mapping[mtf.Tensor, set[mtf.Operation]],
) -> Group:
    members = set(operations)
    outputs = [tensor for op in operations for tensor in op.outputs]
    needed = tuple(t for t in outputs if not consumers.get(t) or not consumers[t] <= members)
    reduced = [
        graphs.mtf_size_bytes(y)
        for op in operations
        for y in op.outputs
        if dim is not None and families.of_shape(y.shape) is None and consumers.get(y)
    ]
    names = frozenset(families.dims[dim]) if dim is not None else frozenset()
    units = max(families.dims[dim].values()) if dim is not None else 1
    layer = Layer(name, key_of(operations, needed, names, units), dim, units, tuple(reduced))
    return Group(layer, names, tuple(operations), needed)


def key_of(operations: Sequence[mtf.Operation], needed: Sequence[mtf.Tensor], names: frozenset[str], units: int) -> str:
    """A name for all groups that do the same work: a summary of the largest operation, and a digest of all."""
    numbers_of: dict[mtf.Tensor, int] = {}
    lines = [f"units={units}"]

    def text(tensor: mtf.Tensor) -> str:
        number = numbers_of.setdefault(tensor, len(numbers_of))
        return f"{number}:{tensor.dtype.name}[{_extents(tensor.shape, names)}]"

    dim_numbers: dict[str, int] = {}
    for op in operations:
        layout = [
            dim_numbers.setdefault(dim, len(dim_numbers)) for shape in _shapes(op) for dim in shape.dimension_names
        ]
        attributes = [
            f"{name}={text_of(entry)}" for name, entry in sorted(vars(op).items()) if name not in _NO_ATTRIBUTE
        ]
        inputs, outputs = [text(x) for x in op.inputs], [text(y) for y in op.outputs]
        lines.append(f"{type(op).__name__} {inputs} {outputs} {layout} {attributes}")
    lines.append(str([numbers_of[tensor] for tensor in needed]))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    main = max(operations, key=lambda op: (isinstance(op, CONTRACTIONS), max((s.size for s in _shapes(op)), default=0)))
    kind = type(main).__name__.removesuffix("Operation")
    shapes = ",".join(_extents(x.shape, names) for x in main.inputs)
    return f"{kind}({shapes})-{digest}"


def _extents(shape: mtf.Shape, names: frozenset[str]) -> str:
    return "x".join(f"{dim.size}{'*' if dim.name in names else ''}" for dim in shape.dims)

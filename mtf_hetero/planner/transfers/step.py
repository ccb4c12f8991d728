"""What an operation sends, and what a whole step sends."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import native
from mtf_hetero.planner.sample import Sample
from mtf_hetero.planner.transfers.rules import rule_of, slice_by_slice
from mtf_hetero.planner.transfers.sketch import CHIEF, Sketch, Sum, Value, Values, made


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A tensor that goes from one processor to another, once a step: a message.

    Args:
      source: the processor that has it.
      target: the processor that needs it.
      bytes: its size; zero of an empty slice that is read all the same.
      operation: name of the mtf operation that causes it. Of a sum that operation makes whose result it is, whoever
        needs it first.
      messages: in how many it comes, from processors for which the source stands; only of a planner.sample.Sample.
      times: how often as much a source sends, to as many targets as there are to a source; only of a Sample.
    """

    source: int
    target: int
    bytes: int
    operation: str
    messages: int = 1
    times: float = 1.0

    def ends_seconds(self, seconds_of: Callable[[float], float]) -> float:
        """Seconds for all messages that the target receives.

        Args:
          seconds_of: from a message's bytes to its seconds.
        """
        return self.messages * seconds_of(self.bytes / self.messages)


def of_operation(
    op: mtf.Operation,
    layout: Layout,
    *,
    sums: bool = True,
    memories: Sequence[Hashable] | None = None,
    wire_dtype: tf.DType | None = None,
) -> tuple[Transfer, ...]:
    """What one operation sends, if each processor has its slices of the inputs and needs those of the outputs.

    Args:
      op: the mtf.Operation.
      layout: the Layout.
      sums: whether a sum over mesh axes that its lowering leaves outstanding is made.
      memories: of each processor what names its memory; between CPUs of one memory nothing is sent. None: each has one
        of its own.
      wire_dtype: as in mtf_hetero.UnevenMeshImpl.

    Raises:
      NotImplementedError: there is no rule for the operation's class, or its lowering refuses the layout.

    Example:
      >>> of_operation(product, Layout("all:2", "units:all"))  # [rows=3, units=8] by [units=8, others=5]
      (Transfer(source=0, target=1, bytes=60, operation='einsum'), Transfer(source=1, target=0, bytes=60, ...))
    """
    with Sketch(layout, memories=memories, wire_dtype=wire_dtype) as sketch:
        if rule_of(op, sketch) is slice_by_slice:
            return ()
        _run(op, sketch)
        roots = list(sketch.operations.get(op, ()))
        for output in op.outputs:
            laid_out = sketch.laid_out(output)
            roots += laid_out.partial if isinstance(laid_out, Sum) and not sums else made(laid_out)
        return _transfers(sketch, roots)


def of_step(
    graph: mtf.Graph | Sequence[mtf.Operation],
    layout: Layout,
    *,
    fetched: Sequence[mtf.Tensor] = (),
    memories: Sequence[Hashable] | None = None,
    wire_dtype: tf.DType | None = None,
) -> tuple[Transfer, ...]:
    """What a step of a graph sends: that of its assignments, and of what they need.

    Inputs come from the training process, and what is fetched goes there; what goes between it and the processors is
    not counted.

    Args:
      graph: mtf.Graph, or operations of one in its order; what they read of others lies where it is needed.
      layout: the Layout.
      fetched: tensors that are exported in every step, as the loss. If there are none, and no assignments, all that no
        operation reads is needed where it is.
      memories: as in `of_operation`.
      wire_dtype: as in `of_operation`.

    Raises:
      NotImplementedError: as of `of_operation`.
      ValueError: the operations are on more than one mesh.
    """
    operations = list(graph if isinstance(graph, Sequence) else graph.operations)
    if len(operations) == 1 and not fetched and rule_of(operations[0], Sketch(layout)) is slice_by_slice:
        return ()
    if len({op.mesh for op in operations}) > 1:
        raise ValueError(f"operations on {len({op.mesh for op in operations})} meshes; give operations of one mesh")
    rules, unneeded = native.plan(operations)
    inputs = native.inputs_as_lowered(operations)

    def lower(op: mtf.Operation, sketch: Sketch) -> bool:
        if op not in unneeded:
            return False
        unneeded.remove(op)
        _run(op, sketch)
        return True

    with Sketch(layout, memories=memories, wire_dtype=wire_dtype, lower=lower) as sketch:
        for op in operations:
            if op in rules:  # one operation of TensorFlow takes its place
                sketch.operation = op.name
                sketch.set(op.outputs[0], sketch.local(op.outputs[0], *map(sketch.slices, inputs[op])))
            elif op not in unneeded:
                _run(op, sketch)
        roots = [value for values in sketch.operations.values() for value in values]
        for tensor in fetched:
            sketch.operation = tensor.operation.name
            roots.append(_exported(sketch, tensor))
        return _transfers(sketch, roots or _unread(sketch, operations))


def _run(op: mtf.Operation, sketch: Sketch) -> None:
    before, sketch.operation = sketch.operation, op.name
    rule_of(op, sketch)(op, sketch)
    sketch.operation = before


def _unread(sketch: Sketch, operations: Sequence[mtf.Operation]) -> Values:
    """The slices of what no operation reads."""
    read = {x for op in operations for x in op.inputs}
    return [
        value
        for op in operations
        for tensor in op.outputs
        if tensor not in read and tensor in sketch.tensors
        for value in sketch.slices(tensor)
    ]


def _exported(sketch: Sketch, tensor: mtf.Tensor) -> Value:
    """A tensor as a whole, put together where its first slice is, as mtf.MeshImpl.combine_slices does it."""
    parts = list(sketch.slices(tensor))
    if not tensor.shape.dims:
        return parts[0]
    splits = sketch.tensor_layout(tensor.shape).mesh_axis_to_tensor_axis(len(sketch.layout.mesh_shape))
    for (_, size), split in zip(sketch.layout.mesh_shape, splits, strict=True):
        count = len(parts) // size
        if split is None:
            parts = parts[:count]
            continue
        joined = []
        for i in range(count):
            pieces = parts[i::count]
            shape = list(pieces[0].shape)
            shape[split] = sum(piece.shape[split] for piece in pieces)
            joined.append(sketch.value(pieces[0].processor, shape, pieces[0].dtype, pieces))
        parts = joined
    return parts[0]


def _transfers(sketch: Sketch, roots: Iterable[Value]) -> tuple[Transfer, ...]:
    """What is read elsewhere than where it is, once for each processor that does, of all that the roots need."""
    sent: dict[tuple[Value, int], Transfer] = {}
    layout = sketch.layout if isinstance(sketch.layout, Sample) else None
    for reader in sketch.needed(roots):
        target = reader.processor
        if layout is not None and layout.senders[target] != target:  # what it reads, another one shows
            continue
        for x in reader.reads:
            if x.processor == target or CHIEF in (x.processor, target) or (x, target) in sent:
                continue
            if sketch.memories[x.processor] == sketch.memories[target]:
                continue
            if layout is None:
                sent[x, target] = Transfer(x.processor, target, x.size_bytes, reader.operation)
            else:
                source = layout.senders[x.processor]
                size, times = x.size_bytes * x.count, layout.members[target] / layout.members[source]
                sent[x, target] = Transfer(source, target, size, reader.operation, x.count, times)
    return tuple(sent.values())

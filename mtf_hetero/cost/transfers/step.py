"""The messages of a step."""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from mtf_hetero._compat import mtf
from mtf_hetero.cost.sample import Sample
from mtf_hetero.cost.transfers.rules import find_counting_rule
from mtf_hetero.cost.transfers.sketch import Sketch
from mtf_hetero.cost.transfers.values import CHIEF, Value, Values
from mtf_hetero.graph import merging, within
from mtf_hetero.graph.residents import Residents
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import native
from mtf_hetero.ops.registry import slice_by_slice


class Transfer(NamedTuple):
    """A message: a tensor that goes from one processor to another, once a step.

    Attributes:
      source: the processor that has it.
      target: the processor that needs it.
      bytes: its size; zero of an empty slice that is read all the same.
      operation: name of the mtf operation that causes it: of a sum, the operation whose result it is.
      messages: the number of messages in which it comes, in a Sample: the source stands for so many.
      times: the factor by which a source sends more than a target receives, in a Sample.
      slots: the slots of the two devices that send and receive it; None without slots.
      is_input: whether the operation reads it; False: it is made within the operation, as an addend is.
    """

    source: int
    target: int
    bytes: int
    operation: str
    messages: int = 1
    times: float = 1.0
    slots: tuple[int, int] | None = None
    is_input: bool = False

    def ends_seconds(self, seconds_of: Callable[[float], float]) -> float:
        """Return the seconds of all messages that the target receives.

        Args:
          seconds_of: from a message's bytes to its seconds.
        """
        return self.messages * seconds_of(self.bytes / self.messages)


class Messages(NamedTuple):
    """The messages of a step, and where the slots of a processor wait for each other.

    Attributes:
      sent: the messages.
      joins: (name of an operation, processor), if each of its slots needs the inputs of all, as in a batch norm.
      handed: (name of an operation, slot, another slot of its processor), if the second one needs what the first one
        reads, as where the slots have other parts of the batch than before.
      shared: {(name of an operation, slots of a message that it causes): (name of another, slot) that read it too}; of
        a layout without slots, processors.
    """

    sent: tuple[Transfer, ...]
    joins: frozenset[tuple[str, int]] = frozenset()
    handed: frozenset[tuple[str, int, int]] = frozenset()
    shared: Mapping[tuple[str, tuple[int, int]], Collection[tuple[str, int]]] = MappingProxyType({})


class Step:
    """Operations, with all that no layout changes in the messages that they send.

    The messages are those of the assignments, and of all that they need. Inputs come from the training process, and
    fetched tensors go there; this traffic is not counted.

    Args:
      operations: of an mtf graph, in its order. What they read of others lies where they need it.
      fetched: tensors that each step exports. Without any, and without assignments, each tensor that no operation reads
        is needed where it is.

    Raises:
      ValueError: the operations are on more than one mesh.
    """

    def __init__(self, operations: Sequence[mtf.Operation], fetched: Sequence[mtf.Tensor] = ()) -> None:
        if (count := len({op.mesh for op in operations})) > 1:
            raise ValueError(f"operations on {count} meshes; give operations of one mesh")
        self._operations, self._fetched = tuple(operations), tuple(fetched)
        self._within = tuple(within(operations))
        gradients, self._unneeded = merging.plan(self._operations)
        self._rules = {op: find_counting_rule(op) for op in self._operations}
        self._rules |= {op: native.gradient_rule(gradient) for op, gradient in gradients.items()}
        self._is_silent = not fetched and all(rule is slice_by_slice for rule in self._rules.values())

    def residents(self, layout: Layout) -> Residents:
        """Return who holds and computes what under a layout."""
        return Residents(self._within, layout)

    def messages(self, layout: Layout, residents: Residents | None = None) -> Messages:
        """Return the messages under a layout.

        Args:
          layout: the Layout.
          residents: under it; None: they are found.

        Raises:
          NotImplementedError: an operation has no rule, or its lowering refuses the layout.
        """
        if self._is_silent:
            return Messages(())
        left = set(self._unneeded)

        def run(op: mtf.Operation, sketch: Sketch) -> None:
            before, sketch.operation = sketch.operation, op.name
            self._rules[op](op, sketch)
            sketch.operation = before

        def run_after_all(op: mtf.Operation, sketch: Sketch) -> bool:
            if op not in left:
                return False
            left.remove(op)
            run(op, sketch)
            return True

        with Sketch(layout, residents or self.residents(layout), run_after_all) as sketch:
            for op in self._operations:
                if op not in left:
                    run(op, sketch)
            roots = [value for values in sketch.operations.values() for value in values]
            for tensor in self._fetched:
                sketch.operation = tensor.operation.name
                roots.append(_exported(sketch, tensor))
            needed = sketch.list_needed(roots or self._unread(sketch))
            sent = _transfers(sketch, needed)
            if not layout.slots:
                return Messages(tuple(sent.values()), shared=_shared(needed, sent))
            joins = _joins(needed)
            return Messages(tuple(sent.values()), joins, _handed(needed, joins), _shared(needed, sent))

    def _unread(self, sketch: Sketch) -> Values:
        """Return the slices of each tensor that no operation reads."""
        read = {x for op in self._operations for x in op.inputs}
        tensors = [y for op in self._operations for y in op.outputs if y not in read and y in sketch.tensors]
        return [value for y in tensors for value in sketch.slices(y)]


def of_step(
    graph: mtf.Graph | Sequence[mtf.Operation], layout: Layout, *, fetched: Sequence[mtf.Tensor] = ()
) -> tuple[Transfer, ...]:
    """Return the messages of a graph, or of some operations, under a layout; see `Step`.

    Example:
      >>> of_step([product], Layout("all:2", "units:all"))  # [rows=3, units=8] by [units=8, others=5]
      (Transfer(source=0, target=1, bytes=60, operation='einsum'), Transfer(source=1, target=0, bytes=60, ...))
    """
    return Step(graph if isinstance(graph, Sequence) else graph.operations, fetched).messages(layout).sent


def _exported(sketch: Sketch, tensor: mtf.Tensor) -> Value:
    """Return an unsplit tensor, joined where its first slice is, as mtf.MeshImpl.combine_slices does it."""
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


def _joins(needed: Iterable[Value]) -> frozenset[tuple[str, int]]:
    """Return where the first slot of a processor makes of all slots what all need, in the course of an operation."""
    read, written = set[tuple[str, int]](), set[tuple[str, int]]()
    for reader in needed:
        first = reader.processor
        for x in reader.reads:
            if x.processor == first != CHIEF and x.slot != reader.slot and x.operation == reader.operation:
                (written if x.slot == first else read).add((reader.operation, first))
    return frozenset(read & written)


def _handed(needed: Iterable[Value], joins: Collection[tuple[str, int]]) -> frozenset[tuple[str, int, int]]:
    """Return where one slot needs in an operation what another slot of its processor reads; not where all need all."""
    return frozenset(
        (reader.operation, x.slot, reader.slot)
        for reader in needed
        for x in reader.reads
        if x.processor == reader.processor != CHIEF and x.slot != reader.slot
        if (reader.operation, reader.processor) not in joins
    )


def _shared(
    needed: Iterable[Value], sent: Mapping[tuple[Value, int], Transfer]
) -> Mapping[tuple[str, tuple[int, int]], Collection[tuple[str, int]]]:
    """Return who else reads a message than the operation that causes it, as of `Messages`."""
    shared = collections.defaultdict[tuple[str, tuple[int, int]], set[tuple[str, int]]](set)
    for reader in needed:
        for x in reader.reads:
            transfer = sent.get((x, reader.processor))
            if transfer is not None and transfer.operation != reader.operation:
                ends = transfer.slots or (transfer.source, transfer.target)
                shared[transfer.operation, ends].add((reader.operation, reader.slot))
    return shared


def _transfers(sketch: Sketch, needed: Iterable[Value]) -> dict[tuple[Value, int], Transfer]:
    """Return {(value, another processor that reads it): message}."""
    sent: dict[tuple[Value, int], Transfer] = {}
    crowd = sketch.layout.crowd if isinstance(sketch.layout, Sample) else None
    for reader in needed:
        target = reader.processor
        if crowd is not None and crowd.senders[target] != target:  # another processor shows what it reads
            continue
        for x in reader.reads:
            if x.processor == target or CHIEF in (x.processor, target) or (x, target) in sent:
                continue
            is_input = x.operation != reader.operation
            transfer = Transfer(x.processor, target, x.size_bytes, reader.operation, is_input=is_input)
            if crowd is not None:
                source = crowd.senders[x.processor]
                size, times = x.size_bytes * x.count, crowd.members[target] / crowd.members[source]
                transfer = transfer._replace(source=source, bytes=size, messages=x.count, times=times)
            if sketch.layout.slots:
                transfer = transfer._replace(slots=(x.slot, reader.slot))
            sent[x, target] = transfer
    return sent

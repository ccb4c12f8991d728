"""Estimate the memory of a step before it is lowered: the bytes that are alive at once, by their dimensions.

A search compares thousands of layouts, and cannot lower each. So this module reads the operations of mtf in place of
TensorFlow's. A search adds up the bytes of each choice of sizes, as a processor holds its slice of each tensor.

Most of what the lowering adds is not counted: halos, copies for other devices, scratch, and TensorFlow's own memory.
`tests/cost/test_sketched_memory.py` compares with the estimate of the lowered graph: within 5 % for one device from
100 MB on, and within 30 % for several.
"""

import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast

from mtf_hetero._compat import mtf
from mtf_hetero.cost.memory import executor, liveness
from mtf_hetero.cost.memory.liveness import Node, Output
from mtf_hetero.graph import merging
from mtf_hetero.graph.residents import Residents
from mtf_hetero.graph.walk import size_bytes
from mtf_hetero.layers import DrawOperation
from mtf_hetero.layout import Layout
from mtf_hetero.ops.traits import find_traits

Fraction: TypeAlias = Callable[..., float]
_ELEMENTWISE = (
    mtf.AddOperation,
    mtf.BinaryOpWithBroadcasting,
    mtf.ScalarAddOperation,
    mtf.ScalarMultiplyOperation,
    mtf.SlicewiseOperation,
)


class Footprint:
    """The tensors of a step at the moment when most bytes are alive.

    Args:
      operations: mtf operations of a step, in the graph's order.

    Attributes:
      parts: {names of a tensor's dimensions: bytes of all such tensors}.
    """

    def __init__(self, operations: Sequence[mtf.Operation]) -> None:
        self._nodes, self._made_by = _nodes(operations)
        self._names = [cast("tuple[str, ...]", node.label) for node in self._nodes]
        self._events = tuple(executor.events(self._nodes))
        self.parts = self._peak(self._nodes)

    def _peak(self, nodes: Sequence[Node]) -> Mapping[tuple[str, ...], int]:
        """Return the bytes by their dimensions at the moment when most are alive."""
        peaks = liveness.peaks(nodes, self._events)
        return cast("Mapping[tuple[str, ...], int]", next(iter(peaks.values()), {}))

    def bytes_on(self, layout: Layout, devices: Iterable[int]) -> tuple[int, ...]:
        """Return the bytes that each of some devices needs in a layout with exact sizes, at the step's worst moment.

        A device may need more at another moment, and less if it takes no part in some operations: `peaks_on` says how
        much, and takes longer. Slots count as if all of a device were in memory at once.
        """

        def add_parts(_: int, fraction: Fraction) -> int:
            return math.ceil(math.fsum(size * fraction(names) for names, size in self.parts.items()))

        return _map_devices(layout, devices, (), add_parts)

    def peaks_on(
        self, layout: Layout, devices: Iterable[int], residents: Residents | None, in_progress: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Return the bytes that each of some devices needs in a layout with exact sizes, at its own worst moment.

        Args:
          layout: the Layout.
          devices: their numbers.
          residents: who computes what; None: all compute all of which they have a part.
          in_progress: how many slots each device has in progress; absent: all.
        """
        computing = [None if residents is None else residents.computing(op) for op in self._made_by]
        addends = [_find_addends(op, layout) for op in self._made_by]
        own_slots = _slots_of_devices(layout)

        def find_peak(number: int, fraction: Fraction) -> int:
            own = own_slots.get(number, (number,))
            places = {pnum: layout.coordinates(pnum) for pnum in own}
            with_part = {  # {dimension: the slots that have a part of it}
                name: {pnum for pnum, at in places.items() if sizes[at[layout.axis_of(name) or 0]]}
                for name, sizes in layout.sizes
            }
            nodes, parts = list[Node](), list[float]()
            for op, node, names, there, added in zip(
                self._made_by, self._nodes, self._names, computing, addends, strict=True
            ):
                has_part = (there is None or any(there[pnum] for pnum in own)) and all(map(fraction, added))
                is_given = isinstance(op, mtf.ImportOperation)  # for all slots, before the first one begins
                part = fraction(names, len(own) if is_given else None) * has_part
                if part and not all(parts[x] for x in _shared(node)):  # its input was another device's, and is received
                    part = fraction(names, max(in_progress, default=None))  # so many slots send ahead
                    node = dataclasses.replace(node, outputs=tuple(map(_unshared, node.outputs)))
                parts.append(part)
                having = (with_part[name] for name in itertools.chain(*added) if name in with_part)
                is_held = bool(added) and len(set(own).intersection(*having)) > 1  # the total, to the last of them
                nodes.append(_scaled(node, part, is_held=is_held))
            return sum(self._peak(nodes).values())

        return _map_devices(layout, devices, in_progress, find_peak)


def _slots_of_devices(layout: Layout) -> Mapping[int, Sequence[int]]:
    """Return {device: its slots}; of a layout without slots, none."""
    found: dict[int, list[int]] = {}
    if not layout.slots:
        return found
    for pnum, device in enumerate(layout.places):
        found.setdefault(device, []).append(pnum)
    return found


def _map_devices(
    layout: Layout, devices: Iterable[int], in_progress: Sequence[int], function: Callable[[int, Fraction], int]
) -> tuple[int, ...]:
    """Return what a function returns for each device, and the fraction that it has of any tensor."""
    totals = [(name, sizes, sum(sizes), layout.axis_of(name) or 0) for name, sizes in layout.sizes]
    own_slots = _slots_of_devices(layout)
    known: dict[Hashable, int] = {}
    found = []
    for number in devices:
        places = list(map(layout.coordinates, own_slots.get(number, (number,))))
        bound = in_progress[number] if in_progress else len(places)
        own = bound, tuple(tuple(sizes[at[axis]] for _, sizes, _, axis in totals) for at in places)
        if own not in known:
            fractions = {
                name: (axis, {at[axis]: sizes[at[axis]] / total for at in places})
                for name, sizes, total, axis in totals
            }
            known[own] = function(number, functools.partial(_fraction, places, bound, fractions))
        found.append(known[own])
    return tuple(found)


def _fraction(
    places: Sequence[Sequence[int]],
    in_progress: int,
    fractions: Mapping[str, tuple[int, Mapping[int, float]]],
    names: Sequence[str],
    bound: int | None = None,
) -> float:
    """Return the part that the largest slots of a device have of a tensor, so many as a bound; None: in progress."""
    own = [fractions[name] for name in names if name in fractions]
    if len(places) == 1:
        return math.prod(parts[places[0][axis]] for axis, parts in own)
    blocks = {tuple(at[axis] for axis, _ in own) for at in places}
    sizes = (math.prod(parts[at] for at, (_, parts) in zip(block, own, strict=True)) for block in blocks)
    return math.fsum(heapq.nlargest(in_progress if bound is None else bound, sizes))


def _find_addends(op: mtf.Operation, layout: Layout) -> list[Sequence[str]]:
    """Return the names of the inputs that an operation adds up over processors; none for any other operation."""
    own, read = ([x.shape.dims for x in tensors] for tensors in (op.outputs, op.inputs))
    if not find_traits(op).leaves_sums or layout.splits(*own) or not layout.splits(*read):
        return []
    return [x.shape.dimension_names for x in op.inputs]


def _shared(node: Node) -> list[int]:
    """Return the nodes whose buffers the outputs of a node share."""
    return [node.inputs[output.alias][0] for output in node.outputs if output.alias is not None]


def _unshared(output: Output) -> Output:
    return dataclasses.replace(output, alias=None)


def _scaled(node: Node, fraction: float, *, is_held: bool) -> Node:
    """Return a node of which a device has a fraction, and whose outputs it may hold during all of the step."""
    if fraction == 1.0 and not is_held:
        return node
    outputs = tuple(
        dataclasses.replace(y, size_bytes=math.ceil(y.size_bytes * fraction), permanent=y.permanent or is_held)
        for y in node.outputs
    )
    return dataclasses.replace(node, outputs=outputs, scratch_bytes=math.ceil(node.scratch_bytes * fraction))


def _nodes(operations: Sequence[mtf.Operation]) -> tuple[list[Node], list[mtf.Operation]]:
    """Return the nodes of one device, labelled with the names of dimensions that they make, and their operations."""
    inputs_of = merging.inputs_as_lowered(operations)
    place: dict[mtf.Tensor, tuple[int, int]] = {}
    nodes: list[Node] = []
    made_by: list[mtf.Operation] = []
    for op in operations:
        inputs = [x for x in inputs_of[op] if x in place]
        read = tuple(place[x] for x in inputs)
        if isinstance(op, DrawOperation) and op.part is None:  # all numbers, before they are cut
            whole = Output(size_bytes=size_bytes(op.outputs[0]))
            nodes.append(Node(device="", inputs=read, outputs=(whole,), label=()))
            made_by.append(op)
            read = ((len(nodes) - 1, 0),)
        made_by.append(op)
        place |= {y: (len(nodes), number) for number, y in enumerate(op.outputs)}
        nodes.append(
            Node(
                device="",
                inputs=read,
                outputs=tuple(_output(op, y, inputs) for y in op.outputs),
                scratch_bytes=_received_bytes(op),
                label=tuple(op.outputs[0].shape.dimension_names) if op.outputs else (),
            )
        )
    return nodes, made_by


def _received_bytes(op: mtf.Operation) -> int:
    """Return the bytes that come from another processor for a sum over the processors: an addend as large as the sum.

    Only tensors without dimensions count: the layout decides which of the others are sums.
    """
    if not any(tensor.shape.ndims for tensor in (*op.inputs, *op.outputs)):
        return 0
    return sum(size_bytes(y) for y in op.outputs if not y.shape.ndims)


def _output(op: mtf.Operation, tensor: mtf.Tensor, inputs: Sequence[mtf.Tensor]) -> Output:
    """Return a tensor as an output: a reshape shares its buffer, and an element-wise operation takes one over."""
    forwards: tuple[int, ...] = ()
    if isinstance(op, _ELEMENTWISE):
        same = [x.dtype == tensor.dtype and x.shape == tensor.shape for x in inputs]
        forwards = tuple(position for position, is_same in enumerate(same) if is_same)
    return Output(
        size_bytes=size_bytes(tensor),
        alias=0 if isinstance(op, mtf.ReshapeOperation) and inputs else None,
        forwards=forwards,
        permanent=isinstance(op, mtf.Variable),
    )

"""The processors that hold a variable: those that read it for something that they have a part of.

Exact sizes of zero leave a processor out of some layers. It need not hold the weights that those layers alone read, nor
the optimizer's variables for them, nor take part in their updates.
"""

import functools
import operator
from collections.abc import Iterable, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph.walk import within
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import find_users
from mtf_hetero.ops.traits import is_contraction


class Residents:
    """The processors that hold each variable, and that compute each tensor, under a layout.

    An operation on a dimension that is split is done by those that have a part of all that it reads and makes. Any
    other operation is done where its result is wanted: by an operation of the first kind, or by the update of a
    variable, which is wanted where the variable is held. An operation that makes less than it reads, such as a norm, is
    done where its inputs are, and its result is sent; so is what nothing wants. A variable that nothing wants, such as
    a moving average, is held where the values for it are computed.

    Args:
      operations: of one mesh, in the graph's order, those inside loops and choices among them.
      layout: the Layout.
    """

    def __init__(self, operations: Sequence[mtf.Operation], layout: Layout) -> None:
        self._layout, self._all = layout, (1 << layout.size) - 1
        self._masks: dict[tuple[str, int], int] = {}  # a bit for each processor, as are all numbers here
        self._wanted: dict[mtf.Tensor, int] = {}
        self._held: dict[mtf.Operation, int] = {}
        self._computing: dict[mtf.Tensor, int] = {}
        self._shared: set[mtf.Tensor] = set()  # those that are not computed everywhere: no rule says so
        if not layout.emptied:
            return
        # Whether a dimension of an operation is split; the loop below would ask so in each of its rounds
        self._partial = {op for op in operations if layout.splits(*(x.shape.dims for x in (*op.inputs, *op.outputs)))}
        self._inside = {op for outer in operations for op in within([outer]) if op is not outer}
        before = None
        while before != self._held:  # an update wants what its variable does, which is read before it
            before = dict(self._held)
            for op in reversed(operations):
                self._visit(op)
        for op in operations:
            self._settle(op)

    def holders(self, variable: mtf.Variable) -> frozenset[int]:
        """Return the processors that hold a variable, at least one for each slice of it."""
        holders, layout = self._numbers(self._held.get(variable, 0)), self._layout
        if len(holders) == layout.size:
            return holders
        boxes = self._boxes(variable.shape)
        held = {boxes[pnum] for pnum in holders}
        return holders | {boxes.index(box) for box in boxes if box not in held}

    def sources(self, tensor: mtf.Tensor) -> list[int] | None:
        """Return the processor whose slice each one uses; None: each has its own."""
        mask = self._computing.get(tensor, self._all)
        if mask == self._all or tensor not in self._shared:
            return None
        return find_users(self._boxes(tensor.shape), range(self._layout.size), self._numbers(mask))

    def computing(self, op: mtf.Operation) -> list[bool] | None:
        """Return whether each processor does an operation of which it has a part; None: all do."""
        if not self._layout.emptied or not (op.outputs or isinstance(op, mtf.Assign)):
            return None
        if isinstance(op, (mtf.Assign, mtf.Variable)):
            there = frozenset[int]().union(*map(self.holders, op.variables if isinstance(op, mtf.Assign) else [op]))
        else:
            sources = self.sources(op.outputs[0])
            there = range(self._layout.size) if sources is None else frozenset(sources)
        return [pnum in there for pnum in range(self._layout.size)]

    def _boxes(self, shape: mtf.Shape) -> list[tuple[tuple[int, int], ...]]:
        return [tuple(self._layout.slices(shape.dims, pnum)) for pnum in range(self._layout.size)]

    def _numbers(self, mask: int) -> frozenset[int]:
        return frozenset(pnum for pnum in range(self._layout.size) if (mask or self._all) >> pnum & 1)

    def _join(self, masks: Iterable[int]) -> int:
        return functools.reduce(operator.or_, masks, 0)

    def _having(self, tensors: Iterable[mtf.Tensor]) -> int:
        """Return the processors that have a part of all these tensors."""
        mask = self._all
        for tensor in tensors:
            for dim in tensor.shape.dims:
                if dim.name in self._layout.emptied:
                    mask &= self._having_dim(dim)
        return mask

    def _having_dim(self, dim: mtf.Dimension) -> int:
        if (dim.name, dim.size) not in self._masks:
            sizes = [size for (size,) in self._layout.slice_shapes([dim])]
            self._masks[dim.name, dim.size] = sum(1 << pnum for pnum, size in enumerate(sizes) if size)
        return self._masks[dim.name, dim.size]

    def _visit(self, op: mtf.Operation) -> None:
        if isinstance(op, mtf.Variable):
            self._hold(op, self._wanted.get(op.outputs[0], 0))
        elif isinstance(op, mtf.ReadVariable):
            self._hold(op._var, self._wanted.get(op.outputs[0], 0))
        elif isinstance(op, mtf.Assign):
            for variable, value in zip(op.variables, op.inputs, strict=True):
                self._want(value, self._held.get(variable, 0))
        else:
            self._want_inputs(op)

    def _want_inputs(self, op: mtf.Operation) -> None:
        if op in self._inside or hasattr(op, "blocks") or isinstance(op, mtf.WhileLoopOperation):
            wanting = self._all
        elif op in self._partial:
            wanting = self._join(self._having([y]) for y in op.outputs)
            wanting &= self._having(op.inputs) if is_contraction(op) else self._all
        else:
            wanting = self._join(self._wanted.get(y, 0) for y in op.outputs)
            made = sum(y.shape.size for y in op.outputs)
            for x in op.inputs:
                if x.shape.size <= made:  # else the result is sent
                    self._want(x, wanting)
            return
        for x in op.inputs:
            self._want(x, wanting & self._having([x]))

    def _want(self, tensor: mtf.Tensor, mask: int) -> None:
        self._wanted[tensor] = self._wanted.get(tensor, 0) | mask

    def _hold(self, variable: mtf.Operation, mask: int) -> None:
        self._held[variable] = self._held.get(variable, 0) | mask & self._having(variable.outputs)

    def _settle(self, op: mtf.Operation) -> None:
        """Decide where the operation is done, after those before it."""
        if isinstance(op, mtf.Assign):
            for variable, value in zip(op.variables, op.inputs, strict=True):
                if not self._held.get(variable, 0):
                    self._hold(variable, self._computing.get(value, self._all))
        elif isinstance(op, mtf.Variable):
            self._computing[op.outputs[0]] = self._held[op] or self._all
        elif op in self._partial:
            is_sum = is_contraction(op) or self._having(op.outputs) == self._all
            self._computing |= dict.fromkeys(op.outputs, (is_sum and self._having(op.inputs)) or self._all)
        elif op not in self._inside:
            there = functools.reduce(operator.and_, (self._computing.get(x, self._all) for x in op.inputs), self._all)
            wanted = self._join(self._wanted.get(y, 0) for y in op.outputs)
            is_smaller = any(x.shape.size > sum(y.shape.size for y in op.outputs) for x in op.inputs)
            mask = (is_smaller and there) or wanted or there or self._all
            self._computing |= dict.fromkeys(op.outputs, mask)
            self._shared |= set(op.outputs)

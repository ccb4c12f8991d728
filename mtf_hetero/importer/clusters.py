"""Operations on elements: many at once, as one function of slices."""

import itertools
from collections.abc import Callable, Mapping

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import facts
from mtf_hetero._support.ops import binary, constant, reshape
from mtf_hetero.importer import table, work
from mtf_hetero.importer.emitter import Axes, Emitter, flat, number
from mtf_hetero.importer.program import Operation, Value
from mtf_hetero.importer.replaying import replay
from mtf_hetero.layers import Function, FunctionOperation

_DEEPEST = 40  # operations one after another in a cluster

Slices = Mapping[mtf.Tensor, tf.Tensor]


def waits(emitter: Emitter, op: Operation) -> bool:
    """Return whether an operation joins the cluster of its only user, with which it is emitted."""
    user = emitter.users.get(op.outputs[0]) if len(op.outputs) == 1 else None
    if op.type == "BroadcastTo":
        return user is not None and _is_broadcast_by(emitter, op.outputs[0], user)
    if user is None or not table.is_elementwise(user) or _adds_sums(emitter, user):
        return False
    return _joins(emitter, op, user)


def emit(emitter: Emitter, op: Operation) -> None:
    """Emit an operation on elements, with those before it that only it needs."""
    (result,) = op.outputs
    axes = emitter.axes(result)
    if _adds_sums(emitter, op):
        terms = [emitter.get(value, _broadcast(value, axes)) for value in op.inputs]
        total = terms[0]
        for term in terms[1:]:
            total = mtf.add(total, term, output_shape=mtf.Shape(flat(axes)))
        emitter.worked_on(op, flat(axes))
        emitter.put(result, total, axes)
        return
    cluster = _Cluster(emitter)
    evaluate, shape = cluster.add(op, axes, _DEEPEST), mtf.Shape(flat(axes))
    tensors = list(cluster.leaves)
    shapes = [t.shape for t in tensors]

    def apply(*slices: tf.Tensor) -> tf.Tensor:
        aligned = [_align(x, s, shape) for x, s in zip(slices, shapes, strict=True)]
        return evaluate(dict(zip(tensors, aligned, strict=True)))

    function = Function(apply, cluster.work, cluster.describe)
    made = FunctionOperation(function, tensors, [shape], [result.dtype], shape.dims, op.type)
    emitter.put(result, made.outputs[0], axes)


def _align(x: tf.Tensor, mine: mtf.Shape, wanted: mtf.Shape) -> tf.Tensor:
    """Return a slice in the order of the dimensions of the result, to which TensorFlow's operations broadcast it."""
    order = [mine.dims.index(d) for d in wanted.dims if d in mine.dims]
    if order != sorted(order):
        x = tf.transpose(x, constant(order))
    missing = [d not in mine.dims for d in wanted.dims]
    if not any(itertools.dropwhile(bool, missing)):  # the first dimensions alone are missing
        return x
    sizes = iter(x.shape.as_list())
    return reshape(x, [1 if is_missing else next(sizes) for is_missing in missing])


def _broadcast(value: Value, axes: Axes) -> Axes:
    """Return the axes that an operand is to have, of those of the result."""
    mine = axes[len(axes) - len(value.shape) :]
    return [[] if n == 1 else axis for n, axis in zip(value.shape, mine, strict=True)]


def _is_broadcast_by(emitter: Emitter, value: Value, user: Operation) -> bool:
    """Return whether a value is a smaller one that is broadcast, as its user does by itself beside a larger operand."""
    makers = {other: emitter.makers.get(other) for other in user.inputs}
    broadcast = [other for other, maker in makers.items() if maker is not None and maker.type == "BroadcastTo"]
    others = [other for other in user.inputs if other not in broadcast and other.array is None]
    is_alone = user.type not in facts.BROADCASTING or _adds_sums(emitter, user)
    return value in broadcast and not is_alone and any(other.shape == user.outputs[0].shape for other in others)


def _adds_sums(emitter: Emitter, op: Operation) -> bool:
    """Return whether an operation adds to a sum over dimensions, which is all-reduced after the addition."""
    if op.type not in facts.ADDITIONS or any(v.array is not None for v in op.inputs):
        return False
    makers = [emitter.makers.get(value) for value in op.inputs]
    return any(maker is not None and maker.type in facts.SUMS for maker in makers)


def _joins(emitter: Emitter, op: Operation, user: Operation) -> bool:
    """Return whether an operation is computed in the cluster of its only user."""
    value = op.outputs[0]
    return (
        table.is_elementwise(op)
        and value.uses == 1
        and not _adds_sums(emitter, op)
        and flat(emitter.axes(value)) == flat(_broadcast(value, emitter.axes(user.outputs[0])))
    )


class _Cluster:
    """Operations that are one function of slices.

    Attributes:
      leaves: the tensors that the function reads.
      work: of all operations.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.leaves: dict[mtf.Tensor, None] = {}
        self.work: dict[tuple[mtf.Dimension, ...], tuple[int, int]] = {}
        self._emitter = emitter
        self._operations: list[tuple[Operation, list[int | str | None]]] = []  # with the numbers of what each reads

    def add(self, op: Operation, axes: Axes, depth: int) -> Callable[[Slices], tf.Tensor]:
        """Add an operation, with those before it that only it needs.

        Returns:
          A function from {leaf: slice} to what the operation gives.
        """
        parts: list[Callable[[Slices], tf.Tensor]] = []
        read: list[int | str | None] = []
        for operand in op.inputs:
            value, wanted = operand, _broadcast(operand, axes)
            maker = self._emitter.makers.get(value)
            if maker is not None and _is_broadcast_by(self._emitter, operand, op):
                value = maker.inputs[0]
                wanted = _broadcast(value, wanted)
            if value.array is not None and value.array.ndim == 0:
                parts.append(lambda slices, v=value: number(v))
                read.append(None)
            elif value is operand and depth and maker is not None and _joins(self._emitter, maker, op):
                parts.append(self.add(maker, wanted, depth - 1))
                read.append(len(self._operations))
            else:
                leaf = self._emitter.get(value, wanted)
                self.leaves[leaf] = None
                parts.append(lambda slices, leaf=leaf: slices[leaf])
                read.append(f"leaf {list(self.leaves).index(leaf)}")
        self._emitter.worked_on(op, flat(axes))
        self._count(op, axes)
        self._operations.append((op, read))

        def evaluate(slices: Slices) -> tf.Tensor:
            inputs = [part(slices) for part in parts]
            if op.type == "BiasAdd":  # the bias is expanded to the dimensions of the result
                return binary("AddV2", inputs[0], inputs[1])
            return replay(op, inputs)[0]

        return evaluate

    def _count(self, op: Operation, axes: Axes) -> None:
        for dims, (flops, moved) in work.of(op, flat(axes)).items():
            before = self.work.get(dims, (0, 0))
            self.work[dims] = before[0] + flops, before[1] + moved

    def describe(self) -> str:
        """Return a text that is the same for two clusters only if they compute the same."""
        return "; ".join(f"{work.describe(op)} of {read}" for op, read in self._operations)

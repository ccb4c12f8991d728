"""Batch norms: a normalisation by the moments of a batch, and its gradient, become one operation each.

Where a device has whole channels, TensorFlow's fused operation then needs a third of the passes over an image. The
patterns are those of `tf.nn.batch_normalization`, as Keras's layer calls it, and of TensorFlow's gradient of it. What
is written in another way stays as it is.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from mtf_hetero._support import facts
from mtf_hetero.importer.pieces import reshaped
from mtf_hetero.importer.program import Operation, Value, replacing
from mtf_hetero.importer.signature import axis_numbers
from mtf_hetero.importer.table import BATCH_NORM, BATCH_NORM_GRADIENT, MOMENTS

Pattern: TypeAlias = (
    "str | tuple"  # a name of a value; or a type with the patterns of its operands, perhaps "name:type"
)
Found: TypeAlias = dict[str, Value]  # by the names of patterns

_INVERSE = ("inverse:Rsqrt", ("AddV2", "variance", "epsilon"))  # of the deviation
_FACTOR = ("factor:Mul", _INVERSE, "scale")
_Y = ("AddV2", ("Mul", "x", _FACTOR), ("Sub", "offset", ("Mul", "mean", _FACTOR)))
_D_OFFSET = ("d_offset:Sum", "dy", "axes")
_D_FACTOR = ("d_factor:AddN", ("Sum", ("Mul", "x", "dy"), "axes"), ("Mul", ("Neg", _D_OFFSET), "mean"))
_D_SCALE = ("Mul", _D_FACTOR, _INVERSE)
_D_VARIANCE = ("RsqrtGrad", _INVERSE, ("Mul", _D_FACTOR, "scale"))
_D_X = (  # what is added up
    ("Mul", "dy", _FACTOR),
    ("RealDiv", ("Tile", ("Mul", ("Neg", _D_OFFSET), _FACTOR), "repeats"), "count"),
    ("Mul", ("Mul", "two", ("RealDiv", ("Tile", _D_VARIANCE, "repeats"), "count")), ("Sub", "x", "mean")),
)


def join(operations: Iterable[Operation]) -> list[Operation]:
    """Return operations in which each batch norm is one, and each gradient of one; parts may be needed no more.

    Args:
      operations: each after those that it reads, with moments joined.
    """
    operations = list(operations)
    moments = [op for op in operations if op.type == MOMENTS]
    if not moments:
        return operations
    joining = _Joining(operations)
    for op in moments:
        joining.join(op)
    return [each for op in joining.operations for each in joining.instead.get(op, [op])]


def find_unjoined(operations: Sequence[Operation]) -> list[Operation]:
    """Return the inverse deviations that are left of batch norms: these, or their gradients, have another pattern.

    Args:
      operations: of a step, joined.
    """
    makers = {value: op for op in operations for value in op.outputs}
    return [
        op for op in operations if op.type == "Rsqrt" and _is_of_channels(_find_added(op.inputs[0], makers), makers)
    ]


def _find_added(value: Value, makers: Mapping[Value, Operation]) -> Value | None:
    """Return the value to which a constant is added, perhaps of another shape; None if none is."""
    op = makers.get(value)
    if op is None or op.type != "AddV2" or sum(x.array is None for x in op.inputs) != 1:
        return None
    found = next(x for x in op.inputs if x.array is None)
    while (op := makers.get(found)) is not None and op.type in facts.REGROUPING:
        found = op.inputs[0]
    return found


def _is_of_channels(value: Value | None, makers: Mapping[Value, Operation]) -> bool:
    """Return whether a value is the variance of each channel."""
    op = None if value is None else makers.get(value)
    if op is None or value is not op.outputs[-1] or op.type not in (MOMENTS, BATCH_NORM):
        return False
    return op.type == BATCH_NORM or _is_over_all_but_channels(op)


def _is_over_all_but_channels(moments: Operation) -> bool:
    x, axes = moments.inputs
    return set(axis_numbers(axes, len(x.shape))) == set(range(len(x.shape) - 1))


class _Joining:
    """Operations, and what is to take the places of some.

    Args:
      operations: in their order.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.instead: dict[Operation, list[Operation]] = {}
        self._place = {op: number for number, op in enumerate(operations)}
        self._makers = {value: op for op in operations for value in op.outputs}
        self._readers: dict[Value, list[Operation]] = {}
        for op in operations:
            for value in op.inputs:
                self._readers.setdefault(value, []).append(op)

    def join(self, moments: Operation) -> None:
        """Join the batch norm of some moments, if there is one, and its gradient."""
        (x, axes), (mean, variance) = moments.inputs, moments.outputs
        if not _is_over_all_but_channels(moments):  # channels are the last axis
            return
        start = {"x": x, "axes": axes, "mean": mean, "variance": variance}
        for op in self._read(x, "Mul"):
            for y in self._read(op.outputs[0], "AddV2"):
                found = self._matched(_Y, y.outputs[0], start)
                if found is not None and self._is_ready(found, moments):
                    self._join_gradient(found, self._join_forward(found, moments, y))
                    return

    def _is_ready(self, found: Found, moments: Operation) -> bool:
        """Return whether scale and offset are vectors that the step has before the moments."""
        vectors = [found["scale"], found["offset"]]
        makers = [self._makers[value] for value in vectors if value in self._makers]
        are_vectors = all(value.shape == found["x"].shape[-1:] and value.array is None for value in vectors)
        is_earlier = all(self._place[maker] < self._place[moments] for maker in makers)
        return are_vectors and is_earlier and found["epsilon"].array is not None and not found["epsilon"].shape

    def _join_forward(self, found: Found, moments: Operation, y: Operation) -> Operation:
        vectors = [Value(found["scale"].shape, value.dtype, name=value.name) for value in moments.outputs]
        inputs = [found[name] for name in ("x", "scale", "offset", "epsilon")]
        norm = Operation(BATCH_NORM, inputs, [*y.outputs, *vectors], {}, source=y.source)
        self.instead[moments] = [norm, *map(reshaped, vectors, moments.outputs)]
        self.instead[y] = []
        return norm

    def _join_gradient(self, found: Found, norm: Operation) -> None:
        for dy, total in self._gradients(found):
            start = {**found, "dy": dy}
            match = self._addends(total, start)
            if match is None:
                continue
            start, others = match
            ends = [op for op in self._read(start["inverse"], "Mul") if self._matched(_D_SCALE, op.outputs[0], start)]
            if not ends:
                continue
            (x, scale, *_), d_offset = norm.inputs, start["d_offset"]
            vectors = [Value(scale.shape, scale.dtype, name=value.name) for value in (ends[0].outputs[0], d_offset)]
            d_x = Value(x.shape, x.dtype, name=total.outputs[0].name) if others else total.outputs[0]
            made = Operation(
                BATCH_NORM_GRADIENT, [dy, x, *norm.outputs[1:], scale], [d_x, *vectors], {}, source=total.source
            )
            here = self.instead.setdefault(self._makers[d_offset], [])  # which batch norms that are added up share
            here += [made] if here else [made, reshaped(vectors[1], d_offset)]
            self.instead[ends[0]] = [reshaped(vectors[0], ends[0].outputs[0])]
            rest = replacing("AddN", [d_x, *others], total.outputs[0], total.source, N=1 + len(others))
            self.instead[total] = [rest] if others else []
            return

    def _gradients(self, found: Found) -> Iterator[tuple[Value, Operation]]:
        """Yield what may be the gradient to y, each with the sum that may be the gradient to x."""
        for op in self._read(found["factor"], "Mul"):
            for value in op.inputs:
                if value.shape == found["x"].shape and value is not found["x"]:
                    yield from ((value, total) for total in self._read(op.outputs[0], "AddN"))

    def _addends(self, total: Operation, start: Found) -> tuple[Found, list[Value]] | None:
        """Return what is found in a sum, and the addends that are not of the batch norm."""
        found, others = start, list(total.inputs)
        for pattern in _D_X:
            matches = ((value, self._matched(pattern, value, found)) for value in others)
            value, match = next((pair for pair in matches if pair[1] is not None), (None, None))
            if value is None or match is None:
                return None
            found = match
            others.remove(value)
        numbers = [found[name].array for name in ("count", "two")]
        is_mean = numbers == [math.prod(start["x"].shape[:-1]), 2.0]
        return (found, others) if is_mean and total.outputs[0].shape == start["x"].shape else None

    def _read(self, value: Value, kind: str) -> list[Operation]:
        """Return the operations of a type that read a value."""
        return [op for op in self._readers.get(value, ()) if op.type == kind]

    def _matched(self, pattern: Pattern, value: Value, found: Found) -> Found | None:
        """Return what is found, and the values of a pattern; None if a value is not as in the pattern."""
        base = self._base(value)
        if isinstance(pattern, str):
            return self._named(pattern, value if value.array is not None else base, found)
        (name, _, kind), *parts = (pattern[0].rpartition(":"), *pattern[1:])
        if name in found:
            return found if found[name] is base else None
        op = self._makers.get(base)
        if op is None or op.type != kind or len(op.inputs) != len(parts):
            return None
        for inputs in itertools.permutations(op.inputs) if kind in facts.COMMUTING else [op.inputs]:
            match: Found | None = found
            for part, each in zip(parts, inputs, strict=True):
                match = None if match is None else self._matched(part, each, match)
            if match is not None:
                return {**match, name: base} if name else match
        return None

    def _named(self, name: str, value: Value, found: Found) -> Found | None:
        if name not in found:
            return {**found, name: value}
        one = found[name]
        if one.array is not None and value.array is not None:
            return found if one.array.tolist() == value.array.tolist() else None
        return found if self._base(one) is value else None

    def _base(self, value: Value) -> Value:
        """Return the vector from which axes of size 1 before the channels make a value; the value if none does."""
        while _is_vector(value) and (op := self._makers.get(value)) is not None and op.type in facts.REGROUPING:
            if not _is_vector(op.inputs[0]):
                break
            value = op.inputs[0]
        return value


def _is_vector(value: Value) -> bool:
    return bool(value.shape) and math.prod(value.shape) == value.shape[-1]

"""Islands: operations on tensors whose shapes depend on the data, between tensors of fixed shapes.

No layout divides what has no fixed shape. So each device computes all of an island, on complete inputs, as it does with
any operation without a rule. Only tensors of fixed shapes enter and leave it. A condition or a loop that gives or
changes tensors of open shapes is in an island as a whole, with the lists that it keeps for its gradient.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute
from mtf_hetero.importer import recording, shapes
from mtf_hetero.importer.preparing import Preparation
from mtf_hetero.importer.program import ISLAND, Block, Meaning, Operation, Value, within
from mtf_hetero.importer.reader import Part, Reader
from mtf_hetero.importer.replaying import replay

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph

_NOT_ON_DEVICES = (tf.string, tf.resource)


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """An operation where it is read.

    Args:
      graph: the graph of the function that has it.
      node: the operation as it was traced.
      inputs: what it reads.
      now: the values of the variables before it.
      path: as of a Reader.
      inside: as of a Reader.
    """

    graph: "FuncGraph"
    node: tf.Operation
    inputs: Sequence[Meaning]
    now: list[Meaning]
    path: tuple[str, ...]
    inside: tuple[Part, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Recorded:
    """The meaning of an operation's results, the variables after it, and whether it reads an open shape."""

    results: Sequence[Meaning]
    now: Sequence[Meaning]
    is_open: bool


class Islands:
    """The tensors of open shapes of a program that is being read.

    Args:
      preparation: the operations on arguments alone, of which an island may need some; None: there are none.
    """

    def __init__(self, preparation: Preparation | None) -> None:
        self._preparation = preparation
        self._makers: dict[Value, Operation] = {}  # of what is within islands
        self._graph = tf.Graph()  # in which TensorFlow infers shapes
        self._tensors: dict[Value, tf.Tensor] = {}  # of that graph
        self._recorded: dict[Place, _Recorded | None] = {}
        # {id of a result that islands have in another form: itself, where it was made, and its number}
        self._results: dict[int, tuple[Meaning, Place, int]] = {}

    def may_add(self, reader: Reader, place: Place, refused: NotImplementedError) -> bool:
        """Return whether devices can run an operation that reads an open shape."""
        recorded = self._record(reader, place, refused)
        return recorded is not None and recorded.is_open

    def add(self, reader: Reader, place: Place, refused: NotImplementedError) -> list[Meaning] | None:
        """Add an operation that was refused; returns its results, or None: devices cannot run it.

        Args:
          reader: of the program.
          place: of the operation.
          refused: the error for a device that needs a result of an open shape.
        """
        recorded = self._record(reader, place, refused)
        if recorded is None:
            return None
        fixed = {}
        for tensor, value in zip(place.node.outputs, recorded.results, strict=True):
            if value in self._tensors and (shape := self._shape(value, tensor.shape)).is_fully_defined():
                fixed[value] = shape
        for variable, before, after in zip(reader.program.variables, place.now, recorded.now, strict=True):
            if after is not before and after in self._tensors:
                fixed[after] = tf.TensorShape(variable.before.shape)
        closed = self._close(reader, fixed) if fixed else {}
        reader.now = [closed.get(value, value) for value in recorded.now]
        return [closed.get(value, value) for value in recorded.results]

    def remember(self, place: Place, outputs: Sequence[Meaning]) -> None:
        """Remember where something was made that islands have in another form: a list, or rows of which some exist."""
        for number, value in enumerate(outputs):
            if place.node.outputs[number].dtype == tf.variant or (isinstance(value, Value) and value.refused):
                _, known, _ = self._results.get(id(value), (value, None, 0))
                if known is None or len(place.inside) < len(known.inside):  # a condition gives what a branch made
                    self._results[id(value)] = value, place, number

    def _record(self, reader: Reader, place: Place, refused: NotImplementedError) -> _Recorded | None:
        """Record an operation as it is; returns None if devices cannot run it."""
        if place not in self._recorded:
            try:
                self._recorded[place] = self._try_to_record(reader, place, refused)
            except (NotImplementedError, ValueError):  # TensorFlow refuses the shapes
                self._recorded[place] = None
        return self._recorded[place]

    def _try_to_record(self, reader: Reader, place: Place, refused: NotImplementedError) -> _Recorded:
        inputs = [self._enter(reader, x, refused) for x in place.inputs]
        with reader.recording(recording.record, refused, place.now, place.path) as part:
            results = recording.record(reader, place.graph, place.node, inputs)
        for op in part.operations:
            if not self._may_join(op):
                raise refused
            self._makers |= dict.fromkeys(op.outputs, op)
            self._infer(op)
        is_open = any(isinstance(x, Value) and self._maker(x) is not None for x in inputs)
        return _Recorded(results, part.now, is_open)

    def _enter(self, reader: Reader, x: Meaning, refused: NotImplementedError) -> Meaning:
        """Return what an island reads in place of something.

        Raises:
          NotImplementedError: it is not known how that was made.
        """
        if isinstance(x, int):
            return x
        if isinstance(x, Value) and x.elements is None and (x.refused is None or self._maker(x) is not None):
            return x
        if id(x) not in self._results:
            raise refused
        _, place, number = self._results[id(x)]
        is_here = reader.inside[: len(place.inside)] == place.inside  # else its values are of another part
        recorded = self._record(reader, place, refused) if is_here else None
        if recorded is None:
            raise refused
        return recorded.results[number]

    def _may_join(self, op: Operation) -> bool:
        """Return whether devices can run an operation on inputs of any shape, and those of this process before it."""
        todo, seen = [op], set[Operation]()
        while todo:
            last = todo.pop()
            if last in seen:
                continue
            seen.add(last)
            for each in within([last]):
                values = [*each.inputs, *each.outputs]
                if each.is_stateful or not all(isinstance(x, Value) and x.dtype not in _NOT_ON_DEVICES for x in values):
                    return False
            makers = [self._maker(x) for x in last.inputs if x.refused is not None and x not in self._makers]
            if None in makers:
                return False
            todo += [maker for maker in makers if maker is not None]
        return True

    def _maker(self, value: Value) -> Operation | None:
        """Return the operation of an island that makes a value; None: the value is fixed, and enters it."""
        if value in self._makers:
            return self._makers[value]
        if self._preparation is None or value.refused is None:
            return None
        return self._preparation.maker(value)

    def _infer(self, op: Operation) -> None:
        """Infer the shapes of an operation's results, and of those before it."""
        for value in op.inputs:
            maker = self._maker(value)
            if value not in self._tensors and maker is not None:
                self._infer(maker)
        with self._graph.as_default():
            made = replay(op, [self._tensors[x] if x in self._tensors else shapes.stand_in(x) for x in op.inputs])
        self._tensors |= zip(op.outputs, made, strict=True)

    def _shape(self, value: Value, traced: tf.TensorShape) -> tf.TensorShape:
        """Return the shape of a value; that of a list is not fixed."""
        if value.dtype == tf.variant:
            return tf.TensorShape(None)
        return self._tensors[value].shape.merge_with(traced)

    def _close(self, reader: Reader, fixed: Mapping[Value, tf.TensorShape]) -> dict[Value, Value]:
        """Return {value of a fixed shape within an island: result of the island}."""
        operations, todo = dict[Operation, None](), [self._makers[value] for value in fixed]
        while todo:
            last = todo[-1]
            before = [maker for x in last.inputs if (maker := self._maker(x)) is not None and maker not in operations]
            todo += before
            if not before:
                operations[todo.pop()] = None
        own = {value for each in operations for value in each.outputs}
        read = dict.fromkeys(x for each in operations for x in each.inputs if x not in own and x.array is None)
        results = [Value(tuple(shape.as_list()), value.dtype, name=value.name) for value, shape in fixed.items()]
        block = Block(list(read), list(operations), list(fixed))
        attributes = {"island": attribute(_describe(block))}
        made = reader.add(Operation(ISLAND, list(read), results, attributes, island=block))
        return dict(zip(fixed, made, strict=True))


def _describe(block: Block, outer: Mapping[Value, str] = MappingProxyType({}), prefix: str = "") -> str:
    """Return a text that is equal for islands that compute the same."""
    numbers = {**outer, **{value: f"{prefix}{number}" for number, value in enumerate(block.parameters)}}

    def name(x: Value) -> str:
        return numbers[x] if x.array is None else str((x.dtype.name, x.shape, x.array.tobytes()))

    lines = []
    for line, op in enumerate(block.operations):
        attributes = sorted(
            (name, proto.SerializeToString(deterministic=True)) for name, proto in op.attributes.items()
        )
        inner = [_describe(each, numbers, f"{prefix}{line}.{number}.") for number, each in enumerate(op.blocks)]
        lines.append(f"{op.type} {attributes} {[name(x) for x in op.inputs]} {inner}")
        numbers |= {value: f"{prefix}{line}:{number}" for number, value in enumerate(op.outputs)}
    return "\n".join([*lines, *map(name, block.results)])

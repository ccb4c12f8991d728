"""Islands: operations on tensors whose shapes depend on the data, between tensors of fixed shapes.

No layout divides what has no fixed shape. So each device computes all of an island, on complete inputs, as it does with
any operation without a rule. Only tensors of fixed shapes enter and leave it.
"""

from collections.abc import Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute
from mtf_hetero.importer import shapes
from mtf_hetero.importer.preparing import Preparation
from mtf_hetero.importer.program import ISLAND, Block, Meaning, Operation, Value, literal
from mtf_hetero.importer.reader import Reader
from mtf_hetero.importer.replaying import replay

_READS = {"ResourceGather": "GatherV2", "ResourceGatherNd": "GatherNd"}
_NOT_ON_DEVICES = (tf.string, tf.resource, tf.variant)


class Islands:
    """The tensors of open shapes of a program that is being read.

    Args:
      preparation: the operations on arguments alone, of which an island may need some; None: there are none.
    """

    def __init__(self, preparation: Preparation | None) -> None:
        self._preparation = preparation
        self._makers: dict[Value, Operation] = {}  # of open values
        self._graph = tf.Graph()  # in which TensorFlow infers shapes
        self._tensors: dict[Value, tf.Tensor] = {}  # of that graph

    def may_add(self, reader: Reader, node: tf.Operation, inputs: Sequence[Meaning]) -> bool:
        """Return whether devices can run an operation that reads an open shape."""
        op = _without_variables(reader, node, inputs)
        is_open = any(isinstance(x, Value) and x.refused is not None for x in inputs)
        return op is not None and is_open and self._may_join(op)

    def add(
        self, reader: Reader, node: tf.Operation, inputs: Sequence[Meaning], refused: NotImplementedError
    ) -> list[Value] | None:
        """Add an operation that reads or makes an open shape; returns its results, or None: it is of another kind.

        Args:
          reader: of the program.
          node: the operation as it was traced.
          inputs: what it reads.
          refused: the error for a device that needs a result of an open shape.
        """
        op = _without_variables(reader, node, inputs)
        if op is None or not self._may_join(op):
            return None
        is_open = any(x in self._makers or self._is_prepared(x) for x in op.inputs)
        try:
            self._infer(op)
        except ValueError:  # TensorFlow refuses the shapes
            return None
        traced = [self._tensors[y].shape.merge_with(t.shape) for y, t in zip(op.outputs, node.outputs, strict=True)]
        if not is_open and all(shape.is_fully_defined() for shape in traced):
            return None  # it was refused for another reason
        fixed = {y: shape for y, shape in zip(op.outputs, traced, strict=True) if shape.is_fully_defined()}
        for value in op.outputs:
            self._makers[value], value.refused = op, refused
        found = dict(zip(fixed, self._close(reader, op, fixed), strict=True)) if fixed else {}
        return [found.get(value, value) for value in op.outputs]

    def note(self, reader: Reader, node: tf.Operation, inputs: Sequence[Meaning], outputs: Sequence[Meaning]) -> None:
        """Note results of open shapes that the program has in another form: rows of which some exist."""
        are_open = [isinstance(y, Value) and y.refused is not None and self._maker(y) is None for y in outputs]
        op = _without_variables(reader, node, inputs) if any(are_open) else None
        if op is not None and self._may_join(op):
            op.outputs = [y if is_open else own for y, own, is_open in zip(outputs, op.outputs, are_open, strict=True)]
            self._makers |= {y: op for y, is_open in zip(outputs, are_open, strict=True) if is_open}

    def _may_join(self, op: Operation) -> bool:
        """Return whether devices can run an operation on inputs of any shape."""
        if op.is_stateful or op.blocks or not op.outputs:
            return False
        values = [*op.inputs, *op.outputs]
        if any(not isinstance(x, Value) or x.elements is not None or x.dtype in _NOT_ON_DEVICES for x in values):
            return False
        makers = [self._maker(x) for x in op.inputs if x.refused is not None]
        return all(maker is not None and self._may_join(maker) for maker in makers)

    def _is_prepared(self, value: Meaning) -> bool:
        """Return whether this process computes a value of an open shape of arguments alone."""
        return (
            self._preparation is not None and value.refused is not None and self._preparation.maker(value) is not None
        )

    def _maker(self, value: Value) -> Operation | None:
        """Return the operation of an island that makes a value; None: the value is fixed, and enters it."""
        if value in self._makers:
            return self._makers[value]
        return self._preparation.maker(value) if self._preparation and self._is_prepared(value) else None

    def _infer(self, op: Operation) -> None:
        """Infer the shapes of an operation's results, and of those before it."""
        for value in op.inputs:
            maker = self._maker(value)
            if value not in self._tensors and maker is not None:
                self._infer(maker)
        with self._graph.as_default():
            made = replay(op, [self._tensors[x] if x in self._tensors else shapes.stand_in(x) for x in op.inputs])
        self._tensors |= zip(op.outputs, made, strict=True)

    def _close(self, reader: Reader, op: Operation, fixed: Mapping[Value, tf.TensorShape]) -> Sequence[Value]:
        """Return values of fixed shapes that an operation makes, as results of an island."""
        operations, todo = dict[Operation, None](), [op]
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
        return reader.add(Operation(ISLAND, list(read), results, attributes, island=block))


def _without_variables(reader: Reader, node: tf.Operation, inputs: Sequence[Meaning]) -> Operation | None:
    """Return an operation, on the value that a variable has now if it reads rows of one; None: it writes one, say."""
    op = reader.operation(node, list(inputs))
    if not any(isinstance(x, int) for x in inputs):
        return op
    if node.type not in _READS:
        return None
    number, indices = inputs
    op.inputs, op.type = [reader.now[number], indices], _READS[node.type]
    types = {"Tparams": attribute(op.inputs[0].dtype), "Tindices": attribute(indices.dtype)}
    if op.type == "GatherV2":
        axis = op.attr("batch_dims", 0)
        op.inputs.append(literal(axis, tf.int32))
        types |= {"Taxis": attribute(tf.int32), "batch_dims": attribute(axis)}
    op.attributes, op.is_stateful = types, False
    return op


def _describe(block: Block) -> str:
    """Return a text that is equal for islands that compute the same."""
    numbers = {value: str(number) for number, value in enumerate(block.parameters)}
    lines = []
    for op in block.operations:
        known = {x: str((x.dtype.name, x.shape, x.array.tobytes())) for x in op.inputs if x.array is not None}
        inputs = [known.get(x) or numbers[x] for x in op.inputs]
        numbers |= {value: f"{len(lines)}:{number}" for number, value in enumerate(op.outputs)}
        attributes = sorted(
            (name, proto.SerializeToString(deterministic=True)) for name, proto in op.attributes.items()
        )
        lines.append(f"{op.type} {attributes} {inputs}")
    return "\n".join([*lines, *(numbers[value] for value in block.results)])

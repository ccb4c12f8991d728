"""Operations on arguments alone that no device can divide: this process does them before each step, and feeds the rest.

They work on strings, look something up in a table, sample classes, or make tensors whose shapes depend on the data.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero.importer.nodes import OPEN_SHAPE, RefusedError
from mtf_hetero.importer.program import Meaning, Operation, Program, Value
from mtf_hetero.importer.replaying import replay_all

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph, Function

SAMPLES = (
    "samples for labels that the step computes; sample where the data are prepared, and give the loss sampled_values"
)
_HANDLES = (tf.string, tf.resource, tf.variant)
_EXAMPLES = ((0, 0), (1, 0), (0, 1))  # zeros, ones, and different numbers
_TEXTS = ["", "a b", "c d, e; f"]  # of no word, of two, and of more


class Resource:
    """A resource that is no variable, such as a table.

    Args:
      tensor: its eager handle.
    """

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor

    def __str__(self) -> str:
        return f"a {self.tensor.dtype.name}"


class Preparation:
    """The operations of this process, of a program that is being read.

    Args:
      program: the program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._graph: FuncGraph | None = None  # in which TensorFlow infers the shapes
        self._tensors: dict[Meaning, tf.Tensor] = {}  # of that graph
        self._operations: list[Operation] = []  # of that graph, in their order
        self._makers: dict[Value, Operation] = {}
        self._nodes: dict[Value, tf.Operation] = {}
        self._settled: dict[Value, NotImplementedError] = {}  # and the error for another shape

    def add(self, node: tf.Operation, op: Operation, refused: NotImplementedError) -> list[Value] | None:
        """Add an operation, and what it is computed from; returns its results, or None: it needs more than arguments.

        Args:
          node: the operation as it was traced, perhaps for batches of any size.
          op: the operation, whose results have no shapes yet.
          refused: the error for a device that needs a result which it cannot have.
        """
        operations = self._find_operations(op)
        if operations is None:
            return None
        if self._graph is None:
            specs = [tf.TensorSpec(value.shape, value.dtype) for value in self._program.feeds]
            self._graph = tf.compat.v2.function(lambda *xs: xs).get_concrete_function(*specs).graph
            self._tensors = dict(zip(self._program.feeds, self._graph.inputs, strict=False))  # captures follow
        with self._graph.as_default():
            _replay(operations, self._tensors)
        self._operations += operations
        for value, traced in zip(op.outputs, node.outputs, strict=True):
            self._makers[value], self._nodes[value] = op, node
            shape = self._tensors[value].shape.merge_with(traced.shape).merge_with(self._looked_up_shape(op))
            self._tensors[value].set_shape(shape)
            if value.dtype in _HANDLES or not shape.is_fully_defined():
                value.refused = refused
            else:
                value.shape = tuple(shape.as_list())
        return op.outputs

    def maker(self, value: Value) -> Operation | None:
        """Return the operation of this process that makes a value; None: there is none."""
        return self._makers.get(value)

    def _looked_up_shape(self, op: Operation) -> tf.TensorShape:
        """Return the shape of what is looked up in a table of numbers or strings: TensorFlow does not infer it."""
        if op.type != "LookupTableFindV2" or op.inputs[2].shape:
            return tf.TensorShape(None)
        keys = op.inputs[1]
        return self._tensors[keys].shape if keys in self._tensors else tf.TensorShape(keys.shape)

    def _find_operations(self, op: Operation) -> list[Operation] | None:
        """Return an operation after those that it is computed by, from arguments alone; None: there are others."""
        makers = {value: made for made in self._program.operations for value in made.outputs} | self._makers
        found, todo = dict[Operation, None](), [op]
        while todo:
            last = todo[-1]
            values = [x for x in last.inputs if not isinstance(x, Resource)]
            is_pure = not last.is_stateful or last.type in facts.LOOKUPS | facts.SAMPLERS
            if not is_pure or last.blocks or not all(isinstance(x, Value) and x.elements is None for x in values):
                return None
            left = [x for x in values if x.array is None and x not in self._program.feeds and x not in self._tensors]
            if not all(x in makers for x in left):
                return None
            before = [makers[x] for x in left if makers[x] not in found]
            todo += before
            if not before:
                found[todo.pop()] = None
        return list(found)

    def settle(self, values: Sequence[Meaning]) -> bool:
        """Fix the shapes of values that are needed on the devices; returns whether these can have all of them.

        TensorFlow does not infer that a text of a batch becomes a row of so many words, for instance. So the shapes are
        those for three sets of arguments, if they are equal. Those of a step are compared with them.
        """
        refused = [x for x in values if isinstance(x, Value) and x.refused is not None]
        if not refused or any(x.dtype in _HANDLES or x not in self._tensors for x in refused):
            return False
        ends = list(dict.fromkeys(refused))
        function = self._function(ends)
        try:
            with tf.device("cpu:0"):
                sets = [function(*(_example(x, *numbers) for x in self._program.feeds)) for numbers in _EXAMPLES]
        except tf.errors.OpError:
            return False
        shapes = [[tuple(x.shape) for x in made] for made in sets]
        if any(shapes[0] != others for others in shapes[1:]):
            for value in ends:
                if OPEN_SHAPE not in str(value.refused):  # by an operation before it
                    value.refused = RefusedError(self._nodes[value], OPEN_SHAPE)
            return False
        for value, shape in zip(ends, shapes[0], strict=True):
            assert value.refused is not None
            self._settled[value], value.refused, value.shape = value.refused, None, shape
        return True

    def finish(self) -> None:
        """Have the program fed what it uses of this, once its uses are counted."""
        # a shape that was settled is compared in each step: it may have been read without its value
        used = [value for value in self._makers if value.uses or value in self._settled]
        if used:
            self._program.prepare = self._function(used)
        self._program.prepared = {value: self._settled.get(value) for value in used}
        sampled = set[Value]()
        for op in self._operations:
            if op.type in facts.SAMPLERS or not sampled.isdisjoint(op.inputs):
                sampled.update(op.outputs)
        self._program.sampled = sampled.intersection(used)

    def _function(self, ends: Sequence[Value]) -> "Function":
        """Return the function from arguments to values."""
        feeds, needed, operations = self._program.feeds, set(ends), list[Operation]()
        for op in reversed(self._operations):
            if not needed.isdisjoint(op.outputs):
                needed |= {x for x in op.inputs if isinstance(x, Value)}
                operations.insert(0, op)

        def prepare(*tensors: tf.Tensor) -> list[tf.Tensor]:
            made: dict[Meaning, tf.Tensor] = dict(zip(feeds, tensors, strict=True))
            _replay(operations, made)
            return [made[value] for value in ends]

        return tf.compat.v2.function(prepare, autograph=False)


def _example(value: Value, first: int, step: int) -> tf.Tensor:
    """Return an argument of numbers first, first + step, ..., or of texts."""
    numbers = first + step * tf.reshape(tf.range(math.prod(value.shape)), value.shape)
    return tf.gather(_TEXTS, numbers % 3) if value.dtype == tf.string else tf.cast(numbers, value.dtype)


def _replay(operations: Sequence[Operation], tensors: dict[Meaning, tf.Tensor]) -> None:
    """Make operations in the default graph; adds the tensors of their results to those of what they read."""
    tensors |= {x: tf.identity(x.tensor) for op in operations for x in op.inputs if isinstance(x, Resource)}
    replay_all(operations, tensors)

"""A traced step as plain data: operations on values, without variables, control flow or arithmetic of shapes."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute
from mtf_hetero.importer.nodes import user_line

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from mtf_hetero._compat import ConcreteFunction, Function

ISLAND = "Island"  # the type of an operation that stands for several
# A tensor of a function means a Value, a TensorList, an Optional, a Resource or a variable's number
Meaning: TypeAlias = Any


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor of the program: known, of the devices, rows of which some exist, of this process, or refused.

    Args:
      shape: its sizes.
      dtype: its tf.DType.
      array: its elements, if they are known before the step runs.
      name: names the dimensions that it is the first to have.
      uses: number of times that operations and results read it.
      elements: those of a TensorList that is a tensor of its own, in a loop; its dimensions are theirs.
      refused: the error for a device that needs it, if devices cannot have it.
      rows: all rows, which devices have in its place.
    """

    shape: tuple[int, ...]
    dtype: tf.DType
    array: np.ndarray | None = None
    name: str = ""
    uses: int = 0
    elements: "Elements | None" = None
    refused: NotImplementedError | None = None
    rows: "Rows | None" = None

    @property
    def home(self) -> "Value | Elements":
        """The owner of the value's dimensions: the value itself, or all TensorLists that one becomes."""
        return self if self.elements is None else self.elements.root


class Elements:
    """The elements of a TensorList in a loop, which are alike in all lists that the list becomes.

    Args:
      shape: of an element; None until the first one is known.
      dtype: of an element.
      length: number of elements, if it is the same before, in and after the loop.
      name: names their dimensions.
    """

    def __init__(self, shape: tuple[int, ...] | None, dtype: tf.DType, length: int | None, name: str) -> None:
        self.shape, self.dtype, self.length, self.name = shape, dtype, length, name
        self.are_optional = False  # each is that of a branch which may not have been taken
        self._same: Elements | None = None

    @property
    def root(self) -> "Elements":
        """The one that stands for all that are the same."""
        found = self
        while found._same is not None:
            found = found._same
        return found

    def unify(self, other: "Elements") -> None:
        """Make the elements of two lists the same."""
        one, two = self.root, other.root
        if one is not two:
            two._same = one
            one.shape = two.shape if one.shape is None else one.shape
            one.dtype = two.dtype if one.dtype == tf.variant else one.dtype  # of the innermost, if these are lists too
            one.are_optional |= two.are_optional
            one.length = one.length if one.length == two.length else None


@dataclasses.dataclass(eq=False)
class Rows:
    """Rows of which some exist, the first ones.

    Args:
      value: all rows; or the row of each number; or how many rows exist, of which nothing is known.
      exists: whether a row exists, of each one.
      kind: "rows", "numbers" or "count".
    """

    value: Value
    exists: Value
    kind: str = "rows"


@dataclasses.dataclass(eq=False)
class Block:
    """The operations of a loop's condition, of its body, or of a branch.

    Args:
      parameters: the values that it is given; those of a loop's condition and of its body are the same.
      operations: each after those that it reads.
      results: the values that it gives.
    """

    parameters: list[Value]
    operations: list["Operation"]
    results: list[Value]

    def list_ancestors(self, ends: Sequence[Value]) -> set[Value]:
        """Return all values that some of its values are computed from, and these."""
        found = set(ends)
        for op in reversed(self.operations):
            used = {i for i, value in enumerate(op.outputs) if value in found}
            if used:
                found |= op.read_for(used)[1]
        return found

    def keep_live(self) -> list[Value]:
        """Drop the operations that no result needs; returns the values from outside that the others read."""
        for value in self.results:
            value.uses += 1
        self.operations = live_operations(self.operations)
        return self.outside

    @property
    def outside(self) -> list[Value]:
        """The values from outside that it reads."""
        own = {value for op in self.operations for value in op.outputs}.union(self.parameters)
        read = [*(value for op in self.operations for value in op.inputs), *self.results]
        return [value for value in read if value not in own]


@dataclasses.dataclass(eq=False)
class Operation:
    """An operation of TensorFlow on values.

    A loop, "While", reads the first values of its variables, then what its blocks read from outside: a condition and a
    body. A choice, "Case", reads the number of a branch, or a condition for the second of two, then what these read.

    Args:
      type: its type, "MatMul" for instance.
      inputs: the values that it reads, lists flattened.
      outputs: the values that it makes.
      attributes: {name: tf.AttrValue}.
      is_stateful: whether two runs may give different results.
      source: the tf.Operation that was read when it was made.
      blocks: the operations within it.
      times: how often a step runs it, as far as is known.
      island: the operations that it stands for, whose values may have open shapes.
    """

    type: str
    inputs: list[Value]
    outputs: list[Value]
    attributes: Mapping[str, tf.AttrValue]
    is_stateful: bool = False
    source: tf.Operation | None = None
    blocks: tuple[Block, ...] = ()
    times: int = 1
    island: Block | None = None

    def keep_live(self) -> None:
        """Drop what nobody needs within it."""
        if not self.blocks:
            return
        kept = sorted(self.read_for({i for i, value in enumerate(self.outputs) if value.uses})[0])
        self.outputs = [self.outputs[i] for i in kept]
        own = self.inputs[:1]
        if self.type == "While":
            own = [self.inputs[i] for i in kept]
            for block in self.blocks:
                block.parameters = [block.parameters[i] for i in kept]
        for block in self.blocks[1:] if self.type == "While" else self.blocks:
            block.results = [block.results[i] for i in kept]
        outside = dict.fromkeys(v for block in self.blocks for v in block.keep_live() if v.array is None)
        self.inputs = [*own, *outside]

    def read_for(self, used: set[int]) -> tuple[set[int], set[Value]]:
        """Return the results that are needed for some of them, in a loop for the next turn too, and what is read."""
        if not self.blocks:
            return used, set(self.inputs)
        if self.type != "While":
            ends = [block.list_ancestors([block.results[i] for i in used]) for block in self.blocks]
            return used, set(self.inputs).union(*ends)
        condition, body = self.blocks
        while True:
            needed = condition.list_ancestors(condition.results) | body.list_ancestors([body.results[i] for i in used])
            more = used | {i for i, value in enumerate(body.parameters) if value in needed}
            if more == used:
                return used, needed | {self.inputs[i] for i in used}
            used = more

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a Python value."""
        if name not in self.attributes:
            return default
        proto = self.attributes[name]
        kind = proto.WhichOneof("value")
        if kind == "list":
            return next((list(numbers) for _, numbers in proto.list.ListFields()), [])
        value = getattr(proto, kind)
        if kind == "shape":
            return None if value.unknown_rank else [dim.size for dim in value.dim]
        return tf.as_dtype(value) if kind == "type" else value.decode() if kind == "s" else value

    @property
    def line(self) -> str:
        """Return the user's line, "model.py:12", that made the operation."""
        return user_line(self.source)


@dataclasses.dataclass(eq=False)
class Variable:
    """A variable of the program.

    Args:
      variable: the tf.Variable.
      before: its value before the step.
      after: its value after the step; `before` itself if the step does not write it.
    """

    variable: tf.Variable
    before: Value
    after: Value


@dataclasses.dataclass(frozen=True, eq=False)
class Guard:
    """A condition of which one branch is not followed, so that a step must not take it.

    Args:
      chosen: the condition, or the number of a branch.
      followed: what it must be.
      why: an error for a step that takes another branch.
    """

    chosen: Value
    followed: int
    why: str


@dataclasses.dataclass(eq=False)
class Program:
    """A function: (feeds, variables before) -> (results, variables after).

    Args:
      concrete: the traced function that was read.
      feeds: the arguments.
      prepared: {value that this process computes of them before each step: the error if a step has another shape}.
      sampled: those of these that depend on random numbers.
      prepare: computes these; None: there are none.
      variables: in the order in which the step captured them, those that are trained first.
      operations: each after those that it reads.
      results: the values that are fetched.
      hosted: variables that stay in this process: their values are fed, and fetched after the step.
      effects: operations without a result, such as Print and Assert, which are left out.
      guards: conditions that every step is to check.
      examples: number of feeds, the first ones, whose first axis is the batch if it has the same size.
      observed: tensors of the traced graph whose values are the last results, beside those of the function.
      is_staged: whether the batch has another name in each stage.
    """

    concrete: "ConcreteFunction"
    feeds: list[Value] = dataclasses.field(default_factory=list)
    prepared: dict[Value, NotImplementedError | None] = dataclasses.field(default_factory=dict)
    sampled: set[Value] = dataclasses.field(default_factory=set)
    prepare: "Function | None" = None
    variables: list[Variable] = dataclasses.field(default_factory=list)
    operations: list[Operation] = dataclasses.field(default_factory=list)
    results: list[Value] = dataclasses.field(default_factory=list)
    hosted: list[Variable] = dataclasses.field(default_factory=list)
    effects: list[tf.Operation] = dataclasses.field(default_factory=list)
    guards: list[Guard] = dataclasses.field(default_factory=list)
    examples: int = 1
    observed: list[tf.Tensor] = dataclasses.field(default_factory=list)
    is_staged: bool = False

    @property
    def inputs(self) -> list[Value]:
        """All values that are fed: devices have no strings."""
        fed = [value for value in self.feeds if value.dtype != tf.string]
        return [*fed, *self.prepared, *(variable.before for variable in self.hosted)]

    def list_fed(self, arguments: Sequence[object], *, are_hosted_fed: bool = True) -> list[np.ndarray | None]:
        """Return the arrays of `inputs`, perhaps without those of hosted variables; None where there is no argument.

        Raises:
          NotImplementedError: the shape of one depends on the data.
        """
        fed = [None if x is None else np.asarray(x) for x, v in zip(arguments, self.feeds) if v.dtype != tf.string]
        if self.prepare is not None:
            with tf.device("cpu:0"):
                prepared = self.prepare(*map(tf.convert_to_tensor, arguments))
            for x, (value, refused) in zip(prepared, self.prepared.items(), strict=True):
                if refused is not None and tuple(x.shape) != value.shape:
                    raise refused
                fed.append(x.numpy())
        return [*fed, *(variable.variable.numpy() for variable in self.hosted if are_hosted_fed)]

    @property
    def fetches(self) -> list[Value]:
        """All values that are fetched."""
        return [*self.results, *(v.after for v in self.hosted), *(guard.chosen for guard in self.guards)]

    def keep_here(self, variables: Collection[tf.Variable]) -> None:
        """Keep some of the variables in this process."""
        ids = {id(variable) for variable in variables}
        self.hosted = [v for v in self.variables if id(v.variable) in ids]
        self.variables = [v for v in self.variables if id(v.variable) not in ids]

    def keep_live(self) -> None:
        """Drop the operations that no result and no variable needs, and count the uses of values."""
        ends = [*self.fetches, *(v.after for v in self.variables if v.after is not v.before)]
        for value in ends:
            value.uses += 1
        self.operations = live_operations(self.operations)

    def list_ancestors(self, ends: Iterable[Value]) -> list[Operation]:
        """Return the operations that some values are computed by, in their order."""
        read, found = set(ends), []
        for op in reversed(self.operations):
            if not read.isdisjoint(op.outputs):
                found.append(op)
                read.update(op.inputs)
        return found[::-1]


def live_operations(operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations whose results are used, after counting the uses of what they read."""
    live = []
    for op in reversed(operations):
        if any(value.uses for value in op.outputs):
            op.keep_live()
            live.append(op)
            for value in op.inputs:
                value.uses += 1
    return live[::-1]


def within(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Yield operations, and those in their blocks."""
    for op in operations:
        yield op
        for block in op.blocks:
            yield from within(block.operations)


def like(value: Value, name: str) -> Value:
    """Return another value of the same shape and type."""
    return Value(value.shape, value.dtype, name=name, elements=value.elements)


def literal(array: "ArrayLike", dtype: tf.DType = tf.int32) -> Value:
    """Return a value that is known."""
    array = np.asarray(array, dtype.as_numpy_dtype)
    return Value(array.shape, dtype, array)


def synthetic(
    kind: str, inputs: Sequence[Value], shapes: Sequence[Sequence[int]], name: str, **more: tf.DType | int
) -> Operation:
    """Return an operation that was not traced; its first input has the type of its results.

    Args:
      kind: its type.
      inputs: what it reads.
      shapes: of its results.
      name: of its results.
      **more: attributes beside "T".
    """
    dtype = inputs[0].dtype
    attributes = {"T": attribute(dtype), **{key: attribute(value) for key, value in more.items()}}
    return Operation(kind, list(inputs), [Value(tuple(s), dtype, name=name) for s in shapes], attributes)


def replacing(
    kind: str, inputs: Sequence[Value], result: Value, source: tf.Operation | None = None, **more: tf.DType | int
) -> Operation:
    """Return an operation that was not traced, whose only result is a value that others read already.

    Args:
      kind: its type.
      inputs: as of `synthetic`.
      result: the value.
      source: the tf.Operation in whose place it is.
      **more: as of `synthetic`.
    """
    made = synthetic(kind, inputs, [result.shape], result.name, **more)
    made.outputs, made.source = [result], source
    return made

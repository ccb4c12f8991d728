"""Emits a program as an mtf.Graph, whose tensors have the dimensions that were inferred."""

import collections
import contextlib
import copy
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import constant, reshape, zeros
from mtf_hetero.importer.naming import Names
from mtf_hetero.importer.program import Block, Operation, Program, Value
from mtf_hetero.importer.signature import Letters, Signature
from mtf_hetero.layers import AfterOperation
from mtf_hetero.mesh import get_variable

Dims = list[mtf.Dimension]  # whose product is an axis
Axes = list[Dims]


class Emitter:
    """Has the mtf.Tensor of each value of a program that was emitted.

    Args:
      program: the program.
      names: its dimensions.
      mesh: mtf.Mesh of the graph.
      emit: emits an operation, given the emitter and whether its results are needed now.
    """

    def __init__(self, program: Program, names: Names, mesh: mtf.Mesh, emit: "Emit") -> None:
        self._names, self._emit = names, emit
        self.graph, self.mesh = mesh.graph, mesh
        self.makers: dict[Value, Operation] = {}
        self.users: dict[Value, Operation] = {}  # of values with one use, its user
        self.computed: dict[Operation, set[mtf.Dimension]] = {}  # the dimensions of each operation's work
        self._tensors: collections.ChainMap[Value, mtf.Tensor] = collections.ChainMap()
        self._renamed: collections.ChainMap[tuple[Value, tuple[mtf.Dimension, ...]], mtf.Tensor]
        self._renamed = collections.ChainMap()  # so that each is sent once
        self._named: dict[int, str] = {}
        self._used = set(names.fixed_labels)
        self._enclosed = {self._dimension(number) for number in names.enclosed}
        self._staged = {self._dimension(number) for number in names.staged}
        self._fresh = itertools.count()
        self._know(program.operations)

    def _know(self, operations: Sequence[Operation]) -> None:
        self.makers = {value: op for op in operations for value in op.outputs}
        self.users = {value: op for op in operations for value in op.inputs}

    def inside(self, block: Block) -> "Emitter":
        """Return an emitter for the operations of a block, which knows the tensors from outside."""
        inner = copy.copy(self)
        inner._tensors, inner._renamed = self._tensors.new_child(), self._renamed.new_child()
        inner._know(block.operations)
        return inner

    # --- dimensions

    def unique(self, name: str) -> str:
        """Return a name that no other dimension or variable has, and that a layout's rules can hold."""
        name = found = re.sub(r"[^\w/-]", "_", name) or "unnamed"
        for number in itertools.count(1):
            if found not in self._used:
                self._used.add(found)
                return found
            found = f"{name}_{number}"
        raise AssertionError

    def _dimension(self, number: int) -> mtf.Dimension:
        if number not in self._named:
            label = self._names.label(number)
            self._named[number] = label if self._names.is_fixed(number) else self.unique(label)
        return mtf.Dimension(self._named[number], self._names.size(number))

    def axes(self, value: Value) -> Axes:
        """Return the dimensions of each axis of a value."""
        return [[self._dimension(d) for d in axis] for axis in self._names.axes(value.home)]

    def shape(self, value: Value) -> mtf.Shape:
        """Return the mtf.Shape of a value's tensor, which is not its own where axes are products."""
        return mtf.Shape(flat(self.axes(value)))

    def fresh(self, size: int) -> mtf.Dimension:
        """Return a new dimension, which no layout splits."""
        return mtf.Dimension(f"whole{next(self._fresh)}", size)

    def single(self, dims: Dims | None, size: int) -> Dims:
        """Return dimensions if they are one; else a new one of the size."""
        return dims if dims and len(dims) == 1 else [self.fresh(size)]

    def bind(self, op: Operation, signature: Signature, *, gathers: bool = True) -> dict[Hashable, Dims]:
        """Return the dimensions of each letter, for this operation alone.

        They are those of its results where they can be, else the oldest of its operands, such as the batch; or of any
        side where a dense layer encloses them, or that has those of the operation's stage. No two letters share a
        dimension. To gather a letter that is needed whole, it gets a new dimension.
        """
        bound: dict[Hashable, Dims] = {}
        taken: set[mtf.Dimension] = set()
        skipped = {a for a, _ in signature.kin} if not gathers else set()  # they are named after their kin
        used = {self._dimension(number) for number in self._names.used(op)}
        ways: dict[Hashable, list[tuple[Dims, int]]] = {}
        for value, letters in self._sides(op, signature):
            for axis, letter, size in _single_letters(self.axes(value), letters, value.shape, signature.sizes):
                if letter is not None and letter not in skipped:
                    ways.setdefault(letter, []).append((axis, size))
        for letter, axes in ways.items():
            is_gathered = gathers and letter in signature.unsplit_letters
            # an axis of another size has no such factors
            free = [a for a, n in axes if math.prod(d.size for d in a) == n and not taken & set(a)]
            free.sort(key=used.isdisjoint)
            bound[letter] = [self.fresh(axes[0][1])] if is_gathered or not free else free[0]
            taken |= set(bound[letter])
        return bound

    def _sides(self, op: Operation, signature: Signature) -> list[tuple[Value, Letters]]:
        """Return the values with letters: enclosed ones, results, and operands from the oldest dimension on."""
        made = {letter for letters in signature.results for letter in letters}

        def age(side: tuple[Value, Letters]) -> float:
            axes = zip(self._names.axes(side[0]), side[1], strict=True)
            return min(
                (self._names.age(d) for axis, letter in axes if letter not in made for d in axis), default=math.inf
            )

        sides = signature.sides(op)[::-1]
        count = len(signature.results)
        sides = [*sides[:count], *sorted(sides[count:], key=age)]
        if self._enclosed:
            sides.sort(key=lambda side: self._enclosed.isdisjoint(flat(self.axes(side[0]))))
        return sides

    # --- tensors

    def feed(self, value: Value, tensor: tf.Tensor) -> mtf.Tensor:
        """Set the tensor of a value to one of TensorFlow; returns it."""
        shape = self.shape(value)
        fed = mtf.import_tf_tensor(self.mesh, reshape(tensor, shape.to_integer_list), shape)
        self._tensors[value] = fed
        return fed

    def variable(self, value: Value, *, trainable: bool) -> mtf.Variable:
        """Make the mtf.Variable of a value, which starts at zero."""
        shape = self.shape(value)
        self._tensors[value] = get_variable(
            self.mesh, value.name, shape, dtype=value.dtype, initializer=_zeros, trainable=trainable
        )
        made = self._tensors[value].operation
        assert isinstance(made, mtf.Variable)
        return made

    def get(self, value: Value, axes: Axes | None = None) -> mtf.Tensor:
        """Return the tensor of a value.

        Args:
          value: the value.
          axes: the dimensions that it is to have; None: its own, in any order.
        """
        if value not in self._tensors:
            if value.array is not None:
                self._tensors[value] = self._constant(value)
            else:
                self.emit(self.makers[value], is_needed=True)
        tensor, mine = self._tensors[value], flat(self.axes(value))
        if axes is None or flat(axes) == mine:
            return tensor
        wanted = flat(axes)
        key = value, tuple(wanted)
        if key not in self._renamed:
            arrived = self._in_stage(mine, wanted)
            if arrived not in (mine, wanted):  # so that it is sent once, however the stage calls its other dimensions
                tensor, mine = self.get(value, [arrived]), arrived
            self._renamed[key] = renamed(tensor, mine, wanted)
        return self._renamed[key]

    def _in_stage(self, mine: Dims, wanted: Dims) -> Dims:
        """Return a value's dimensions, of which those of its stage have become those of another stage."""
        if len(mine) != len(wanted):
            return mine
        return [b if {a, b} <= self._staged else a for a, b in zip(mine, wanted)]

    def laid(self, value: Value, axes: Axes) -> mtf.Tensor:
        """Return the tensor of a value, its dimensions those of some axes, in their order."""
        return ordered(self.get(value, axes), flat(axes))

    def _constant(self, value: Value) -> mtf.Tensor:
        array = value.array
        assert array is not None
        is_one_number = array.size > 0 and array.dtype != object and bool((array == array.flat[0]).all())
        shape = self.shape(value)
        content = array.flat[0] if is_one_number else np.reshape(array, shape.to_integer_list)
        return mtf.Constant(self.mesh, content, shape, value.dtype).outputs[0]

    def put(self, value: Value, tensor: mtf.Tensor, axes: Axes) -> None:
        """Set the tensor of a value, which has the dimensions `axes`."""
        self._tensors[value] = renamed(tensor, flat(axes), flat(self.axes(value)))

    def put_all(self, op: Operation, tensors: Sequence[mtf.Tensor], axes: Sequence[Axes]) -> None:
        """Set the tensors of the results of an operation."""
        for value, tensor, each in zip(op.outputs, tensors, axes, strict=True):
            self.put(value, tensor, each)

    def emit(self, op: Operation, *, is_needed: bool = False) -> None:
        """Emit an operation, unless it was; one that may wait, only if its results are needed now."""
        if not all(value in self._tensors for value in op.outputs):
            scope = self.graph.captured_variable_scope
            is_there = tf.get_variable_scope().name == scope.name  # it is another one in a gradient of mtf's
            with contextlib.nullcontext() if is_there else tf.variable_scope(scope):
                self._emit(self, op, is_needed)

    def worked_on(self, op: Operation, dims: Iterable[mtf.Dimension]) -> None:
        """Note the dimensions of an operation's work: it is divided if a layout splits one of them."""
        self.computed[op] = set(dims)

    # --- operands and results by a signature

    def operands(
        self, op: Operation, signature: Signature, bound: Mapping[Hashable, Dims]
    ) -> list[tuple[mtf.Tensor, Axes]]:
        """Return the tensor and the axes of each operand that is data."""
        pairs = zip(op.inputs, signature.operands, strict=True)
        wanted = [(value, _letter_axes(letters, bound)) for value, letters in pairs if letters is not None]
        return [(self.get(value, axes), axes) for value, axes in wanted]

    def results(self, signature: Signature, bound: Mapping[Hashable, Dims]) -> list[Axes]:
        """Return the axes of each result."""
        return [_letter_axes(letters, bound) for letters in signature.results]


def _letter_axes(letters: Sequence[Hashable], bound: Mapping[Hashable, Dims]) -> Axes:
    return [
        flat([bound[part] for part in letter]) if isinstance(letter, tuple) else [] if letter is None else bound[letter]
        for letter in letters
    ]


def _single_letters(
    axes: Axes, letters: Sequence[Hashable], sizes: Sequence[int], parts: Mapping[Hashable, int]
) -> Iterator[tuple[Dims, Hashable, int]]:
    """Yield dimensions, letter and size of each axis, and of each part of an axis with a tuple of letters."""
    for axis, letter, size in zip(axes, letters, sizes, strict=True):
        if not isinstance(letter, tuple):
            yield axis, letter, size
            continue
        left = list(axis)
        for part in letter:
            mine: Dims = []
            while left and math.prod(d.size for d in mine) < parts[part]:
                mine.append(left.pop(0))
            yield mine, part, parts[part]


def _zeros(shape: Sequence[int], dtype: tf.DType, **_: object) -> tf.Tensor:
    return zeros(list(shape), dtype)


def flat(axes: Axes) -> Dims:
    """Return all dimensions of some axes."""
    return [dim for axis in axes for dim in axis]


def plain(axes: Axes) -> list[list[tuple[str, int]]]:
    """Return name and size of each dimension of each axis."""
    return [[(dim.name, dim.size) for dim in axis] for axis in axes]


def renamed(tensor: mtf.Tensor, mine: Dims, wanted: Dims) -> mtf.Tensor:
    """Return a tensor with other dimensions of the same sizes in all.

    Args:
      tensor: mtf.Tensor, whose dimensions are in any order.
      mine: its dimensions in the order of its axes.
      wanted: the dimensions that it is to have instead, in that order.
    """
    if mine == wanted:
        return tensor
    return with_dims(ordered(tensor, mine), wanted)


def ordered(tensor: mtf.Tensor, dims: Dims) -> mtf.Tensor:
    """Return a tensor with its dimensions in an order."""
    return tensor if tensor.shape.dims == dims else mtf.transpose(tensor, mtf.Shape(dims))


def with_dims(tensor: mtf.Tensor, dims: Dims) -> mtf.Tensor:
    """Return a tensor with other dimensions, of the same elements in row-major order."""
    return tensor if tensor.shape.dims == dims else mtf.reshape(tensor, mtf.Shape(dims))


Emit = Callable[[Emitter, Operation, bool], None]


def written_variables(emitter: Emitter, program: Program) -> Iterator[tuple[int, mtf.Tensor]]:
    """Yield the number of each variable that a program writes, and its new value, which is there after all reads."""
    depends = _dependence(program)
    for number, variable in enumerate(program.variables):
        if variable.after is variable.before:
            continue
        axes = emitter.axes(variable.before)
        tensor = emitter.laid(variable.after, axes)
        if variable.before.uses and not depends.get(variable.after, 0) >> number & 1:
            tensor = AfterOperation(tensor, emitter.get(variable.before)).outputs[0]
        yield number, tensor


def _dependence(program: Program) -> dict[Value, int]:
    """{value: the variables that it is computed from, as bits of a number}."""
    bits = {variable.before: 1 << number for number, variable in enumerate(program.variables)}
    for op in program.operations:
        found = 0
        for value in op.inputs:
            found |= bits.get(value, 0)
        bits.update(dict.fromkeys(op.outputs, found))
    return bits


def number(value: Value) -> tf.Tensor:
    """Make a known value as a tensor, on the current device."""
    assert value.array is not None
    return constant(value.array, value.dtype)

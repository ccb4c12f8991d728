"""Conditions: decided at once, or selected of both branches where these are small; else operations with blocks."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute
from mtf_hetero.importer import failing, lists, refusals, structures
from mtf_hetero.importer.nodes import RefusedError, user_line
from mtf_hetero.importer.program import Block, Guard, Meaning, Operation, Value, like, literal, synthetic, within
from mtf_hetero.importer.reader import Part, Reader
from mtf_hetero.importer.structures import Optional, TensorList

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph

_LEAST_WORK = 100_000  # elements that the larger branch of a condition makes which stays one


def choose(reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: Sequence[Meaning]) -> Sequence[Meaning]:
    """Read a condition: the first input decides, the others go to the branches."""
    chosen, *inputs = inputs
    is_two = node.type in ("If", "StatelessIf")
    names = [node.get_attr(f"{k}_branch") for k in ("else", "then")] if is_two else node.get_attr("branches")
    if chosen.array is not None:
        index = int(chosen.array)
        return reader.inline(graph, names[index if 0 <= index < len(names) else -1], inputs)
    blocks, ends, refused = [], [], dict[int, list[NotImplementedError]]()
    for number, name in enumerate(names):
        with reader.block() as block:
            results = reader.inline(graph, name, [_of_branch(x, chosen, number) for x in inputs])
        if errors := reader.find_open(results, block):
            refused[number] = errors
            continue
        blocks.append(block)
        ends.append([*results, *block.now])
    if lost := refusals.lost([chosen]):
        raise refusals.join([*lost, *itertools.chain(*refused.values())])
    if refused:
        return _guarded(reader, node, chosen, refused, blocks, ends)
    same = [all(end[i] is ends[0][i] for end in ends) for i in range(len(ends[0]))]
    choice = None
    if reader.refused is not None or _stays(
        blocks, [end[i] for end in ends for i, is_same in enumerate(same) if not is_same]
    ):
        choice = Operation("Case", [chosen], [], {}, blocks=tuple(Block([], b.operations, []) for b in blocks))
        choice.source = node
        join = _output_adder(choice)
    else:
        for block in blocks:
            reader.splice(block)
        join = _selected(reader, node, chosen)
    rows = list(zip(*ends, strict=True))
    kept = [row for row in rows if isinstance(row[0], Optional)]
    optionals = iter(structures.join(chosen, kept, join, are_inside=choice is not None))
    joined = [
        next(optionals) if isinstance(row[0], Optional) else _join_branches(reader, node, row, join) for row in rows
    ]
    _join_guards(reader, blocks, join)
    if choice is not None and choice.outputs:
        reader.append(choice)
    count = len(joined) - len(reader.now)
    reader.now = joined[count:]
    return joined[:count]


def _of_branch(x: Meaning, chosen: Value, number: int) -> Meaning:
    return x.of_branch(chosen, number) if isinstance(x, Optional) else x


def _guarded(
    reader: Reader,
    node: tf.Operation,
    chosen: Value,
    refused: dict[int, list[NotImplementedError]],
    blocks: Sequence[Part],
    ends: Sequence[list[Meaning]],
) -> list[Meaning]:
    """Follow the only branch that can be followed; a step that needs another one is an error.

    The other branch calls Python, say, so that the condition cannot be an island. Nothing divides an island; so the
    other branch is left out too where Keras divides the rows of an embedding's gradient, and asks for divisors of zero.
    """
    error = refusals.join(itertools.chain(*refused.values()))
    may_guard = node in reader.guarded or _asks_for_zeros(node)
    if len(blocks) != 1 or reader.guards is None or not may_guard:
        raise error
    (number,) = refused
    followed = next(i for i in range(len(refused) + 1) if i not in refused)
    reader.splice(blocks[0])
    why = f"the step took branch {number} of {node.type} {node.name!r} ({user_line(node)}), but {error}"
    reader.guards += [Guard(chosen, followed, why), *blocks[0].guards]
    count = len(ends[0]) - len(reader.now)
    reader.now = ends[0][count:]
    return ends[0][:count]


def _asks_for_zeros(node: tf.Operation) -> bool:
    """Return whether a condition is true if any number is zero or not a number."""
    op = node.inputs[0].op
    while op.type == "Any":
        op = op.inputs[0].op
    return op.type == "LogicalOr" and {x.op.type for x in op.inputs} == {"Equal", "IsNan"}


def _join_guards(reader: Reader, blocks: Sequence[Part], join: "Join") -> None:
    """Guard what is guarded in a branch, in the steps that take it."""
    for block in blocks:
        for guard in block.guards:
            fine = literal(guard.followed, guard.chosen.dtype)
            chosen = join([guard.chosen if other is block else fine for other in blocks])
            assert reader.guards is not None  # a part of a loop has none
            reader.guards.append(dataclasses.replace(guard, chosen=chosen))


def _stays(blocks: Sequence[Part], values: Sequence[Meaning]) -> bool:
    """Return whether a condition stays one: both branches must not be run, or that would be much work."""
    if any(leaf.elements is not None for value in values for leaf in structures.leaves(value)):
        return True
    if any(op.is_stateful or failing.may_fail(op) for block in blocks for op in within(block.operations)):
        return True
    return max(sum(map(_work, block.operations)) for block in blocks) >= _LEAST_WORK


def _work(op: Operation) -> float:
    """Return about how much an operation does."""
    if op.type == "While":
        return math.inf
    if op.blocks:
        return sum(_work(inner) for block in op.blocks for inner in block.operations)
    return max((math.prod(value.shape) for value in (*op.inputs, *op.outputs)), default=0)


Join = Callable[[Sequence[Value]], Value]


def _join_branches(reader: Reader, node: tf.Operation, values: Sequence[Meaning], join: Join) -> Meaning:
    """Return what a condition gives, of what each branch gives."""
    first = values[0]
    if all(value is first for value in values):
        return first
    if all(isinstance(value, TensorList) and len(value) == len(first) for value in values):
        items = [[value.item(i) for value in values] for i in range(len(first))]
        return first.with_items([_join_branches(reader, node, item, join) for item in items])
    is_open = reader.refused is not None
    if not all(isinstance(value, Value) and (is_open or value.shape == first.shape) for value in values):
        raise RefusedError(node, "has branches that give tensors of different shapes; give them one shape")
    return join(values)


def _output_adder(choice: Operation) -> Join:
    """Return a function that adds an output to a condition."""

    def add(values: Sequence[Value]) -> Value:
        first = next((value for value in values if value.elements is not None), values[0])
        result = like(first, next((value.name for value in values if value.name), ""))
        for block, value in zip(choice.blocks, values, strict=True):
            if result.elements is not None and value.elements is None:  # the list that another branch alone keeps
                value = lists.empty(result.elements, lambda op, block=block: block.operations.append(op) or op.outputs)
            block.results.append(value)
            if value.elements is not None and result.elements is not None:
                result.elements.unify(value.elements)
        choice.outputs.append(result)
        return result

    return add


def _selected(reader: Reader, node: tf.Operation, chosen: Value) -> Join:
    """Return a function that adds the choice of one of some values."""
    is_two = chosen.dtype == tf.bool

    def make_condition(number: int) -> Value:
        equal = synthetic("Equal", [chosen, literal(number, chosen.dtype)], [()], node.name)
        equal.outputs[0].dtype = tf.bool
        return reader.add(equal)[0]

    def select(values: Sequence[Value]) -> Value:
        result = values[0] if is_two else values[-1]  # which False, or an index out of range, chooses
        for number, value in list(enumerate(values))[1:] if is_two else list(enumerate(values))[-2::-1]:
            if value is not result:
                output = Value(value.shape, value.dtype, name=value.name or result.name)
                inputs = [chosen if is_two else make_condition(number), value, result]
                (result,) = reader.add(Operation("SelectV2", inputs, [output], {"T": attribute(value.dtype)}))
        return result

    return select

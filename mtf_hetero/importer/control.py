"""Conditions and loops: computed at once, unrolled or selected where that is cheap, else operations with blocks.

A loop of a few turns is unrolled, and of both branches of a small condition the results are selected: then nothing of
either is left, and what comes after is divided and clustered as the rest. A long loop, one that ends by its data, and
one that draws random numbers with a state stay loops; so do conditions that save work.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute
from mtf_hetero.importer import failing, formulas, lists, preparing, structures
from mtf_hetero.importer.nodes import is_stateful, refusal, user_line
from mtf_hetero.importer.program import Block, Elements, Guard, Meaning, Operation, Value, literal, synthetic, within
from mtf_hetero.importer.reader import Follow, Part, Reader, function_graph
from mtf_hetero.importer.structures import Optional, TensorList

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph

CALLS = {"PartitionedCall", "StatefulPartitionedCall", "StatelessPartitionedCall"}
CHOICES = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}
ALIASES = {"Identity", "StopGradient", "PreventGradient", "IdentityN", "EnsureShape", "Snapshot"}
DRAWS = {  # stateful operations that give random numbers
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}
_MOST_TURNS, _MOST_UNROLLED = 100, 20_000  # turns of a loop that is unrolled, and operations of them all
_MOST_COUNTED = 1000  # turns that are counted
_LEAST_WORK = 100_000  # elements that the larger branch of a condition makes which stays one


def contains(graph: "FuncGraph", node: tf.Operation, kinds: Iterable[str]) -> bool:
    """Return whether the functions that a tf.Operation calls have an operation of some types."""
    inner = [function_graph(graph, name) for name in called(graph, node)]
    return any(op.type in kinds or contains(each, op, kinds) for each in inner for op in each.get_operations())


def called(graph: "FuncGraph", node: tf.Operation) -> list[str]:
    """Return the names of the functions that a tf.Operation calls."""
    if graph._is_function(node.type):  # an older way of TensorFlow
        return [node.type]
    protos = node.node_def.attr.values()
    return [f.name for proto in protos for f in ([proto.func] if proto.HasField("func") else proto.list.func)]


def control_rule(graph: "FuncGraph", kind: str) -> Follow | None:
    """Return the function that reads calls, conditions or loops, given a reader, a graph, an operation and inputs."""
    if kind in CALLS or graph._is_function(kind):  # an older way of TensorFlow
        return _call
    return _choose if kind in CHOICES else _repeat if kind in LOOPS else None


def _call(reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: Sequence[Meaning]) -> Sequence[Meaning]:
    results = reader.inline(graph, node.get_attr("f") if node.type in CALLS else node.type, inputs)
    return results[: len(node.outputs)]  # a gradient's gradient adds results to the function of one that is there


# --- conditions


def _choose(reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: Sequence[Meaning]) -> Sequence[Meaning]:
    """Read a condition: the first input decides, the others go to the branches."""
    chosen, *inputs = inputs
    is_two = node.type in ("If", "StatelessIf")
    names = [node.get_attr(f"{k}_branch") for k in ("else", "then")] if is_two else node.get_attr("branches")
    if chosen.array is not None:
        index = int(chosen.array)
        return reader.inline(graph, names[index if 0 <= index < len(names) else -1], inputs)
    blocks, ends, refused = [], [], {}
    for number, name in enumerate(names):
        try:
            with reader.block() as block:
                results = reader.inline(graph, name, [_of_branch(x, chosen, number) for x in inputs])
                preparing.check(results)
        except NotImplementedError as error:
            refused[number] = error
            continue
        blocks.append(block)
        ends.append([*results, *block.now])
    if refused:
        return _guarded(reader, node, chosen, refused, blocks, ends)
    same = [all(end[i] is ends[0][i] for end in ends) for i in range(len(ends[0]))]
    choice = None
    if _stays(blocks, [end[i] for end in ends for i, is_same in enumerate(same) if not is_same]):
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
        next(optionals) if isinstance(row[0], Optional) else _join_branches(node, chosen, row, join) for row in rows
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
    refused: dict[int, Exception],
    blocks: Sequence[Part],
    ends: Sequence[list[Meaning]],
) -> list[Meaning]:
    """Follow the only branch that can be followed; a step that needs another one is an error.

    Keras divides the rows of an embedding's gradient so: the other branch is for divisors of zero.
    """
    number, error = next(iter(refused.items()))
    if len(blocks) != 1 or reader.guards is None:
        raise error
    followed = next(i for i in range(len(refused) + 1) if i not in refused)
    reader.splice(blocks[0])
    why = f"the step took branch {number} of {node.type} {node.name!r} ({user_line(node)}), but {error}"
    reader.guards += [Guard(chosen, followed, why), *blocks[0].guards]
    count = len(ends[0]) - len(reader.now)
    reader.now = ends[0][count:]
    return ends[0][:count]


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


def _join_branches(node: tf.Operation, chosen: Value, values: Sequence[Meaning], join: Join) -> Meaning:
    """Return what a condition gives, of what each branch gives."""
    first = values[0]
    if all(value is first for value in values):
        return first
    if all(isinstance(value, TensorList) and len(value) == len(first) for value in values):
        items = [[value.item(i) for value in values] for i in range(len(first))]
        return first.with_items([_join_branches(node, chosen, item, join) for item in items])
    if not all(isinstance(value, Value) and value.shape == first.shape for value in values):
        raise refusal(node, "has branches that give tensors of different shapes; give them one shape")
    return join(values)


def _output_adder(choice: Operation) -> Join:
    """Return a function that adds an output to a condition."""

    def add(values: Sequence[Value]) -> Value:
        first = next((value for value in values if value.elements is not None), values[0])
        result = _like(first, next((value.name for value in values if value.name), ""))
        for block, value in zip(choice.blocks, values, strict=True):
            if result.elements is not None and value.elements is None:  # the list that another branch alone keeps
                value = lists.empty(result.elements, lambda op, block=block: block.operations.append(op) or op.outputs)
            block.results.append(value)
            if value.elements is not None and result.elements is not None:
                result.elements.unify(value.elements)
        choice.outputs.append(result)
        return result

    return add


def _like(value: Value, name: str) -> Value:
    return Value(value.shape, value.dtype, name=name, elements=value.elements)


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


# --- loops


def _repeat(reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: Sequence[Meaning]) -> Sequence[Meaning]:
    """Read a loop: the inputs are the first values of its variables."""
    body = function_graph(graph, node.get_attr("body").name)
    size, count = len(body.get_operations()), _count(reader, graph, node, inputs)
    is_short = count is not None and count <= _MOST_TURNS and count * size <= _MOST_UNROLLED
    if is_short and not (count and contains(graph, node, DRAWS - formulas.STREAMS.keys() if reader.streams else DRAWS)):
        return _unroll(reader, graph, node, inputs)
    return _loop(reader, graph, node, inputs, count or 1)


def _unroll(reader: Reader, graph: "FuncGraph", node: tf.Operation, values: Sequence[Meaning]) -> Sequence[Meaning]:
    """Read a loop turn by turn."""
    while True:
        (condition,) = reader.inline(graph, node.get_attr("cond"), values)
        if not condition.array:
            return values
        values = reader.inline(graph, node.get_attr("body"), values)


def _count(reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: Sequence[Meaning]) -> int | None:
    """Return the number of turns of a loop; None if the data decide it, or it is too large to be counted."""
    condition, body = (function_graph(graph, node.get_attr(name).name) for name in ("cond", "body"))
    deciding: set[int] = set()
    more = _sources(condition, condition.outputs)
    while more is not None and not more <= deciding:
        deciding |= more
        more = _sources(body, [body.outputs[i] for i in deciding])
    if more is None or not all(isinstance(inputs[i], Value) and inputs[i].array is not None for i in deciding):
        return None
    values = {i: inputs[i] for i in deciding}
    for turn in range(_MOST_COUNTED):
        (goes_on,) = reader.follow(condition, _meaning(condition, values), condition.outputs)
        if goes_on.array is None:
            return None
        if not goes_on.array:
            return turn
        ends = reader.follow(body, _meaning(body, values), [body.outputs[i] for i in deciding])
        values = dict(zip(deciding, ends, strict=True))
    return None


def _meaning(graph: "FuncGraph", values: dict[int, Meaning]) -> dict[int, Meaning]:
    return {id(graph.inputs[i]): value for i, value in values.items()}


def _sources(graph: "FuncGraph", tensors: Sequence[tf.Tensor]) -> set[int] | None:
    """Return the inputs of a function that some of its tensors follow from; None if they follow from more."""
    numbers = {id(tensor): i for i, tensor in enumerate(graph.inputs)}
    todo, seen, found = list(tensors), set(), set()
    while todo:
        tensor = todo.pop()
        if id(tensor) in numbers:
            found.add(numbers[id(tensor)])
        elif id(tensor) not in seen:
            seen.add(id(tensor))
            if is_stateful(tensor.op):
                return None
            todo += tensor.op.inputs
    return found


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that another one is, under other names."""
    while tensor.op.type in ALIASES:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _loop(
    reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: Sequence[Meaning], times: int
) -> list[Meaning]:
    """Read a loop as an operation. What no turn changes is read from outside."""
    body = function_graph(graph, node.get_attr("body").name)
    starts = [lists.realise(x, node.name, reader.add) if isinstance(x, TensorList) else x for x in inputs]
    changes = [
        not isinstance(start, int) and _origin(y) is not x
        for start, x, y in zip(starts, body.inputs, body.outputs, strict=True)
    ]
    parameters = [_parameter(node, x) if changed else x for x, changed in zip(starts, changes, strict=True)]
    of_body = {number for path, number in reader.streams.items() if path[: len(reader.path)] == reader.path}
    numbers = sorted({x for x in inputs if isinstance(x, int)} | of_body)  # of variables, which the body may write
    states = {number: _parameter(node, reader.now[number]) for number in numbers}
    with reader.block(of_loop=True) as condition:
        reader.write(states)
        results = reader.inline(graph, node.get_attr("cond"), parameters)
    with reader.block(of_loop=True) as turn:
        reader.write(states)
        ends = list(reader.inline(graph, node.get_attr("body"), parameters))
        preparing.check(ends)
        ends = [lists.realise(x, node.name, reader.add) if isinstance(x, TensorList) else x for x in ends]
    carried = [(starts[i], parameters[i], ends[i]) for i, changed in enumerate(changes) if changed]
    carried += [(reader.now[n], states[n], turn.now[n]) for n in numbers if turn.now[n] is not states[n]]
    kept = {states[n]: reader.now[n] for n in numbers if turn.now[n] is states[n]}
    for block in (condition, turn):
        _replace(block.operations, kept)
    op = _make_loop(node, carried, (condition.operations, turn.operations), [kept.get(x, x) for x in results], kept)
    for inner in within(turn.operations):
        inner.times *= times
    reader.append(op)
    outputs = iter(op.outputs)
    found = [next(outputs) if changed else start for start, changed in zip(starts, changes, strict=True)]
    reader.write({n: next(outputs) for n in numbers if turn.now[n] is not states[n]})
    return found


def _parameter(node: tf.Operation, start: Meaning) -> Value:
    """Return the value of a loop's variable in a turn."""
    if not isinstance(start, Value):
        raise refusal(
            node, "changes what is no tensor and no TensorArray from turn to turn; keep it outside of the loop"
        )
    return _like(start, node.name)


def _make_loop(
    node: tf.Operation,
    carried: Sequence[tuple[Value, Value, Value]],
    operations: tuple[list[Operation], list[Operation]],
    condition: list[Value],
    kept: dict[Value, Value],
) -> Operation:
    """Return a loop.

    Args:
      node: its tf.Operation.
      carried: the value before the loop, in a turn, and after the turn, of each variable.
      operations: of the condition and of the body.
      condition: what the condition gives.
      kept: {value in the loop: the same from outside}.
    """
    outputs = [_like(value, value.name) for _, value, _ in carried]
    for (start, value, end), output in zip(carried, outputs, strict=True):
        if value.elements is not None:
            for other in (start, end, output):
                value.elements.unify(_elements(node, other))
        elif not isinstance(end, Value) or end.shape != value.shape:
            raise refusal(node, "has a tensor whose shape changes from turn to turn; give it one shape")
    parameters = [value for _, value, _ in carried]
    body = Block(parameters, operations[1], [kept.get(end, end) for _, _, end in carried])
    blocks = Block(list(parameters), operations[0], condition), body
    return Operation("While", [start for start, _, _ in carried], outputs, {}, source=node, blocks=blocks)


def _elements(node: tf.Operation, value: Meaning) -> Elements:
    if not isinstance(value, Value) or value.elements is None:
        raise refusal(node, "changes a TensorArray into something else from turn to turn")
    return value.elements


def _replace(operations: Sequence[Operation], values: dict[Value, Value]) -> None:
    """Have operations read other values."""
    for op in within(operations) if values else ():
        op.inputs = [values.get(value, value) for value in op.inputs]
        for block in op.blocks:
            block.results = [values.get(value, value) for value in block.results]

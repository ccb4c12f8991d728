"""Calls, conditions and loops: inlined, selected or unrolled where that is cheap, else operations with blocks.

A loop of a few turns is unrolled, and of both branches of a small condition the results are selected: then nothing of
either is left, and what comes after is divided and clustered as the rest. A long loop, one that ends by its data, and
one that draws random numbers with a state stay loops; so do conditions that save work.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero.importer import conditions, formulas, lists, refusals
from mtf_hetero.importer.nodes import RefusedError, is_stateful
from mtf_hetero.importer.program import Block, Elements, Meaning, Operation, Value, like, within
from mtf_hetero.importer.reader import Follow, Reader, function_graph
from mtf_hetero.importer.structures import TensorList

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph

_MOST_TURNS, _MOST_UNROLLED = 100, 20_000  # turns of a loop that is unrolled, and operations of them all
_MOST_COUNTED = 1000  # turns that are counted


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
    if kind in facts.CALLS or graph._is_function(kind):  # an older way of TensorFlow
        return _call
    return conditions.choose if kind in facts.CONDITIONS else _repeat if kind in facts.LOOPS else None


def _call(reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: Sequence[Meaning]) -> Sequence[Meaning]:
    results = reader.inline(graph, node.get_attr("f") if node.type in facts.CALLS else node.type, inputs)
    return results[: len(node.outputs)]  # a gradient's gradient adds results to the function of one that is there


# --- loops


def _repeat(reader: Reader, graph: "FuncGraph", node: tf.Operation, inputs: Sequence[Meaning]) -> Sequence[Meaning]:
    """Read a loop: the inputs are the first values of its variables."""
    body = function_graph(graph, node.get_attr("body").name)
    size = len(body.get_operations())
    count = None if reader.refused is not None else _count(reader, graph, node, inputs)
    is_short = count is not None and count <= _MOST_TURNS and count * size <= _MOST_UNROLLED
    if is_short and not (
        count and contains(graph, node, facts.DRAWS - formulas.STREAMS.keys() if reader.streams else facts.DRAWS)
    ):
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
    while tensor.op.type in facts.RENAMING:
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
    refused = reader.find_open([start for start, changed in zip(starts, changes, strict=True) if changed])
    parameters = [_parameter(reader, node, x) if changed else x for x, changed in zip(starts, changes, strict=True)]
    of_body = {number for path, number in reader.streams.items() if path[: len(reader.path)] == reader.path}
    numbers = sorted({x for x in inputs if isinstance(x, int)} | of_body)  # of variables, which the body may write
    states = {number: _parameter(reader, node, reader.now[number]) for number in numbers}
    with reader.block(of_loop=True) as condition:
        reader.write(states)
        results = reader.inline(graph, node.get_attr("cond"), parameters)
    with reader.block(of_loop=True) as turn:
        reader.write(states)
        ends = list(reader.inline(graph, node.get_attr("body"), parameters))
        refusals.check([*refused, *reader.find_open([*results, *ends], condition, turn)])
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


def _parameter(reader: Reader, node: tf.Operation, start: Meaning) -> Value:
    """Return the value of a loop's variable in a turn; while all is recorded, its shape may change."""
    if not isinstance(start, Value):
        raise RefusedError(
            node, "changes what is no tensor and no TensorArray from turn to turn; keep it outside of the loop"
        )
    if reader.find_open([start]):
        return refusals.Refused((), start.dtype, refused=start.refused)
    parameter = like(start, node.name)
    parameter.refused = reader.refused
    return parameter


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
    outputs = [like(value, value.name) for _, value, _ in carried]
    for (start, value, end), output in zip(carried, outputs, strict=True):
        if value.elements is not None:
            for other in (start, end, output):
                value.elements.unify(_elements(node, other))
        elif not isinstance(end, Value) or (end.shape != value.shape and value.refused is None):
            raise RefusedError(node, "has a tensor whose shape changes from turn to turn; give it one shape")
    parameters = [value for _, value, _ in carried]
    body = Block(parameters, operations[1], [kept.get(end, end) for _, _, end in carried])
    blocks = Block(list(parameters), operations[0], condition), body
    return Operation("While", [start for start, _, _ in carried], outputs, {}, source=node, blocks=blocks)


def _elements(node: tf.Operation, value: Meaning) -> Elements:
    if not isinstance(value, Value) or value.elements is None:
        raise RefusedError(node, "changes a TensorArray into something else from turn to turn")
    return value.elements


def _replace(operations: Sequence[Operation], values: dict[Value, Value]) -> None:
    """Have operations read other values."""
    for op in within(operations) if values else ():
        op.inputs = [values.get(value, value) for value in op.inputs]
        for block in op.blocks:
            block.results = [values.get(value, value) for value in block.results]

"""Random numbers whose operation keeps a state, as tf.random.normal: a variable of the step has it instead.

TensorFlow's kernel counts what it has drawn. Each lowering of a step would have a kernel of its own, which begins anew:
for a smaller batch, after a change of the shares, in a second training. A variable is carried over.
"""

import secrets
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero.importer import formulas
from mtf_hetero.importer.control import called
from mtf_hetero.importer.program import Meaning, Value
from mtf_hetero.importer.reader import Reader, function_graph

if TYPE_CHECKING:
    from mtf_hetero._compat import ConcreteFunction, FuncGraph

States = dict[Hashable, tf.Variable]
_CALLS = facts.CALLS | facts.CONDITIONS | facts.LOOPS


def find_states(concrete: "ConcreteFunction", states: States) -> dict[tuple[str, ...], tf.Variable]:
    """Find the states of a function's operations that draw from one of their own, or make them.

    Args:
      concrete: the ConcreteFunction.
      states: of all functions that were read; those of this one are added.

    Returns:
      {path of an operation, as of a Reader: its state}.
    """
    signature, found = repr(concrete.structured_input_signature), {}
    for number, (path, node) in enumerate(_list_draws(concrete.graph)):
        key = signature, number
        if key not in states:
            name = f"{node.name}/state{len(states)}"  # in which a session's graph has no other operation
            states[key] = tf.compat.v2.Variable(_first_state(node), trainable=False, name=name)
        found[path] = states[key]
    return found


def _list_draws(graph: "FuncGraph", path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], tf.Operation]]:
    """Yield the operations that draw, each with the calls that lead to it."""
    for node in graph.get_operations():
        kind = node.type
        if kind in formulas.STREAMS:
            yield (*path, node.name), node
        elif kind in _CALLS or graph._is_function(kind):
            for name in called(graph, node):
                yield from _list_draws(function_graph(graph, name), (*path, node.name, name))


def _first_state(node: tf.Operation) -> np.ndarray:
    """Return the first state of TensorFlow's kernel: a counter and a key of Philox, by chance if it has no seeds."""
    seeds = [node.get_attr("seed"), node.get_attr("seed2")]
    if not any(seeds):
        seeds = [secrets.randbits(63), secrets.randbits(63)]
    key, counter = seeds
    return np.array([0, counter, key])


def draw(reader: Reader, node: tf.Operation, inputs: Sequence[Meaning]) -> Sequence[Value] | None:
    """Read an operation that draws; returns its results, or None: it has no variable."""
    number = reader.streams.get(reader.path)
    if number is None:
        return None
    numbers, after = reader.expand(node, formulas.STREAMS[node.type], [reader.now[number], *inputs])
    reader.write({number: after})
    return [numbers]

"""Variables while a function is read: a read is the last value written, a write of a part a new value of the whole."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.importer import draws, formulas
from mtf_hetero.importer.nodes import RefusedError, known_shape
from mtf_hetero.importer.program import Meaning, Value, Variable, literal
from mtf_hetero.importer.reader import Reader

if TYPE_CHECKING:
    from mtf_hetero._compat import ConcreteFunction

_REMEDY = "use assign, assign_add or assign_sub"
_REMEDIES = {
    "ResourceSparse": "give the optimizer tf.convert_to_tensor(gradient)",  # updates of rows by tf.compat.v1
    "StatefulRandom": "use tf.random.stateless_binomial",
}
_ANSWERS: dict[str, Callable[[Value, tf.DType], Value]] = {
    "ReadVariableOp": lambda current, dtype: current,
    "VariableShape": lambda current, dtype: literal(current.shape, dtype),
    "VarIsInitializedOp": lambda current, dtype: literal(np.array(True), dtype),
}
KINDS = {
    *_ANSWERS,
    *formulas.READS,
    *formulas.WRITES,
    *formulas.DRAWS,
    "AssignVariableOp",
}  # of operations of variables


def enter(
    reader: Reader,
    concrete: "ConcreteFunction",
    first: Mapping[str, tf.Variable],
    paths: Mapping[int, str],
    more: Iterable[tf.Variable] = (),
) -> dict[int, int]:
    """Enter all variables of a function, those that are trained in the order of use.

    Args:
      reader: begins to read the function.
      concrete: the ConcreteFunction.
      first: {name: tf.Variable} that come first, in this order, if the function uses them.
      paths: {id of a tf.Variable: its name}, for those whose own name is not used.
      more: tf.Variables that the function does not read.

    Returns:
      {id of a handle: number of the variable}.
    """
    handles = [outer for outer, _ in concrete.graph.captures]
    variables = {id(v.handle): v for v in concrete.graph.variables}
    variables |= {id(handle): v for handle in handles if (v := _owner(handle)) is not None}
    used = [*(variables[id(handle)] for handle in handles if id(handle) in variables), *more]
    names = {id(v): name for name, v in first.items()}
    known = [v for v in first.values() if any(v is other for other in used)]
    taken, numbers = set(first), {}
    for variable in [*known, *sorted(used, key=lambda v: not v.trainable)]:
        if id(variable.handle) in numbers:
            continue
        path = paths.get(id(variable)) or variable.name.partition(":")[0]
        name = names.get(id(variable)) or _free(path, taken)
        taken.add(name)
        numbers[id(variable.handle)] = len(reader.now)
        value = Value(known_shape(name, variable.shape), variable.dtype, name=name)
        reader.program.variables.append(Variable(variable, value, value))
        reader.now.append(value)
    return numbers


def _owner(handle: tf.Tensor) -> tf.Variable | None:
    """Return the tf.Variable of a captured handle; None if the tensor is anything else.

    A function that gives operations the handle alone, as tf_keras's optimizers do, does not know its variables.
    """
    owner = getattr(handle, "_parent_trackable", lambda: None)()
    return owner if isinstance(owner, tf.compat.v2.Variable) else None


def _free(name: str, taken: set[str]) -> str:
    """Return a variable's name that is not taken, and that TensorFlow allows."""
    name = re.sub(r"^[^\w.]*_*", "", re.sub(r"[^\w/.-]", "_", name, flags=re.ASCII)) or "variable"
    return next(found for n in itertools.count() if (found := f"{name}_{n}" if n else name) not in taken)


def refuse(node: tf.Operation) -> RefusedError:
    """Return the error for an operation of a variable that is not followed."""
    return RefusedError(node, f"of a variable is not followed; {_REMEDIES.get(node.type[:14], _REMEDY)}")


def follow(reader: Reader, node: tf.Operation, inputs: Sequence[Meaning]) -> Sequence[Value]:
    """Follow an operation of a variable, whose number and other values it reads.

    Raises:
      NotImplementedError: the operation is not followed, by name and the user's line.
    """
    kind, (number, *values) = node.type, inputs
    current = reader.now[number]
    if kind in _ANSWERS:
        return [_ANSWERS[kind](current, node.outputs[0].dtype)]
    if kind in formulas.READS:
        return reader.expand(node, formulas.READS[kind], [current, *values])
    if kind in formulas.DRAWS:
        if values[0].array is None or int(values[0].array) not in draws.ALGORITHMS:
            raise RefusedError(
                node, "of a generator is only followed for the algorithm Philox; make the generator with it"
            )
        reader.write({number: reader.expand(node, formulas.DRAWS[kind], [current, *values])[0]})
        return [current]
    if kind == "AssignVariableOp":
        reader.write({number: values[0]})
        return []
    if kind not in formulas.WRITES:
        raise refuse(node)
    after = reader.expand(node, formulas.WRITES[kind], [reader.now[x] if isinstance(x, int) else x for x in inputs])
    reader.write(dict(zip(inputs, after, strict=False)))
    return []

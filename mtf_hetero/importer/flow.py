"""Emits loops, conditions and the TensorLists of loops."""

from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import attribute, constant
from mtf_hetero.importer import lists
from mtf_hetero.importer.emitter import Axes, Emitter, flat
from mtf_hetero.importer.program import Block, Operation, Value
from mtf_hetero.importer.replaying import replay
from mtf_hetero.lowering.choice import ChoiceOperation, ListOperation, LoopOperation


def flow_rule(op: Operation) -> Callable[[Emitter, Operation], None] | None:
    """Return the function that emits an operation with blocks, or one on TensorLists; None for any other."""
    if op.type == "While":
        return _loop
    if op.type == "Case":
        return _choose
    is_on_lists = any(value.elements is not None for value in (*op.inputs, *op.outputs))
    return _on_lists if is_on_lists else None


def _loop(emitter: Emitter, op: Operation) -> None:
    condition, body = op.blocks
    count = len(body.parameters)
    axes = [emitter.axes(value) for value in body.parameters]
    starts = [_laid(emitter, value, of) for value, of in zip(op.inputs, axes, strict=False)]
    captured = [emitter.get(value) for value in op.inputs[count:]]

    def goes_on(*tensors: mtf.Tensor) -> mtf.Tensor:
        return _emit(emitter, condition, tensors, [[]])[0]

    made = LoopOperation(goes_on, lambda *tensors: _emit(emitter, body, tensors, axes), starts, captured, op.type)
    emitter.worked_on(op, ())
    for value, tensor, of in zip(op.outputs, made.outputs, axes, strict=True):
        emitter.put(value, tensor, of)


def _choose(emitter: Emitter, op: Operation) -> None:
    chosen, *captured = [emitter.get(value) for value in op.inputs]
    axes = [emitter.axes(value) for value in op.outputs]
    makes = [lambda block=block: _emit(emitter, block, (), axes) for block in op.blocks]
    made = ChoiceOperation(chosen, makes, captured, op.type)
    emitter.worked_on(op, ())
    for value, tensor, of in zip(op.outputs, made.outputs, axes, strict=True):
        emitter.put(value, tensor, of)


def _emit(emitter: Emitter, block: Block, tensors: Sequence[mtf.Tensor], axes: Sequence[Axes]) -> list[mtf.Tensor]:
    """Emit the operations of a block, given the tensors of its parameters; returns its results, of some axes."""
    inner = emitter.inside(block)
    for value, tensor in zip(block.parameters, tensors, strict=True):
        inner.put(value, tensor, inner.axes(value))
    for op in block.operations:
        inner.emit(op)
    return [_laid(inner, value, of) for value, of in zip(block.results, axes, strict=True)]


def _laid(emitter: Emitter, value: Value, axes: Axes) -> mtf.Tensor:
    """Return the tensor of a value, its dimensions in the order of some axes; that of a TensorList has none."""
    return emitter.get(value) if value.elements is not None else emitter.laid(value, axes)


def _on_lists(emitter: Emitter, op: Operation) -> None:
    """Emit an operation on TensorLists, of which each device has one with its slices."""
    one = next(value for value in (*op.inputs, *op.outputs) if value.elements is not None)
    assert one.elements is not None
    elements, axes = one.elements.root, emitter.axes(one)
    are_lists = op.attr("element_dtype") == tf.variant and not elements.are_optional
    roles, makes = lists.ROLES[op.type]
    roles *= len(op.inputs) if op.type == "AddN" else 1
    tensors = []
    for role, value in zip(roles, op.inputs, strict=True):
        if role == "stack":
            tensors.append(emitter.laid(value, [[emitter.fresh(value.shape[0])], *axes]))
        elif role == "item":
            tensors.append(_laid(emitter, value, axes))
        elif role != "shape":
            tensors.append(emitter.get(value))
    made_axes = [_role_axes(emitter, role, value, axes) for role, value in zip(makes, op.outputs, strict=True)]
    attributes = dict(op.attributes)
    if elements.are_optional and "element_dtype" in attributes:
        attributes["element_dtype"] = attribute(elements.dtype)

    def run(shape: Sequence[int], *slices: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, ...]:
        left = iter(slices)
        of_item = constant([] if are_lists else shape)
        inputs = [of_item if role == "shape" else next(left) for role in roles]
        made = Operation(op.type, op.inputs, op.outputs, attributes)
        outputs = [
            y if role == "stack" or y.shape.is_fully_defined() else tf.ensure_shape(y, shape)
            for y, role in zip(replay(made, inputs), makes, strict=True)
        ]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    outputs = [(mtf.Shape(flat(of)), v.dtype) for v, of in zip(op.outputs, made_axes, strict=True)]
    made = ListOperation(run, tensors, mtf.Shape(flat(axes)), outputs, emitter.mesh, op.type)
    emitter.worked_on(op, flat(axes))
    for value, tensor, of in zip(op.outputs, made.outputs, made_axes, strict=True):
        emitter.put(value, tensor, axes if value.elements is not None else of)


def _role_axes(emitter: Emitter, role: str, value: Value, axes: Axes) -> Axes:
    if value.elements is not None or role == "number":
        return []
    return [[emitter.fresh(value.shape[0])], *axes] if role == "stack" else axes

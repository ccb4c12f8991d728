"""TensorLists: Python lists of values while a loop is unrolled, so that nothing of them is left; else operations.

Each device has lists of its slices. All lists that one becomes, before, in and after a loop, have the same dimensions.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute
from mtf_hetero.importer.nodes import RefusedError, node_attributes
from mtf_hetero.importer.program import Elements, Meaning, Operation, Value, literal, synthetic
from mtf_hetero.importer.structures import Optional, TensorList, leaves

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Add = Callable[[Operation], list[Value]]
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # of what operations on lists read and make
    "TensorListReserve": (("shape", "number"), ("list",)),
    "EmptyTensorList": (("shape", "number"), ("list",)),
    "TensorListFromTensor": (("stack", "shape"), ("list",)),
    "TensorListSetItem": (("list", "number", "item"), ("list",)),
    "TensorListGetItem": (("list", "number", "shape"), ("item",)),
    "TensorListPushBack": (("list", "item"), ("list",)),
    "TensorListPopBack": (("list", "shape"), ("list", "item")),
    "TensorListStack": (("list", "shape"), ("stack",)),
    "TensorListLength": (("list",), ("number",)),
    "ZerosLike": (("list",), ("list",)),
    "AddN": (("list",), ("list",)),  # of any number of lists
}
# For these, a list in a loop is stacked
_STACK_KINDS = {"TensorListConcatV2", "TensorListGather", "TensorListScatterIntoExistingList"}
KINDS = {*ROLES, *_STACK_KINDS, "TensorListResize", "TensorListSplit"}  # of operations on lists
KEEPING = {  # operations that have nothing to do with the shapes of a Python list's elements
    f"TensorList{name}" for name in ("SetItem", "GetItem", "PushBack", "PopBack", "Length", "Resize")
}
_NEW = ("TensorListReserve", "EmptyTensorList")
_INDEXED = (*_NEW, "TensorListGetItem", "TensorListSetItem")  # by a number that must be known for a Python list


def is_about_lists(node: tf.Operation, inputs: Sequence[Meaning]) -> bool:
    """Return whether an operation makes or reads a TensorList."""
    return node.type.startswith(("TensorList", "EmptyTensorList")) or any(
        isinstance(x, TensorList) or _is_real(x) for x in inputs
    )


def _is_real(x: Meaning) -> bool:
    return isinstance(x, Value) and x.elements is not None


def follow(node: tf.Operation, inputs: Sequence[Meaning], add: Add) -> list[Meaning]:
    """Follow an operation on lists.

    Raises:
      NotImplementedError: the operation is not followed, by name and the user's line.
    """
    of_list = node.type not in ("TensorListPushBack", "TensorListSetItem")  # whose items may be lists
    has_real = any(_is_real(x) for x in (inputs if of_list else inputs[:1]))
    if has_real or (node.type in _INDEXED and inputs[1].array is None):
        return _follow_real(node, inputs, add)
    if node.type in _NEW:
        count = int(inputs[1].array) if node.type == "TensorListReserve" else 0
        return [TensorList([None] * count, inputs[0].array, node.get_attr("element_dtype"))]
    if node.type == "TensorListFromTensor":
        return [_unstacked(inputs[0], node.name, add)]
    if node.type == "TensorListSplit":
        (x, _, lengths), shape = inputs, inputs[0].shape[1:]
        shapes = [(int(n), *shape) for n in _require_known(node, lengths)]
        options = {"num_split": len(shapes), "Tlen": lengths.dtype}
        return [
            TensorList(add(synthetic("SplitV", [x, lengths, literal(0)], shapes, node.name, **options)), shape, x.dtype)
        ]
    return _follow_values(node, inputs, add)


def _require_known(node: tf.Operation, numbers: Value) -> np.ndarray:
    """Return numbers that an operation on a Python list must know.

    Raises:
      NotImplementedError: they depend on the data.
    """
    if numbers.array is None:
        raise RefusedError(
            node, "takes elements of a TensorArray by numbers that depend on the data; use tf.gather on its stack"
        )
    return numbers.array


def _place(node: tf.Operation, number: "ArrayLike", size: float) -> int:
    """Return the number of an element that a list has.

    Raises:
      NotImplementedError: it has none of that number.
    """
    at = int(np.asarray(number))
    if not 0 <= at < size:
        raise RefusedError(node, f"reads or writes element {at} of a TensorArray of size {size}; give it another size")
    return at


def _unstacked(x: Value, name: str, add: Add) -> TensorList:
    """Return the list of a tensor's rows."""
    count = x.shape[0]
    made = TensorList(
        add(synthetic("Unpack", [x], [x.shape[1:]] * count, name, num=count, axis=0)), x.shape[1:], x.dtype
    )
    made.stack = x
    return made


# --- lists that are tensors of their own


def realise(x: TensorList, name: str, add: Add) -> Value:
    """Return the TensorList of a Python list."""
    x = x.with_items([realise(item, name, add) if isinstance(item, TensorList) else item for item in x])
    is_nested, there = any(map(_is_real, x)), [item for item in x if item is not None]
    elements = Elements(_element_shape(x), x.dtype, len(x), name)
    types = {"element_dtype": x.dtype, "shape_type": tf.int32}
    shape = literal(-1)
    if there and not is_nested:  # elements that are not set count as zeros
        return _add_operation("TensorListFromTensor", [_stacked(x, name, add), shape], elements, types, add)
    if x and not is_nested:
        return _add_operation("TensorListReserve", [shape, literal(len(x))], elements, types, add)
    made = empty(elements, add)
    for item in there:
        elements = elements if item.elements is None else item.elements
        made = _add_operation("TensorListPushBack", [made, item], elements, {"element_dtype": x.dtype}, add)
    return made


def empty(elements: Elements, add: Add) -> Value:
    """Return a list without elements."""
    types = {"element_dtype": elements.root.dtype, "shape_type": tf.int32}
    return _add_operation("EmptyTensorList", [literal(-1), literal(-1)], elements, types, add)


def _element_shape(x: TensorList) -> tuple[int, ...] | None:
    """Return the shape of a list's elements, if it is known; that of lists' own elements is not."""
    if x.dtype == tf.variant:
        return None
    try:
        shape = x.element_shape
    except TypeError:
        return None
    return shape if all(n >= 0 for n in shape) and np.ndim(x.shape) else next((i.shape for i in x if i), None)


def _add_operation(kind: str, inputs: list[Value], elements: Elements, types: dict[str, tf.DType], add: Add) -> Value:
    attributes = {name: attribute(value) for name, value in types.items()}
    result = Value((), tf.variant, name=elements.name, elements=elements)
    return add(Operation(kind, inputs, [result], attributes))[0]


def _follow_real(node: tf.Operation, inputs: Sequence[Meaning], add: Add) -> list[Meaning]:
    kind = "AddN" if node.type == "AddV2" else node.type
    if kind not in ROLES:
        return _answer_real(node, inputs, add)
    are_optional = any(isinstance(x, Optional) for x in inputs)
    values = [_only(node, x) if isinstance(x, Optional) else x for x in inputs]
    values = [realise(x, node.name, add) if isinstance(x, TensorList) else x for x in values]
    elements = _shared_elements(node, kind, values)
    if kind == "TensorListSetItem" and elements.length == 0:
        raise RefusedError(
            node, "makes a TensorArray longer in a loop that is not unrolled; give the TensorArray its size"
        )
    if are_optional:
        elements.are_optional, elements.dtype = True, values[1].dtype
    if kind == "TensorListLength" and elements.length is not None:
        return [literal(elements.length)]
    attributes, outputs = dict(node_attributes(node)), []
    for tensor, role in zip(node.outputs, ROLES[kind][1], strict=True):
        outputs.append(_output(node, tensor, role, elements))
    if kind == "AddN":
        attributes = {"T": attribute(tf.variant), "N": attribute(len(values))}
    elif kind == "TensorListStack":
        attributes["num_elements"] = attribute(outputs[0].shape[0])
    made = add(Operation(kind, values, outputs, attributes))
    return [Optional([y]) if elements.are_optional and y.elements is None else y for y in made]


def _only(node: tf.Operation, x: Optional) -> Value:
    """Return the value that a condition keeps, for a list in a loop.

    Raises:
      NotImplementedError: there are several.
    """
    found = list(leaves(x))
    if len(found) != 1:
        raise RefusedError(
            node, "keeps tensors of several shapes of a condition in a loop; write the condition with tf.where"
        )
    return found[0]


def _answer_real(node: tf.Operation, inputs: Sequence[Meaning], add: Add) -> list[Meaning]:
    """Follow an operation on lists of which nothing is left in the loop."""
    if node.type == "TensorListElementShape":
        shape = inputs[0].elements.root.shape
        return [literal(-1 if shape is None else shape, node.outputs[0].dtype)]
    if node.type in _STACK_KINDS:
        return _follow_values(node, [_unstacked(_stack(node, inputs[0], add), node.name, add), *inputs[1:]], add)
    if node.type == "TensorListResize" and inputs[0].elements.length is not None:  # the gradient of a write
        return [inputs[0]]
    raise RefusedError(node, "of a TensorArray in a loop is not followed; use read, write, stack or unstack")


def _stack(node: tf.Operation, x: Value, add: Add) -> Value:
    """Return the tensor of a list in a loop."""
    assert x.elements is not None
    elements = x.elements.root
    if elements.shape is None or elements.length is None:
        raise RefusedError(
            node, "of a TensorArray whose size depends on the data is not followed; give it a fixed size"
        )
    types = {"element_dtype": elements.dtype, "num_elements": elements.length}
    attributes = {name: attribute(value) for name, value in types.items()}
    stack = Value((elements.length, *elements.shape), elements.dtype, name=node.name)
    return add(Operation("TensorListStack", [x, literal(-1)], [stack], attributes))[0]


def _shared_elements(node: tf.Operation, kind: str, values: Sequence[Value]) -> Elements:
    """Return the elements of the lists that an operation reads or makes, which are the same from here on."""
    found = [value.elements for value in values if value.elements is not None]
    if not found:
        dtype = node.get_attr("element_dtype")
        shape = values[0].shape[1:] if kind == "TensorListFromTensor" else _static_shape(values[0])
        length = values[0].shape[0] if kind == "TensorListFromTensor" else None
        shape = None if dtype == tf.variant else shape  # that of the inner lists' elements
        if kind == "TensorListReserve" and values[1].array is not None:
            length = int(values[1].array)
        return Elements(shape, dtype, length, node.name)
    for other in found[1:]:
        found[0].unify(other)
    root = found[0].root
    if root.shape is None:
        items = [value for value, role in zip(values, ROLES[kind][0], strict=False) if role == "item"]
        root.shape = next((item.shape for item in items if item.elements is None), None)
    if kind in ("TensorListPushBack", "TensorListPopBack"):
        root.length = None
    return root


def _static_shape(value: Value) -> tuple[int, ...] | None:
    array = value.array
    return None if array is None or array.ndim == 0 or (array < 0).any() else tuple(map(int, array))


def _output(node: tf.Operation, tensor: tf.Tensor, role: str, elements: Elements) -> Value:
    if role == "list" or (tensor.dtype == tf.variant and not elements.are_optional):
        return Value((), tf.variant, name=node.name, elements=elements)
    if role == "number":
        return Value((), tensor.dtype, name=node.name)
    shape, count = elements.shape, tensor.shape[0] if tensor.shape.rank and role == "stack" else None
    if shape is None and tensor.shape.is_fully_defined():
        shape = elements.shape = tuple(tensor.shape.as_list()[1 if role == "stack" else 0 :])
    if role != "stack" and shape is not None:
        return Value(shape, elements.dtype, name=node.name)
    count = elements.length if count is None else count
    if shape is None or count is None:
        raise RefusedError(node, "gives a tensor whose shape depends on the data; give the TensorArray a fixed size")
    return Value((count, *shape), elements.dtype, name=node.name)


# --- lists of values


def _follow_values(node: tf.Operation, inputs: Sequence[Meaning], add: Add) -> list[Meaning]:
    """Follow an operation on a Python list."""
    x, *others = inputs
    match node.type:
        case "TensorListGetItem":
            return [x.item(_place(node, others[0].array, len(x)))]
        case "TensorListPopBack":
            return [x.with_items(x[:-1]), x.item(len(x) - 1)]
        case "TensorListStack":
            return [_stacked(x, node.name, add)]
        case "TensorListGather" if others[0].array is None:
            return [_gathered(x, others[0], node.name, add)]
        case "TensorListGather":
            items = [x.item(_place(node, at, len(x))) for at in _require_known(node, others[0])]
            return [_stacked(x.with_items(items), node.name, add)]
        case "TensorListConcatV2":
            return _joined(x, node.name, add)
        case "TensorListLength":
            return [literal(len(x))]
        case "TensorListElementShape":
            return [literal(x.element_shape, node.outputs[0].dtype)]
    return [x.with_items(_changed(node, inputs, add))]


def _changed(node: tf.Operation, inputs: Sequence[Meaning], add: Add) -> Sequence[Meaning | None]:
    """Return the elements of the Python list that an operation makes of others."""
    x, *others = inputs
    match node.type:
        case "TensorListSetItem":
            size = math.inf if node.get_attr("resize_if_index_out_of_bounds") else len(x)
            at = _place(node, others[0].array, size)
            return [*_resized(x, max(at, len(x)))[:at], others[1], *x[at + 1 :]]
        case "TensorListResize":
            return _resized(x, int(_require_known(node, others[0])))
        case "TensorListScatterIntoExistingList" if others[1].array is None:
            return _scattered(x, others[0], others[1], node.name, add)
        case "TensorListScatterIntoExistingList":
            rows, numbers = _unstacked(others[0], node.name, add), map(int, _require_known(node, others[1]))
            items = dict(enumerate(x)) | dict(zip(numbers, rows, strict=True))
            return [items.get(at) for at in range(max(items, default=-1) + 1)]
        case "TensorListPushBack":
            return [*x, others[0]]
        case "ZerosLike":
            return zeros(node, x, add)
        case "AddN" | "AddV2":
            return [_sum(node, items, add) for items in zip(*inputs, strict=True)]
    raise RefusedError(node, "of a TensorArray is not followed; use read, write, stack or unstack")


def zeros(node: tf.Operation, x: Meaning, add: Add) -> Meaning:
    """Return zeros like a tensor, like all elements of a list, or like what a condition keeps."""
    if not isinstance(x, Value):
        return x.map(lambda inner: zeros(node, inner, add))
    return literal(np.zeros(x.shape), x.dtype) if x.elements is None else _follow_real(node, [x], add)[0]


def _gathered(x: TensorList, numbers: Value, name: str, add: Add) -> Value:
    """Return the elements of some numbers that the data decide, in one tensor."""
    stack, axis = _stacked(x, name, add), literal(0)
    types = {"Tparams": stack.dtype, "Tindices": numbers.dtype, "Taxis": axis.dtype, "batch_dims": 0}
    result = Value((*numbers.shape, *stack.shape[1:]), stack.dtype, name=name)
    attributes = {key: attribute(value) for key, value in types.items()}
    return add(Operation("GatherV2", [stack, numbers, axis], [result], attributes))[0]


def _scattered(x: TensorList, rows: Value, numbers: Value, name: str, add: Add) -> TensorList:
    """Return a list with other elements of some numbers that the data decide."""
    is_empty = all(item is None for item in x)
    shape = len(x), *rows.shape[1:]
    stack = literal(np.zeros(shape), rows.dtype) if is_empty else _stacked(x, name, add)
    (places,) = add(synthetic("ExpandDims", [numbers, literal(-1)], [(*numbers.shape, 1)], name, Tdim=tf.int32))
    op = synthetic("TensorScatterUpdate", [stack, places, rows], [shape], name, Tindices=numbers.dtype)
    return _unstacked(add(op)[0], name, add)


def _joined(x: TensorList, name: str, add: Add) -> list[Value]:
    """Return the rows of all elements in one tensor, and how many each has."""
    parts = [x.item(at) for at in range(len(x))]
    lengths = [part.shape[0] for part in parts]
    shape = sum(lengths), *parts[0].shape[1:]
    op = synthetic("ConcatV2", [*parts, literal(0)], [shape], name, N=len(parts), Tidx=tf.int32)
    return [*add(op), literal(lengths, tf.int64)]


def _resized(x: TensorList, size: int) -> list[Value | None]:
    return [*x[:size], *[None] * (size - len(x))]


def _stacked(x: TensorList, name: str, add: Add) -> Value:
    if x.stack is not None:
        return x.stack
    if not x:
        return literal(np.zeros((0, *x.element_shape)), x.dtype)
    items = [x.item(at) for at in range(len(x))]
    return add(synthetic("Pack", items, [(len(x), *items[0].shape)], name, N=len(x), axis=0))[0]


def _sum(node: tf.Operation, items: Sequence[Meaning | None], add: Add) -> Meaning | None:
    there = [item for item in items if item is not None]
    if len(there) < 2:
        return there[0] if there else None
    if isinstance(there[0], TensorList):
        return there[0].with_items([_sum(node, inner, add) for inner in zip(*there, strict=True)])
    if isinstance(there[0], Optional):
        raise RefusedError(
            node, "adds what a condition keeps, which is not followed; write the condition with tf.where"
        )
    return add(synthetic("AddN", there, [there[0].shape], node.name, N=len(there)))[0]

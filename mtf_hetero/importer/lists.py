"""TensorLists of loops: Python lists of values while a loop is unrolled, so that nothing of them is left."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.importer.program import Operation, Value, known, synthetic

_NEW = ("TensorListReserve", "EmptyTensorList")


class TensorList(list):
    """The elements of a TensorList; None for an element that is not set and counts as zeros.

    Args:
      items: the elements.
      shape: of an element, as far as is known.
      dtype: of an element.
    """

    def __init__(self, items: Sequence[Value | None], shape: Any, dtype: tf.DType) -> None:
        super().__init__(items)
        self.shape, self.dtype = shape, dtype

    def replaced(self, items: Sequence[Value | None]) -> "TensorList":
        """Return a list of the same kind with other elements."""
        return TensorList(items, self.shape, self.dtype)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """The shape of an element, by those that are set, else by the list's own."""
        for item in self:
            if item is not None:
                return item.shape
        return tuple(int(n) for n in np.reshape(self.shape, -1))

    def item(self, at: int) -> Value:
        """Return an element; zeros if it is not set."""
        found = self[at]
        return known(np.zeros(self.element_shape), self.dtype) if found is None else found


def is_about_lists(node: Any, inputs: Sequence[Any]) -> bool:
    """Return whether an operation makes or reads a TensorList."""
    return node.type.startswith(("TensorList", "EmptyTensorList")) or any(isinstance(x, TensorList) for x in inputs)


def follow(node: Any, inputs: Sequence[Any], add: Callable[[Operation], list[Value]]) -> list[Any]:
    """Follow an operation on lists.

    Args:
      node: the tf.Operation.
      inputs: the values and lists that it reads.
      add: adds an operation on values to the program, and returns what it gives.

    Raises:
      NotImplementedError: the operation is not followed.
    """
    if node.type in _NEW:
        count = int(inputs[1].array) if node.type == "TensorListReserve" else 0
        return [TensorList([None] * count, inputs[0].array, node.get_attr("element_dtype"))]
    if node.type == "TensorListFromTensor":
        (x, *_), count = inputs, inputs[0].shape[0]
        op = synthetic("Unpack", [x], [x.shape[1:]] * count, node.name, num=count, axis=0)
        return [TensorList(add(op), x.shape[1:], x.dtype)]
    if node.type in _RULES:
        return _RULES[node.type](node, inputs, add)
    raise NotImplementedError(f"operation {node.type} {node.name!r} of a TensorArray is not followed")


def _set(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    x, index, item, *_ = inputs
    at = int(index.array)
    return [x.replaced([*x[:at], item, *x[at + 1 :]])]


def _get(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    return [inputs[0].item(int(inputs[1].array))]


def _push(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    return [inputs[0].replaced([*inputs[0], inputs[1]])]


def _pop(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    x = inputs[0]
    return [x.replaced(x[:-1]), x.item(len(x) - 1)]


def _stack(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    x = inputs[0]
    items = [x.item(at) for at in range(len(x))]
    if not items:
        return [known(np.zeros((0, *x.element_shape)), x.dtype)]
    return add(synthetic("Pack", items, [(len(x), *items[0].shape)], node.name, N=len(x), axis=0))


def _length(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    return [known(len(inputs[0]))]


def _element_shape(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    return [known(inputs[0].element_shape, node.outputs[0].dtype)]


def _zeros(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    return [inputs[0].replaced([None] * len(inputs[0]))]


def _sum(node: Any, inputs: Sequence[Any], add: Any) -> list[Any]:
    def of_items(items: Sequence[Value | None]) -> Value | None:
        there = [item for item in items if item is not None]
        if len(there) < 2:
            return there[0] if there else None
        return add(synthetic("AddN", there, [there[0].shape], node.name, N=len(there)))[0]

    return [inputs[0].replaced([of_items(items) for items in zip(*inputs, strict=True)])]


_RULES: dict[str, Callable[[Any, Sequence[Any], Any], list[Any]]] = {
    "TensorListSetItem": _set,
    "TensorListGetItem": _get,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListStack": _stack,
    "TensorListLength": _length,
    "TensorListElementShape": _element_shape,
    "ZerosLike": _zeros,
    "AddN": _sum,
    "AddV2": _sum,
}

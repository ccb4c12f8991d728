"""The work of an operation of TensorFlow: FLOPs, bytes that it moves, and a text of what it computes."""

import hashlib
import math
from collections.abc import Collection, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support import facts
from mtf_hetero.importer import table
from mtf_hetero.importer.emitter import Axes
from mtf_hetero.importer.program import Operation, Program, Value
from mtf_hetero.ops.functions import Work


def product_flops(op: Operation) -> int | None:
    """Return the FLOPs of a product or a convolution; None for any other operation."""
    signature = table.find_signature(op)
    if signature is None:
        return None
    if op.type in facts.PRODUCTS:
        sizes = {letter: n for v, letters in signature.sides(op) for letter, n in zip(letters, v.shape, strict=True)}
        return 2 * math.prod(n for letter, n in sizes.items() if letter is not None)
    if op.type in facts.CONVOLUTIONS | facts.DEPTHWISE_CONVOLUTIONS:
        kernel = op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]
        small = op.inputs[2] if "Backprop" in op.type else op.outputs[0]
        return 2 * math.prod(small.shape[:-1]) * math.prod(kernel.shape)
    return None


def estimate_flops(op: Operation) -> int:
    """Estimate the FLOPs of an operation: exact for products, else one per element that it reads or makes."""
    products = product_flops(op)
    if products is not None:
        return products
    return max((math.prod(value.shape) for value in (*op.inputs, *op.outputs)), default=0)


def size_bytes(value: Value) -> int:
    """Return the bytes of a value."""
    return math.prod(value.shape) * value.dtype.size


def made_bytes(program: Program) -> int:
    """Return the bytes of all that a step makes, as if nothing were freed within it."""
    return sum(size_bytes(value) for op in program.operations for value in op.outputs)


def of(op: Operation, dims: Collection[mtf.Dimension]) -> Work:
    """Return the work of an operation, which some dimensions divide."""
    moved = sum(map(size_bytes, (*op.inputs, *op.outputs)))
    return {tuple(sorted(dims)): (product_flops(op) or 0, moved)}


def describe(op: Operation, *axes: Sequence[Axes]) -> str:
    """Return a text that is the same for two operations only if they compute the same."""
    attributes = sorted((name, str(proto)) for name, proto in op.attributes.items() if not name.startswith("_"))
    known = [_constant_key(value) for value in op.inputs]
    sizes = [[[[dim.size for dim in axis] for axis in of_value] for of_value in side] for side in axes]
    return f"{op.type} {attributes} {known} {sizes}"


def _constant_key(value: Value) -> object:
    if value.array is None:
        return None
    array = value.array
    # a list of the numbers of a large constant takes seconds
    content = array.tolist() if array.dtype == object else hashlib.sha256(array.tobytes()).hexdigest()
    return array.dtype.str, array.shape, content

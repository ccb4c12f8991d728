"""How much memory a step needs, and how much of it is divided: what a choice of sizes has to know beforehand.

`mtf_hetero.memory` reads the lowered graph, which is there once the sizes are chosen. To choose them, it would have to
lower the graph for every set of devices and every size that is compared, and each lowering adds its variables to the
graph. So the operations of mtf are read here in place of TensorFlow's; in which order they run, and what is alive at
once, is counted by the same `memory.executor` and `memory.liveness`. A tensor is held by a processor as large as its
slice is, so that the bytes of a dimension's tensors are divided as the dimension is.

What the lowering adds is not counted, but for an addend that a sum over the processors receives: halos, copies for
other devices, scratch of single operations, and TensorFlow's own memory. Of one device the two agree within 5 per cent
from 100 MB on, of several within 30; `tests/planner/test_sketched_memory.py` holds them to it.
"""

from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support import graphs
from mtf_hetero.layers import DrawOperation
from mtf_hetero.lowering import native
from mtf_hetero.memory import executor, liveness
from mtf_hetero.memory.liveness import Node, Output

_WHOLE = ""  # the label of what no dimension divides
_ELEMENTWISE = (
    mtf.AddOperation,
    mtf.BinaryOpWithBroadcasting,
    mtf.ScalarAddOperation,
    mtf.ScalarMultiplyOperation,
    mtf.SlicewiseOperation,
)


def bytes_by_dim(
    operations: Sequence[mtf.Operation], dim_of: Callable[[mtf.Shape], str | None]
) -> dict[str | None, int]:
    """{split dimension: bytes of the tensors that it divides} when most are alive; None: of those that it does not.

    Args:
      operations: mtf operations of a step, in the graph's order.
      dim_of: from the mtf.Shape of a tensor to the dimension that divides it, or None.
    """
    nodes = _nodes(operations, dim_of)
    peaks = liveness.peaks(nodes, executor.events(nodes))
    labelled = next(iter(peaks.values())).labelled if peaks else {}
    return {label or None: size_bytes for label, size_bytes in labelled.items()}


def _nodes(operations: Sequence[mtf.Operation], dim_of: Callable[[mtf.Shape], str | None]) -> list[Node]:
    inputs_of = native.inputs_as_lowered(operations)
    place: dict[mtf.Tensor, tuple[int, int]] = {}
    nodes = []
    for op in operations:
        inputs = [x for x in inputs_of[op] if x in place]
        read = tuple(place[x] for x in inputs)
        if isinstance(op, DrawOperation) and op.part is None:  # all numbers, before they are cut
            whole = Output(size_bytes=graphs.mtf_size_bytes(op.outputs[0]))
            nodes.append(Node(device="", inputs=read, outputs=(whole,), label=_WHOLE))
            read = ((len(nodes) - 1, 0),)
        place |= {y: (len(nodes), number) for number, y in enumerate(op.outputs)}
        nodes.append(
            Node(
                device="",
                inputs=read,
                outputs=tuple(_output(op, y, inputs) for y in op.outputs),
                scratch_bytes=_received_bytes(op, dim_of),
                label=next((dim_of(y.shape) or _WHOLE for y in op.outputs), _WHOLE),
            )
        )
    return nodes


def _received_bytes(op: mtf.Operation, dim_of: Callable[[mtf.Shape], str | None]) -> int:
    """What comes from another processor while a sum over the processors is made: an addend as large as the sum."""
    if all(dim_of(tensor.shape) is None for tensor in (*op.inputs, *op.outputs)):
        return 0
    return sum(graphs.mtf_size_bytes(y) for y in op.outputs if dim_of(y.shape) is None)


def _output(op: mtf.Operation, tensor: mtf.Tensor, inputs: Sequence[mtf.Tensor]) -> Output:
    """A tensor as an output: a reshape shares its buffer, and what works element by element takes one over."""
    forwards: tuple[int, ...] = ()
    if isinstance(op, _ELEMENTWISE):
        same = [x.dtype == tensor.dtype and x.shape == tensor.shape for x in inputs]
        forwards = tuple(position for position, is_same in enumerate(same) if is_same)
    return Output(
        size_bytes=graphs.mtf_size_bytes(tensor),
        alias=0 if isinstance(op, mtf.ReshapeOperation) and inputs else None,
        forwards=forwards,
        permanent=isinstance(op, mtf.Variable),
    )

"""Times groups of operations on a device, by themselves.

A group is lowered as in training, by the same rules, on a mesh of two processors of which the first has n units; only
the first one's operations run. What the group needs from elsewhere is there before it begins, and what the processors
exchange is left out: what remains is busy time and not waiting time. The group is the body of a loop on the device, and
the time of no iteration is taken off, so that neither the call of a session nor the making of its inputs counts, on a
worker far away either.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.cluster.devices import Device
from mtf_hetero.lowering import Lowering
from mtf_hetero.profile.trial import AloneMesh
from mtf_hetero.profile.work import Group

MAX_ITERATIONS = 5000
LEAST_SECONDS = 1e-7


class _AloneLowering(Lowering):
    """Lowers some operations one after the other; what they need from elsewhere is asked of `resident`.

    Args:
      operations: of an mtf graph.
      mesh_impl: an implementation of their mesh.
      resident: from a shape and a dtype to a tensor that is there.
    """

    def __init__(
        self, operations: Sequence[mtf.Operation], mesh_impl: mtf.MeshImpl, resident: Callable[..., tf.Tensor]
    ) -> None:
        self._resident = resident
        self.last: list[tf.Tensor] = []
        graph = mtf.Graph()
        graph._operations = list(operations)
        super().__init__(graph, {operations[0].mesh: mesh_impl}, autostack=False)

    def autostack(self) -> None:
        super().autostack()
        for op in self.graph.operations:
            op.lower = functools.partial(self._lower_alone, op, op.lower)

    def _lower_alone(self, op: mtf.Operation, lower: Callable[[mtf.Lowering], None], _: mtf.Lowering) -> None:
        with tf.control_dependencies(self.last):
            lower(self)
        for y in op.outputs:
            value = self.tensors[y]
            partial = value.laid_out_input if isinstance(value, mtf.LazyAllreduceSum) else value
            first = partial.to_laid_out_tensor().tensor_list[0]
            self.tensors[y] = self._with_others(y, first)
            self.last = [first]

    def _with_others(self, tensor: mtf.Tensor, first: tf.Tensor) -> Any:
        """The first processor's slice, and for the others tensors that are there."""
        mesh_impl = self.mesh_impl(tensor)
        others = [
            self._resident(tuple(mesh_impl.slice_shape(tensor.shape, pnum)), tensor.dtype)
            for pnum in range(1, mesh_impl.size)
        ]
        return mesh_impl.LaidOutTensor([first, *others])

    def _lower_unneeded(self, op: mtf.Operation) -> None:
        """What is asked for and was not lowered comes from elsewhere."""
        for y in op.outputs:
            shape = tuple(self.mesh_impl(y).slice_shape(y.shape, 0))
            self.tensors[y] = self._with_others(y, self._resident(shape, y.dtype))


def _make_resident(graph: tf.Graph, device: str) -> Callable[..., tf.Tensor]:
    """A function from a shape and a dtype to a tensor of numbers about 1, made in `graph`, outside of any loop."""

    @functools.cache
    def resident(shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
        with graph.as_default(), tf.device(device):
            last = shape[-1:] or (1,)
            if not (dtype.is_floating or dtype.is_complex):
                return tf.broadcast_to(tf.cast(tf.random.uniform(last) < 0.0, dtype), shape)  # of zeros, not constant
            numbers = tf.cast(tf.random.uniform(last, 0.5, 1.5), dtype)
            return tf.reshape(tf.broadcast_to(numbers, [mtf.list_product(shape[:-1]), *last]), shape)

    return resident


def _keep_captures_on(device: str) -> None:
    """Lets the body of a loop, the default graph, use copies on a device of what the user's graph computes elsewhere.

    Otherwise a learning rate on the chief would cross the network in every iteration.
    """
    inner = tf.get_default_graph()
    capture = inner.capture

    @functools.cache
    def copy(op: tf.Operation, index: int) -> tf.Tensor:
        with op.graph.as_default(), tf.device(device):
            return tf.raw_ops.DeepCopy(x=op.outputs[index])  # an identity would be optimised away

    def capture_copy(tensor: tf.Tensor, *args: Any, **kwargs: Any) -> tf.Tensor:
        is_other = getattr(tensor, "graph", inner) is not inner and tensor.dtype != tf.resource
        if is_other and Device.parse(tensor.device) != Device.parse(device):  # "" may be anywhere
            tensor = copy(tensor.op, tensor.value_index)
        return capture(tensor, *args, **kwargs)

    inner.capture = capture_copy


def build_loop(group: Group, units: int, device: str, iterations: tf.Tensor) -> tf.Operation:
    """A tf.Operation in the default graph that runs a group some times on a device.

    Args:
      group: the operations.
      units: how many units of its split dimension the device has; what a group without one does is always the same.
      device: the device.
      iterations: tf.Tensor, int32, on that device.

    Raises:
      NotImplementedError: an operation of the group cannot be lowered by itself.
    """
    total = group.layer.units
    alone = not group.names or units == total
    rules = () if alone else tuple((name, "all") for name in sorted(group.names))
    shares = {} if alone else {"all": (units, total - units)}
    resident = _make_resident(tf.get_default_graph(), device)

    def body(i: tf.Tensor) -> tf.Tensor:
        _keep_captures_on(device)
        mesh_impl = AloneMesh([("all", 1 if alone else 2)], rules, [device] * (1 if alone else 2), shares)
        lowering = _AloneLowering(group.operations, mesh_impl, resident)
        ends = [lowering.tensors[y].to_laid_out_tensor().tensor_list[0] for y in group.needed]
        with tf.control_dependencies([*lowering.last, *ends]):
            return i + 1

    with tf.device(device):
        try:
            end = tf.while_loop(lambda i: i < iterations, body, [tf.constant(0)])
        except ValueError as error:
            raise NotImplementedError(f"layer {group.layer.name!r} cannot be measured by itself: {error}") from error
        with tf.control_dependencies([end]):
            return tf.no_op()


def convert_to_loop_config(config: tf.ConfigProto) -> tf.ConfigProto:
    """A copy of a tf.ConfigProto for sessions that run loops of `build_loop`.

    TensorFlow's dependency optimiser drops what is only waited for, and that is all of a loop.
    """
    result = type(config)()
    result.CopyFrom(config)
    result.graph_options.rewrite_options.dependency_optimization = 2  # RewriterConfig.OFF
    return result


@dataclasses.dataclass(eq=False)
class Point:
    """The measurement of one layer at one size on one device."""

    key: str
    device: str
    units: int
    call: Callable[[int], Any]
    iterations: int = 1
    samples: list[float] = dataclasses.field(default_factory=list)
    empty: list[float] = dataclasses.field(default_factory=list)

    def warm_up(self, sample_seconds: float) -> None:
        """Runs it for the first time, and finds how many iterations take `sample_seconds`."""
        self._time(1)
        self._time(0)
        seconds = max(self._time(1) - self._time(0), 1e-5)
        while self.iterations < MAX_ITERATIONS and seconds < 0.3 * sample_seconds:
            wanted = self.iterations * sample_seconds / seconds
            self.iterations = min(MAX_ITERATIONS, max(self.iterations + 1, int(min(wanted, 20 * self.iterations))))
            seconds = max(self._time(self.iterations) - self._time(0), 1e-5)

    def sample(self) -> None:
        """Takes one more sample."""
        self.empty.append(self._time(0))
        self.samples.append(self._time(self.iterations))

    def _time(self, iterations: int) -> float:
        begin = time.perf_counter()
        self.call(iterations)
        return time.perf_counter() - begin

    @property
    def seconds(self) -> float:
        """Of one iteration: the median."""
        whole = statistics.median(self.samples) - statistics.median(self.empty)
        return max(whole / self.iterations, LEAST_SECONDS)

    @property
    def spread(self) -> float:
        """The interquartile range of the samples, in seconds of one iteration."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / self.iterations

    @property
    def error(self) -> float:
        """The standard error of the median, as a fraction of it, as if the samples were normal."""
        if len(self.samples) < 2:
            return float("inf")
        return 1.2533 * self.spread / 1.349 / len(self.samples) ** 0.5 / self.seconds

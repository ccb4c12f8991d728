"""Estimate the memory that a training step needs on each device, from its lowered graph.

Nothing runs. The estimate follows the order in which TensorFlow would run a step (`memory.executor`), and counts the
bytes that are alive at each moment (`memory.liveness`). A process on a CPU uses as much if it returns freed memory, as
a worker does (`cluster.worker`). Other processes keep freed memory, and use up to twice as much.
"""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import cores, deadline, garbage, graphs, tables
from mtf_hetero.cost.memory import executor, liveness
from mtf_hetero.cost.memory import graph as memory_graph
from mtf_hetero.cost.memory.graph import GRADIENTS, OPTIMIZER, WEIGHTS
from mtf_hetero.cost.memory.liveness import MESSAGES
from mtf_hetero.graph import walk
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import Lowering
from mtf_hetero.mesh import UnevenMeshImpl, traffic

# Of a worker that trains, beside tensors: fitted to 35 workers with plans of 7 networks, in the benchmark "planner"
RUNTIME_BYTES = 19_000_000  # whatever the network
CONVOLUTION_BYTES = 200_000  # for each convolution, of which oneDNN compiles a kernel in each thread that meets it
MESSAGE_BYTES = 30_000  # for each message that a step receives
BUFFERED = 0.2  # of the bytes that a step receives
_STEPS = 20  # simulated, each with durations of its own
_MOST_OPERATIONS = 200_000  # of all these steps: of a large graph there are fewer


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The bytes of a device at the moment of a step when it holds most.

    Args:
      weights: the device's slices of the trainable variables.
      optimizer: its slices of all other variables.
      gradients: of weights, and what the optimizer makes of them.
      activations: everything else: activations and their gradients, constants, received tensors.
      messages: on their way, until a tensor is made of each; of a CPU only, since they are in the host's memory.
      runtime: of TensorFlow itself in a CPU's process that trains: code, executors, connections.
    """

    weights: int
    optimizer: int
    gradients: int
    activations: int
    messages: int
    runtime: int

    @property
    def peak(self) -> int:
        """All of it."""
        return sum(dataclasses.astuple(self))


def estimate(
    lowering: mtf.Lowering,
    fetches: Sequence[tf.Tensor | tf.Operation],
    *,
    threads: int = cores.OPERATIONS,
) -> dict[str, Estimate]:
    """Estimate the memory that each device needs for a step.

    The tensors of the step and the variables count, as the graph has them. The program, the libraries' buffers on a GPU
    and the input pipeline do not. A loop counts with one round.

    Args:
      lowering: the Lowering.
      fetches: what a step runs: tf.Tensors and tf.Operations of the graph it was lowered to.
      threads: how many operations a process runs side by side, TensorFlow's inter_op_parallelism_threads; by default as
        many as a worker at least does.

    Returns:
      {device: Estimate}, those of the mesh first, in its order; then those that hold anything else.

    Raises:
      ValueError: a tensor whose size is not known.
    """
    operations = graphs.operations_to_run(fetches)
    devices = list(
        dict.fromkeys(device for impl in lowering.mesh_to_impl.values() for device in getattr(impl, "devices", ()))
    )
    places = memory_graph.Places(devices)
    variables = memory_graph.variables(lowering, operations[0].graph, places)
    nodes = memory_graph.nodes(lowering, operations, variables, places)
    in_use = list(dict.fromkeys([*devices, *(x.device for x in (*nodes, *variables.values()))]))
    memories = {device: places.memory(device) for device in in_use}
    steps = max(1, min(_STEPS, _MOST_OPERATIONS // len(nodes)))
    events = itertools.chain.from_iterable(
        executor.events(nodes, memories=memories, threads=threads, seed=seed) for seed in range(steps)
    )
    hosts = {device: places.process(device) for device in in_use if not places.is_cpu(device)}
    peaks = liveness.peaks(nodes, events, variables=variables, memories=memories, hosts=hosts)
    held = {device: {WEIGHTS: 0, OPTIMIZER: 0} for device in in_use}
    for variable in variables.values():
        held[variable.device][variable.label] += variable.size_bytes
    runtime = _runtime_bytes(nodes, memories)
    return {
        device: _estimate(peaks.get(device, {}), held[device], runtime=runtime[device] if places.is_cpu(device) else 0)
        for device in in_use
        if device in peaks or device in devices
    }


@garbage.without_collection()
def estimate_layout(build: Callable[[], mtf.Graph], layout: Layout) -> tuple[Estimate, ...]:
    """Estimate the memory of each device of a layout, each a worker's CPU; () if the graph assigns no variable.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one, and returns its mtf.Graph.
      layout: the Layout.

    Raises:
      deadline.OutOfTimeError: a time limit has passed.
    """
    places = [f"/job:worker/task:{number}/device:CPU:0" for number in range(layout.device_count)]
    with tf.Graph().as_default():
        graph = build()
        updates = walk.updates(graph)
        if not updates:
            return ()
        lowering = Lowering(graph, {updates[0].mesh: UnevenMeshImpl.from_layout(layout, places)})
        step = [lowering.lowered_operation(op) for op in updates]
        deadline.check()
        traffic.arrange(step)
        deadline.check()
        estimates = estimate(lowering, step)
    return tuple(estimates[place] for place in places)


def _runtime_bytes(nodes: Sequence[liveness.Node], memories: Mapping[str, str]) -> dict[str, int]:
    """Return {device: bytes that TensorFlow itself uses there, if it is a CPU}."""
    total = dict.fromkeys(memories, RUNTIME_BYTES)
    for node in nodes:
        total[node.device] += CONVOLUTION_BYTES * node.is_convolution
    for (source, number), devices in liveness.readers(nodes, memories).items():
        for device in filter(None, devices):
            received = nodes[source].outputs[number].size_bytes
            total[device] += MESSAGE_BYTES + round(BUFFERED * received)
    return total


def _estimate(peak: Mapping[Hashable, int], held: Mapping[str, int], *, runtime: int) -> Estimate:
    weights, optimizer = held[WEIGHTS], held[OPTIMIZER]
    gradients, messages = peak.get(GRADIENTS, 0), peak.get(MESSAGES, 0)
    activations = sum(peak.values()) - weights - optimizer - gradients - messages
    return Estimate(weights, optimizer, gradients, activations, messages, runtime)


def table(estimates: Mapping[str, Estimate]) -> str:
    """Return a table of the memory that each device needs, in megabytes (10^6 bytes)."""
    columns = [*(field.name for field in dataclasses.fields(Estimate)), "peak"]
    rows = [["MB", *columns]]
    for device, estimate in estimates.items():
        rows.append([device, *(f"{getattr(estimate, name) / 1e6:.1f}" for name in columns)])
    least = (0, *[11] * len(columns))
    return "\n".join(tables.lines(rows, "<" + ">" * len(columns), gap=" ", least=least))

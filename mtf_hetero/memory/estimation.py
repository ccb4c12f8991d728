"""How much memory a training step needs on each device: estimated from its lowered graph, and measured.

Example:
  >>> lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
  >>> train = tf.group([lowering.lowered_operation(op) for op in updates])
  >>> print(memory.table(memory.estimate(lowering, [train])))

The estimate runs nothing. It follows the order in which TensorFlow would run a step (`memory.executor`), and counts
what is alive at each moment (`memory.liveness`). A process on a CPU takes as much where it gives back what it frees, as
a worker does (`mtf_hetero.worker`). Left to themselves, TensorFlow's allocator and the C library keep what was freed,
and a process takes up to twice as much.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import cores, graphs
from mtf_hetero.memory import executor, liveness
from mtf_hetero.memory import graph as memory_graph
from mtf_hetero.memory.graph import GRADIENTS, OPTIMIZER, WEIGHTS
from mtf_hetero.memory.liveness import MESSAGES

# What a worker holds beside tensors once it trains: fitted to what 35 workers took in steps of plans of 7 networks,
# which are the benchmark "planner"'s
RUNTIME_BYTES = 19_000_000  # whatever the network
CONVOLUTION_BYTES = 200_000  # for each convolution, of which oneDNN compiles a kernel in each thread that meets it
MESSAGE_BYTES = 30_000  # for each message that a step receives
BUFFERED = 0.2  # of the bytes that a step receives
_STEPS = 20  # simulated, each with durations of its own
_MOST_OPERATIONS = 200_000  # of all these steps: of a large graph there are fewer


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a device holds at the moment of a step when it holds most, in bytes.

    Args:
      weights: the device's slices of the trainable variables.
      optimizer: its slices of all other variables.
      gradients: of weights, and what the optimizer makes of them.
      activations: everything else: activations and their gradients, constants, what was received.
      messages: what is being received, until a tensor is made of it; of a CPU only, since it is in the host's memory.
      runtime: what TensorFlow itself takes in a CPU's process once it trains: code, executors, connections.
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
    by_process: bool = False,
) -> dict[str, Estimate]:
    """Estimates the memory that each device needs for a step.

    It counts the tensors of the step and the variables, as the graph has them: not the program, not the libraries'
    buffers on a GPU, nor what the input pipeline holds. A loop counts with one round.

    Args:
      lowering: the Lowering.
      fetches: what a step runs: tf.Tensors and tf.Operations of the graph it was lowered to.
      threads: how many operations a process runs side by side, TensorFlow's inter_op_parallelism_threads; by default as
        many as a worker at least does.
      by_process: one entry for the CPUs of a process, which share its memory.

    Returns:
      {device or process: Estimate}, those of the mesh first, in its order; then those that hold anything else.

    Raises:
      ValueError: a tensor whose size is not known.
    """
    operations = graphs.needed(fetches)
    devices = list(dict.fromkeys(device for impl in lowering.mesh_to_impl.values() for device in impl.devices))
    places = memory_graph.Places(devices)
    variables = memory_graph.variables(lowering, operations[0].graph, places)
    nodes = memory_graph.nodes(lowering, operations, variables, places)
    in_use = list(dict.fromkeys([*devices, *(x.device for x in (*nodes, *variables.values()))]))
    memories = {device: places.memory(device) for device in in_use}
    accounts = {device: memories[device] if by_process else device for device in in_use}
    steps = max(1, min(_STEPS, _MOST_OPERATIONS // len(nodes)))
    events = itertools.chain.from_iterable(
        executor.events(nodes, memories=memories, threads=threads, seed=seed) for seed in range(steps)
    )
    hosts = {device: places.process(device) for device in in_use if not places.is_cpu(device)}
    peaks = liveness.peaks(nodes, events, variables=variables, memories=memories, accounts=accounts, hosts=hosts)
    held = {account: {WEIGHTS: 0, OPTIMIZER: 0} for account in accounts.values()}
    for variable in variables.values():
        held[accounts[variable.device]][variable.label] += variable.size_bytes
    on_cpu = {accounts[device] for device in in_use if places.is_cpu(device)}
    runtime = _runtime_bytes(nodes, memories, accounts)
    return {
        account: _estimate(peaks[account], held[account], runtime=runtime[account] if account in on_cpu else 0)
        for account in dict.fromkeys(accounts.values())
        if account in peaks
    }


def _runtime_bytes(
    nodes: Sequence[liveness.Node], memories: Mapping[str, str], accounts: Mapping[str, str]
) -> dict[str, int]:
    """{account: what TensorFlow itself takes there, were it a CPU's}."""
    total = dict.fromkeys(accounts.values(), RUNTIME_BYTES)
    for node in nodes:
        total[accounts[node.device]] += CONVOLUTION_BYTES * node.is_convolution
    for (source, number), devices in liveness.readers(nodes, memories).items():
        for device in filter(None, devices):
            received = nodes[source].outputs[number].size_bytes
            total[accounts[device]] += MESSAGE_BYTES + round(BUFFERED * received)
    return total


def _estimate(peak: liveness.Peak, held: Mapping[str, int], *, runtime: int) -> Estimate:
    gradients, messages = peak.labelled.get(GRADIENTS, 0), peak.labelled.get(MESSAGES, 0)
    return Estimate(
        weights=held[WEIGHTS],
        optimizer=held[OPTIMIZER],
        gradients=gradients,
        activations=peak.total - held[WEIGHTS] - held[OPTIMIZER] - gradients - messages,
        messages=messages,
        runtime=runtime,
    )

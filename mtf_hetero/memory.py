"""How much memory a training step needs on each device: estimated from its lowered graph, and measured.

Example:
  >>> lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
  >>> train = tf.group([lowering.lowered_operation(op) for op in updates])
  >>> print(memory.table(memory.estimate(lowering, [train])))

The estimate runs nothing. It follows the order in which TensorFlow would run a step (`_memory_order`), and counts what
is alive at each moment (`_memory_liveness`). A process on a CPU takes as much where it gives back what it frees, as a
worker does (`mtf_hetero.worker`). Left to themselves, TensorFlow's allocator and the C library keep what was freed, and
a process takes up to twice as much.
"""

import collections
import dataclasses
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from mtf_hetero import _memory_graph, _memory_liveness, _memory_order
from mtf_hetero._compat import tf
from mtf_hetero._memory_graph import GRADIENTS, OPTIMIZER, WEIGHTS
from mtf_hetero._memory_liveness import MESSAGES

# What a worker holds more after its steps than before them, beside variables: fitted to 31 runs of 1 to 8 workers
RUNTIME_BYTES = 18_000_000  # whatever the network
OPERATION_BYTES = 40_000  # for each operation that makes more than a few numbers
MESSAGE_BYTES = 43_000  # for each message that a step receives
_FEW_BYTES = 64
_STEPS = 20  # simulated, each in an order of its own


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
    lowering: Any, fetches: Sequence[Any], *, threads: int = 2, by_process: bool = False
) -> dict[str, Estimate]:
    """Estimates the memory that each device needs for a step.

    It counts the tensors of the step and the variables, as the graph has them: not the program, not the libraries'
    buffers on a GPU, nor what the input pipeline holds. A loop counts with one round.

    Args:
      lowering: the Lowering.
      fetches: what a step runs: tf.Tensors and tf.Operations of the graph it was lowered to.
      threads: how many operations a process runs side by side, TensorFlow's inter_op_parallelism_threads.
      by_process: one entry for the CPUs of a process, which share its memory.

    Returns:
      {device or process: Estimate}, those of the mesh first, in its order; then those that hold anything else.

    Raises:
      ValueError: a tensor whose size is not known.
    """
    operations = _memory_graph.needed(fetches)
    devices = list(dict.fromkeys(device for impl in lowering.mesh_to_impl.values() for device in impl.devices))
    places = _memory_graph.Places(devices)
    variables = _memory_graph.variables(lowering, operations[0].graph, places)
    nodes = _memory_graph.nodes(lowering, operations, variables, places)
    found = list(dict.fromkeys([*devices, *(x.device for x in (*nodes, *variables.values()))]))
    memories = {device: places.memory(device) for device in found}
    accounts = {device: memories[device] if by_process else device for device in found}
    events = itertools.chain.from_iterable(
        _memory_order.events(nodes, memories=memories, threads=threads, seed=seed) for seed in range(_STEPS)
    )
    hosts = {device: places.process(device) for device in found if places.kind(device) != "CPU"}
    peaks = _memory_liveness.peaks(
        nodes, events, variables=variables, memories=memories, accounts=accounts, hosts=hosts
    )
    held = {account: {WEIGHTS: 0, OPTIMIZER: 0} for account in accounts.values()}
    for variable in variables.values():
        held[accounts[variable.device]][variable.label] += variable.size_bytes
    on_cpu = {accounts[device] for device in found if places.kind(device) == "CPU"}
    operations_of = collections.Counter(accounts[node.device] for node in nodes if _makes_much(node))
    received = itertools.chain.from_iterable(_memory_liveness.readers(nodes, memories).values())
    received_by = collections.Counter(accounts[device] for device in received if device)
    return {
        account: _estimate(
            peaks[account],
            held[account],
            runtime=RUNTIME_BYTES + OPERATION_BYTES * operations_of[account] + MESSAGE_BYTES * received_by[account]
            if account in on_cpu
            else 0,
        )
        for account in dict.fromkeys(accounts.values())
        if account in peaks
    }


def _makes_much(node: _memory_liveness.Node) -> bool:
    return any(output.size_bytes > _FEW_BYTES and not output.permanent for output in node.outputs)


def _estimate(peak: _memory_liveness.Peak, held: Mapping[str, int], *, runtime: int) -> Estimate:
    gradients, messages = peak.labelled.get(GRADIENTS, 0), peak.labelled.get(MESSAGES, 0)
    return Estimate(
        weights=held[WEIGHTS],
        optimizer=held[OPTIMIZER],
        gradients=gradients,
        activations=peak.total - held[WEIGHTS] - held[OPTIMIZER] - gradients - messages,
        messages=messages,
        runtime=runtime,
    )


def allocator_peaks(metadata: Any) -> dict[str, int]:
    """The most that TensorFlow's allocator had given out on each device, in bytes, variables included.

    It is read whenever an operation ends that took some, so that what one operation frees before its end is not in it.

    Args:
      metadata: tf.RunMetadata of a step that was run with `trace.run_options()`.

    Returns:
      {device: bytes}, of the devices whose allocator counts: GPUs, and CPUs where TensorFlow runs oneDNN.
    """
    peaks: dict[str, int] = {}
    for stats in metadata.step_stats.dev_stats:
        own = "gpu" if "GPU" in stats.device else "cpu"
        for node in stats.node_stats:
            for memory in node.memory:
                name = memory.allocator_name.lower()
                if own in name and not (own == "gpu" and "host" in name):
                    peaks[stats.device] = max(peaks.get(stats.device, 0), memory.allocator_bytes_in_use)
    return {device: peak for device, peak in peaks.items() if peak}


def gpu_peaks(devices: Sequence[str]) -> dict[str, int]:
    """The most that TensorFlow's allocator has given out on each GPU of this process since it began, in bytes.

    Args:
      devices: of this process; those that are no GPU are left out.
    """
    found = {}
    for device in devices:
        spec = tf.DeviceSpec.from_string(device)
        if spec.device_type == "GPU":
            found[device] = tf.config.experimental.get_memory_info(f"GPU:{spec.device_index or 0}")["peak"]
    return found


class ProcessPeaks:
    """The most memory that processes of this machine hold beyond what they hold when this is made (Linux).

    A TensorFlow process holds some hundred megabytes before it has run anything, its code above all, which are not the
    model's. So this is made once the workers are up, and before a session is. What is counted is resident memory.

    Args:
      pids: the processes: `LocalCluster.pids`, or os.getpid().

    Example:
      >>> peaks = ProcessPeaks(local_cluster.pids)
      >>> estimator.train(input_fn, steps=20)
      >>> measured = dict(zip(cluster.devices, peaks.read()))
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = tuple(pids)
        self.baseline = tuple(_status_bytes(pid, "VmRSS") for pid in self._pids)
        self.restart()

    def restart(self) -> None:
        """Forgets the peaks so far, that of making the variables for instance, and keeps the baseline."""
        for pid in self._pids:
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # VmHWM counts from now on

    def read(self) -> tuple[int, ...]:
        """The peak of each process since it was last restarted, less its baseline, in bytes."""
        peaks = [_status_bytes(pid, "VmHWM") for pid in self._pids]
        return tuple(peak - baseline for peak, baseline in zip(peaks, self.baseline, strict=True))


def _status_bytes(pid: int, field: str) -> int:
    """A figure of /proc/PID/status.

    Raises:
      ValueError: there is no such process, or no such file system.
    """
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"pid is {pid}, whose memory cannot be read: {error.strerror}; Linux alone tells it"
        ) from error
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines[field].split()[0]) * 1024


def table(estimates: Mapping[str, Estimate], measured: Mapping[str, int] | None = None) -> str:
    """What each device needs, in megabytes (10^6 bytes); beside it what was measured.

    Args:
      estimates: {device: Estimate}.
      measured: {device: bytes}.
    """
    columns = [*(field.name for field in dataclasses.fields(Estimate)), "peak"]
    width = max([len("MB"), *map(len, estimates)])
    lines = [f"{'MB':{width}} " + " ".join(f"{name:>11}" for name in columns)]
    if measured is not None:
        lines[0] += f" {'measured':>11} {'off by':>8}"
    for device, found in estimates.items():
        line = f"{device:{width}} " + " ".join(f"{getattr(found, name) / 1e6:11.1f}" for name in columns)
        if measured is not None:
            peak = measured.get(device, math.nan)
            line += f" {peak / 1e6:11.1f} {100 * (found.peak / peak - 1):+6.1f} %" if peak == peak else f" {'-':>11}"
        lines.append(line)
    return "\n".join(lines)

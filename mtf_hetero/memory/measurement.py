"""How much memory a training step took: as TensorFlow's allocators count it, and the resident memory of processes."""

import pathlib
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero.cluster.devices import Device


def allocator_peaks(metadata: tf.RunMetadata) -> dict[str, int]:
    """The most that TensorFlow's allocator had given out on each device, in bytes, variables included.

    It is read whenever an operation ends that took some, so that what one operation frees before its end is not in it.

    Args:
      metadata: tf.RunMetadata of a step that was run with `trace.run_options()`.

    Returns:
      {device: bytes}, of the devices whose allocator counts: GPUs, and CPUs where TensorFlow runs oneDNN.
    """
    peaks: dict[str, int] = {}
    for stats in metadata.step_stats.dev_stats:
        kind = "gpu" if "GPU" in stats.device else "cpu"
        for node in stats.node_stats:
            for memory in node.memory:
                name = memory.allocator_name.lower()
                if kind in name and not (kind == "gpu" and "host" in name):
                    peaks[stats.device] = max(peaks.get(stats.device, 0), memory.allocator_bytes_in_use)
    return {device: peak for device, peak in peaks.items() if peak}


def gpu_peaks(devices: Sequence[str]) -> dict[str, int]:
    """The most that TensorFlow's allocator has given out on each GPU of this process since it began, in bytes.

    Args:
      devices: of this process; those that are no GPU are left out.
    """
    parsed = {name: Device.parse(name) for name in devices}
    return {
        name: tf.config.experimental.get_memory_info(f"GPU:{device.index or 0}")["peak"]
        for name, device in parsed.items()
        if device.kind == "GPU"
    }


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
        raise ValueError(f"pid is {pid}, whose memory cannot be read: {error.strerror}; this needs Linux") from error
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines[field].split()[0]) * 1024

"""Measure the memory that processes use for a training step: their resident memory."""

import pathlib
from collections.abc import Sequence


class ProcessPeaks:
    """The most memory that processes of this machine hold, less what they hold when this object is made (Linux).

    A TensorFlow process holds some hundred megabytes before it runs anything, above all its code. So make this object
    once the workers run, and before a session.

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
        """Forget the peaks so far, and keep the baseline."""
        for pid in self._pids:
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # VmHWM counts from now on

    def read(self) -> tuple[int, ...]:
        """Return the peak of each process since the last restart, less its baseline, in bytes."""
        peaks = [_status_bytes(pid, "VmHWM") for pid in self._pids]
        return tuple(peak - baseline for peak, baseline in zip(peaks, self.baseline, strict=True))


def _status_bytes(pid: int, field: str) -> int:
    """Return a figure of /proc/PID/status.

    Raises:
      ValueError: there is no such process, or no such file system.
    """
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"pid is {pid}, whose memory cannot be read: {error.strerror}; this needs Linux") from error
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines[field].split()[0]) * 1024

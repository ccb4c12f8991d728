"""Show where the time of a step goes: per device, per kind of operation, per layer.

Example:
  >>> options, metadata = trace.run_options(), tf.RunMetadata()
  >>> session.run(train_op, options=options, run_metadata=metadata)
  >>> print(trace.table(trace.read(metadata)))
"""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from mtf_hetero._compat import chrome_trace, tf
from mtf_hetero._support import files, tables
from mtf_hetero.cluster.devices import complete

RECEIVED = "RecvTensor"  # a tensor on its way from another worker, from the moment at which it was there to be sent
TRANSFER = re.compile(rf"_?(Host)?(Send|Recv)$|{RECEIVED}")
_CLASSES = (
    ("convolution", re.compile(r"Conv\dD")),
    ("matrix product", re.compile(r"MatMul|Einsum")),
    ("transfer and waiting", TRANSFER),
)
_EDGE = re.compile(r"^(?:\[.*?\] )*edge_\d+_(\S+) from .*$")
_PREFIX = re.compile(r"_(Mkl|Fused)?(Native)?")


@dataclasses.dataclass(frozen=True)
class Event:
    """One operation, once.

    Args:
      device: such as "/job:localhost/replica:0/task:0/device:CPU:1".
      name: of the operation in the graph.
      kind: its type, such as "Conv2D", without what TensorFlow's optimisers add to it.
      begin_seconds: from the first event on.
      end_seconds: the same.
    """

    device: str
    name: str
    kind: str
    begin_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end_seconds - self.begin_seconds

    @property
    def layer(self) -> str:
        """The first part of its name."""
        return self.name.split("/")[0]

    @property
    def work(self) -> str:
        """The class of its work."""
        return next((name for name, pattern in _CLASSES if pattern.search(self.kind)), "other")


def run_options() -> tf.RunOptions:
    """Return the options of a session's run whose metadata `read` can read."""
    return tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)


def read(metadata: tf.RunMetadata) -> tuple[Event, ...]:
    """Return the events of a run, in order of their beginning; of a GPU, its kernels and copies.

    Args:
      metadata: tf.RunMetadata of a run with `run_options`.
    """
    kinds = {node.name: node.op for graph in metadata.partition_graphs for node in graph.node}
    gpus = [stats.device for stats in metadata.step_stats.dev_stats if stats.device.endswith("stream:all")]
    events = []
    for stats in metadata.step_stats.dev_stats:
        device = stats.device.removesuffix("/stream:all")
        if "/stream:" in device or "memcpy" in device or (stats.device not in gpus and f"{device}/stream:all" in gpus):
            continue
        for node in stats.node_stats:
            name = node.node_name.split(":")[0]
            if name == RECEIVED:  # it is labelled with its size, its speed and the edge of the graph
                name, kind = _EDGE.sub(r"\1", node.timeline_label), RECEIVED
            else:
                kind = kinds.get(name, node.timeline_label.split(" = ")[-1].split("(")[0] or name)
                kind = _PREFIX.sub("", kind, count=1)
            begin = node.all_start_micros + node.op_start_rel_micros
            end = node.all_start_micros + node.op_end_rel_micros
            events.append(Event(device, name, kind, begin * 1e-6, end * 1e-6))
    first = min((event.begin_seconds for event in events), default=0.0)
    moved = [
        dataclasses.replace(e, begin_seconds=e.begin_seconds - first, end_seconds=e.end_seconds - first) for e in events
    ]
    return tuple(sorted(moved, key=lambda event: event.begin_seconds))


def totals(events: Sequence[Event], key: Callable[[Event], str]) -> dict[str, float]:
    """Return {key: seconds of all its events}, the longest first. Parallel events both count."""
    seconds: dict[str, float] = collections.defaultdict(float)
    for event in events:
        seconds[key(event)] += event.seconds
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


@dataclasses.dataclass(frozen=True)
class Usage:
    """The seconds of a device in a step, which add up to the step.

    Args:
      computing: of its work.
      receiving: without work, while a tensor was on its way from another worker.
      waiting: the rest.
    """

    computing: float
    receiving: float
    waiting: float


def usage(events: Sequence[Event], devices: Sequence[str] | None = None) -> dict[str, Usage]:
    """Return the usage of each device.

    Args:
      events: of one step.
      devices: of the mesh, "cpu:0" or "/job:worker/task:1/device:GPU:0"; None: all that occur.
    """
    traced = sorted({event.device for event in events})
    if devices is not None:
        completed = complete([*traced, *devices])
        wanted = {completed[device] for device in devices}
        traced = [device for device in traced if completed[device] in wanted]
    span = max((event.end_seconds for event in events), default=0.0)
    result = {}
    for device in traced:
        on_device = [event for event in events if event.device == device]
        computing = covered(event for event in on_device if not TRANSFER.search(event.kind))
        busy = covered(event for event in on_device if not TRANSFER.search(event.kind) or event.kind == RECEIVED)
        result[device] = Usage(computing, busy - computing, span - busy)
    return result


def covered(events: Iterable[Event]) -> float:
    """Return the seconds in which at least one of the events went on."""
    seconds = end = 0.0
    for event in sorted(events, key=lambda event: event.begin_seconds):
        seconds += max(event.end_seconds - max(event.begin_seconds, end), 0.0)
        end = max(end, event.end_seconds)
    return seconds


def imbalance(events: Sequence[Event], devices: Sequence[str] | None = None) -> float:
    """Return the busiest device's computing time over the mean of all: 1 if they are equally busy.

    Args:
      events: of one step.
      devices: as in `usage`.

    Raises:
      ValueError: no device did anything.
    """
    busy = [used.computing for used in usage(events, devices).values()]
    if not any(busy):
        raise ValueError("the trace has no events; run the step with trace.run_options()")
    return max(busy) * len(busy) / sum(busy)


def table(events: Sequence[Event], devices: Sequence[str] | None = None, *, rows: int = 12) -> str:
    """Return a table of each device's usage, and of the work, kinds and layers that took longest.

    Args:
      events: of one step.
      devices: as in `usage`.
      rows: kinds and layers per device.
    """
    span = max((event.end_seconds for event in events), default=0.0)
    lines = [f"step of {span * 1e3:.1f} ms, load imbalance (busiest device / mean) {imbalance(events, devices):.3f}"]
    for device, used in usage(events, devices).items():
        on_device = [event for event in events if event.device == device]
        parts = (f"{name} {_share(seconds, span)}" for name, seconds in dataclasses.asdict(used).items())
        lines.append(f"\n{device}: {', '.join(parts)}")
        sections = (
            ("work", lambda event: event.work),
            ("kind", lambda event: event.kind),
            ("layer", lambda event: event.layer),
        )
        for title, key in sections:
            seconds = totals(on_device, key)
            whole = sum(seconds.values())
            shown = [(name[:28], f"{value * 1e3:.2f}", _percent(value, whole)) for name, value in seconds.items()]
            cells = [(title, "ms", "share"), *shown[:rows]]
            lines += tables.lines(cells, "<>>", gap=" ", indent="  ", least=(28, 9, 7))
    return "\n".join(lines)


def _share(part: float, whole: float) -> str:
    return f"{part * 1e3:.1f} ms ({_percent(part, whole)})"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


class TraceHook(tf.train.SessionRunHook):
    """A hook that traces steps: a Chrome trace (for chrome://tracing) and a table of each.

    The files are `trace_STEP.json` and `trace_STEP.txt`; STEP counts the session's steps from 0. A traced step takes
    longer than others.

    Args:
      output_dir: where to write.
      steps: the steps to trace.
      devices: of the mesh; None: all that do anything.
      reports: {name: from a step's events to a text}, which are written to `NAME_STEP.txt`.
    """

    def __init__(
        self,
        output_dir: str,
        steps: Sequence[int],
        devices: Sequence[str] | None = None,
        reports: Mapping[str, Callable[[Sequence[Event]], str]] | None = None,
    ) -> None:
        self._dir = pathlib.Path(output_dir)
        self.reports = dict(reports or {})
        self.devices = devices
        self._steps = frozenset(steps)
        self._step = -1

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs | None:
        self._step += 1
        if self._step not in self._steps:
            return None
        return tf.train.SessionRunArgs(None, options=run_options())

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if self._step not in self._steps:
            return
        metadata = run_values.run_metadata
        files.write_text(self._dir / f"trace_{self._step}.json", chrome_trace(metadata.step_stats))
        events = read(metadata)
        files.write_text(self._dir / f"trace_{self._step}.txt", table(events, self.devices) + "\n")
        for name, report in self.reports.items():
            files.write_text(self._dir / f"{name}_{self._step}.txt", report(events) + "\n")

"""--list_speed=auto: measures the devices on the model, and splits only where that is faster than the best of them."""

import dataclasses
import os
from collections.abc import Callable, Mapping

from mtf_hetero import Layout, mtf, profile, tf
from mtf_hetero.cluster import Cluster


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen.

    Args:
      layout: how the tensors lie on the devices.
      devices: those that take part, one per processor.
      lines: what was chosen and why, for the user.
      predicted_seconds: of a step.
      shares: of all devices, as measured, in per cent.
    """

    layout: Layout
    devices: tuple[str, ...]
    lines: tuple[str, ...]
    predicted_seconds: float
    shares: tuple[float, ...]


def choose(
    build: Callable[[], mtf.Graph],
    layout: Layout,
    cluster: Cluster,
    *,
    memory_limits: Mapping[str, int] | None = None,
    keep: bool = True,
    effort: profile.Effort | None = None,
    progress: bool = False,
) -> Choice:
    """Finds the devices that are to take part and the size of each one's slices.

    A split that is predicted to pay is tried against the fastest device alone, and taken only if it wins.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      layout: its rules say what is split, over its only axis.
      cluster: the devices.
      memory_limits: {device: bytes}, in place of what TensorFlow reports.
      keep: whether measurements are kept, and used again, under the user's cache directory.
      effort: how thoroughly to measure; None: profile.Effort().
      progress: whether to show a bar.

    Raises:
      ValueError: the step fits on no set of the devices.
      NotImplementedError: an operation that cannot be measured by itself.
    """
    axis = layout.mesh_shape[0][0]

    def divided(devices: tuple[str, ...], sizes: Mapping[str, tuple[int, ...]]) -> Layout:
        return Layout([(axis, len(devices))], layout.rules, (), sizes)

    def choice(devices: tuple[str, ...], sizes: Mapping[str, tuple[int, ...]]) -> Choice:
        shares = tuple(measured.shares())
        return Choice(divided(devices, sizes), devices, tuple(lines), split.predicted_seconds, shares)

    directory = profile.cache_directory(os.environ) if keep else None
    with tf.Graph().as_default():
        measured = profile.measure(build(), layout, cluster, effort=effort, cache_dir=directory, progress=progress)
    split = measured.best_split(memory_limits=memory_limits)
    lines = [*(f"measurements {note}" for note in measured.notes), split.reason, *split.left_out.values()]
    if not split.is_parallel or split.alone is None:
        return choice(split.devices, split.sizes)
    fastest = (split.alone[0],)
    trials = [
        profile.time_steps(build, divided(devices, sizes), devices, cluster)
        for devices, sizes in ((split.devices, split.sizes), (fastest, {}))
    ]
    lines.append(f"tried: {trials[0] * 1e3:.4g} ms a step split, and {trials[1] * 1e3:.4g} ms on {fastest[0]} alone")
    if trials[0] < trials[1]:
        return choice(split.devices, split.sizes)
    lines.append(f"not split: {fastest[0]} alone was faster than the split was")
    return choice(fastest, {})

"""Placement of a step: the devices, and how its tensors lie on them, as a user says it."""

import dataclasses
import functools
import math
import numbers
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import extras, graphs
from mtf_hetero.cluster import Cluster, run_watched
from mtf_hetero.layout import Layout
from mtf_hetero.layouts import COMPARED, LAYOUTS
from mtf_hetero.layouts.batch import under_all_names
from mtf_hetero.lowering import names as names_lib
from mtf_hetero.planner import auto
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.plan import Plan
from mtf_hetero.profile.hardware import cache_directory

AUTO = "auto"
_AXIS = "all"


@dataclasses.dataclass(frozen=True)
class Placement:
    """The place of a step.

    Args:
      cluster: of those devices that take part.
      layout: how the tensors lie on them.
    """

    cluster: Cluster
    layout: Layout

    @property
    def devices(self) -> tuple[str, ...]:
        """One per processor."""
        return self.cluster.devices


def cluster_of(devices: str | Sequence[str] | None, workers: str | Sequence[str] | None, layout: Any) -> Cluster:
    """The devices that the user named: of workers, of this process, or as the environment has it.

    Args:
      devices: "gpu:0", "worker:1/cpu:0", one per processor, or as one text with commas; None: of a plan, its own;
        else all GPUs, or the CPU where there is none; of workers, all.
      workers: "host:port" of each; None: there are none.
      layout: what the user gave.

    Raises:
      ValueError: a device that is not there, or a worker that does not answer.
    """
    if isinstance(devices, str):
        devices = [device.strip() for device in devices.split(",")]
    devices, workers = _named("devices", devices, '"gpu:0"'), _named("workers", workers, '"10.0.0.7:2222"')
    if devices is None and isinstance(layout, Plan):
        devices = layout.devices
    if workers:
        return Cluster.from_workers(workers, devices)
    found = Cluster.from_environment(devices)
    if found is not None:
        return found
    cluster = Cluster.local(devices)
    gpus = tuple(device for device in cluster.devices if device.startswith("gpu"))
    return dataclasses.replace(cluster, devices=gpus) if devices is None and gpus else cluster


def _named(option: str, names: Any, example: str) -> Any:
    """Return the names of devices or workers, if they are names. Raises ValueError."""
    if names is None or isinstance(names, str):
        return names
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{option} is {names!r}; name each one, as in [{example}]")
    return list(names)


def convert_to_layout(layout: Any, list_speed: Any) -> Any:
    """A layout as `place` takes it: AUTO, the name of a recipe, rules, a Layout, or a Plan.

    Raises:
      ValueError: there is no such layout, or speeds that it does not heed.
    """
    if isinstance(layout, os.PathLike) or (isinstance(layout, str) and layout.endswith(".json")):
        layout = plan_lib.load(layout)
    if isinstance(layout, str) and layout not in (AUTO, *LAYOUTS) and ":" not in layout:
        raise ValueError(
            f"layout is {layout!r}; it must be one of {AUTO}, {', '.join(LAYOUTS)}, rules such as conv1/filters:all, a "
            "Layout, or a plan or its file"
        )
    if not isinstance(layout, (str, Layout, Plan)):
        raise ValueError(f"layout is {layout!r}; it must be a name, rules, a Layout or a Plan")
    heeds = isinstance(layout, str) and layout not in (AUTO, "even")
    if list_speed is not None and not heeds:
        raise ValueError(f"list_speed is {list_speed!r}, which layout={layout!r} ignores; remove it")
    return layout


def place(
    layout: Any,
    list_speed: Any,
    cluster: Cluster,
    build: Callable[[], mtf.Graph],
    *,
    progress: bool = False,
    announces: bool | None = None,
    seconds: float | None = None,
    steps: int | None = None,
) -> Placement:
    """Finds out how a training step is divided over devices.

    Args:
      layout: what `convert_to_layout` gives.
      list_speed: one number per device, as a sequence or "70,25,5"; AUTO: what the layout names is divided as the
        devices are measured to be fastest, or not at all; None: they are alike.
      cluster: the devices.
      build: builds the step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      progress: whether to show a bar while devices are measured.
      announces: whether to print what was chosen; None: as `progress`.
      seconds: that measuring, planning and trying may take; None: 30.
      steps: that the training takes, as far as is known; None: many.

    Raises:
      ValueError: a layout that does not fit the model or the devices.
      NotImplementedError: it splits what an operation needs whole.
    """
    if isinstance(layout, Plan):
        with tf.Graph().as_default():
            layout.check((dim for shape in graphs.mtf_shapes(build()) for dim in shape), cluster.devices)
        return Placement(cluster, layout.layout)
    if isinstance(layout, Layout):
        _check_names(layout, build)
        if layout.size != len(cluster.devices):
            raise ValueError(
                f"mesh {layout.mesh_text} has {layout.size} processors, but there are {len(cluster.devices)} devices, "
                f"{', '.join(cluster.devices)}; give one device per processor"
            )
        return Placement(cluster, layout)
    count = len(cluster.devices)
    if count == 1:
        if ":" in layout:
            _check_names(Layout([(_AXIS, 1)], layout), build)
        return Placement(cluster, Layout([(_AXIS, 1)], ()))
    limits = {"progress": progress, "seconds": seconds, "steps": steps}
    announces = progress if announces is None else announces
    if layout == AUTO:
        return _planned(cluster, build, COMPARED, None, limits, announces)
    measured = isinstance(list_speed, str) and list_speed == AUTO
    shares = {} if list_speed is None or measured else {_AXIS: _speeds(list_speed, cluster)}
    if ":" in layout:
        found = Layout([(_AXIS, count)], layout, shares)
        with tf.Graph().as_default():
            graph = build()
            names_lib.check(found, graphs.mtf_sizes(graph))
            found = under_all_names(found, graph)
    else:
        with tf.Graph().as_default():
            found = LAYOUTS[layout](build(), mesh_shape=[(_AXIS, count)], shares=shares)
    if measured:
        return _planned(cluster, build, {}, {name for name, _ in found.rules}, limits, announces)
    return Placement(cluster, found)


def _check_names(layout: Layout, build: Callable[[], mtf.Graph]) -> None:
    """Raises ValueError where a rule or sizes name a dimension that the training step does not have."""
    with tf.Graph().as_default():
        names_lib.check(layout, graphs.mtf_sizes(build()))


def _planned(
    cluster: Cluster,
    build: Callable[[], mtf.Graph],
    recipes: Mapping[str, auto.Recipe],
    names: Collection[str] | None,
    limits: Mapping[str, Any],
    announces: bool,
) -> Placement:
    """Return the fastest layout that is found, on the devices that it uses, and print it if asked to."""
    cache_dir = cache_directory(os.environ)
    choose = functools.partial(auto.choose, build, cluster, recipes, names=names, cache_dir=cache_dir, **limits)
    choice = run_watched(choose, cluster.workers_in_use)
    if choice.warning:
        tf.logging.warning("%s", choice.warning)
    for line in choice.lines:
        tf.logging.info("%s", line)
    if announces:
        extras.write_above_bars(choice.headline)
    return Placement(dataclasses.replace(cluster, devices=choice.plan.devices), choice.plan.layout)


def check_measure_seconds(measure_seconds: Any, layout: Any, list_speed: Any) -> None:
    """Raises ValueError unless it is None, or a positive number where something is measured."""
    is_number = isinstance(measure_seconds, numbers.Real) and not isinstance(measure_seconds, bool)
    if measure_seconds is not None and not (is_number and 0 < float(measure_seconds) < math.inf):
        raise ValueError(f"measure_seconds is {measure_seconds!r}; it must be a positive number, or None for 30")
    if measure_seconds is not None and not any(isinstance(x, str) and x == AUTO for x in (layout, list_speed)):
        raise ValueError(
            f"measure_seconds is {measure_seconds!r}, which only layout={AUTO!r} and list_speed={AUTO!r} use; remove it"
        )


def _speeds(list_speed: Any, cluster: Cluster) -> tuple[float, ...]:
    """One number per device."""
    parts = list_speed.split(",") if isinstance(list_speed, str) else list(list_speed)
    try:
        speeds = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise ValueError(
            f"list_speed is {list_speed!r}; give one number per device, as in [70, 25, 5], or {AUTO!r}"
        ) from None
    if len(speeds) != len(cluster.devices):
        raise ValueError(
            f"list_speed is {list_speed!r}, {len(speeds)} numbers for the {len(cluster.devices)} devices "
            f"{', '.join(cluster.devices)}; give one per device"
        )
    return speeds


def fitted(layout: Layout, graph: mtf.Graph) -> Layout:
    """A layout for a graph whose dimensions may have other sizes, which are divided in the same proportions.

    Args:
      layout: with exact sizes of dimensions of another graph of the same model.
      graph: mtf.Graph, of another batch.
    """
    extents = graphs.mtf_sizes(graph)
    layout = names_lib.keep(layout, extents)
    sizes: dict[str, Sequence[int]] = dict(layout.sizes)
    rules: Mapping[str, str] = dict(layout.rules)
    dropped = set()
    for name, exact in layout.sizes:
        found = extents.get(name, [])
        if sum(exact) in found:
            continue
        largest = max(found, default=0)
        sizes[name] = layout.split(name, largest)
        if len(sizes[name]) != len(exact):  # it is kept whole, or is not there
            dropped.add(name)
    return Layout(
        layout.mesh_shape,
        [(name, axis) for name, axis in rules.items() if name not in dropped],
        layout.shares,
        {name: exact for name, exact in sizes.items() if name not in dropped},
    )

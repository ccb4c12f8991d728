"""Turn a Request into a Placement: the devices, and the layout of a step on them."""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import extras
from mtf_hetero.cluster import Cluster, gpus
from mtf_hetero.cluster.devices import Device, shorten
from mtf_hetero.cluster.watch import run_watched
from mtf_hetero.cost.hardware import cache_directory
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.model import ALONE
from mtf_hetero.graph.names import dimension_sizes, extents
from mtf_hetero.graph.walk import tensor_shapes
from mtf_hetero.layout import Layout
from mtf_hetero.layouts import COMPARED, LAYOUTS
from mtf_hetero.layouts.batch import under_all_names
from mtf_hetero.layouts.slots import in_slots
from mtf_hetero.lowering import names as names_lib
from mtf_hetero.placement.request import AUTO, AXIS, Request
from mtf_hetero.planner import auto
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.fitting import find_fitting
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.resizing import Resizer


@dataclasses.dataclass(frozen=True)
class Placement:
    """The place of a step.

    Args:
      cluster: of those devices that are used.
      layout: how the tensors lie on them.
      plan: whose layout it is; None: of no plan.
      choice: how the layout was chosen; None: the user gave it.
    """

    cluster: Cluster
    layout: Layout
    plan: Plan | None = None
    choice: auto.Choice | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """One per processor."""
        return self.cluster.devices

    @property
    def allows_any_layout(self) -> bool:
        """Return whether the planner chose the layout among all, on measured devices, and may choose another one."""
        return self.choice is not None and self.choice.allows_any_layout

    @property
    def measured_machines(self) -> Machines | None:
        """Return the figures of the devices if they were measured on the step; None: they were not."""
        return self.choice.machines if self.choice is not None and self.choice.is_measured else None

    @property
    def fallback(self) -> "Placement | None":
        """Return the fastest device alone, if the planner chose a split that was not tried; else None."""
        plan = None if self.choice is None else self.choice.fallback
        return (
            None
            if plan is None
            else dataclasses.replace(_place_plan(self.cluster, plan, plan.devices), choice=self.choice)
        )

    def resizer(self, build: Callable[[], mtf.Graph], machines: Machines | None) -> Resizer:
        """Return what finds other shares for the step, given figures of its devices if there are some."""
        with tf.Graph().as_default():
            return Resizer(build(), self.layout, self.devices, machines, replans=self.allows_any_layout)

    def report(self, *, announces: bool) -> None:
        """Log how the layout was chosen, if it was.

        Args:
          announces: whether to print the headline too.
        """
        if self.choice is None:
            return
        if self.choice.warning:
            tf.logging.warning("%s", self.choice.warning)
        for line in self.choice.lines:
            tf.logging.info("%s", line)
        if announces:
            extras.write_above_bars(self.choice.headline)


@dataclasses.dataclass(frozen=True)
class Search:
    """Limits of a search for a layout, and its output.

    Args:
      steps: number of steps to come, as far as it is known; None: many.
      progress: whether to show a bar while devices are measured.
      keeps: whether measurements of the devices are kept for the next run.
    """

    steps: int | None = None
    progress: bool = False
    keeps: bool = True


def load(request: Request) -> Request:
    """Read the plan that a request names, and check the name of its layout.

    Raises:
      ValueError: there is no such layout, or the file is no plan.
    """
    layout = request.layout
    if isinstance(layout, str) and request.is_file:
        return dataclasses.replace(request, layout=plan_lib.load(layout))
    if isinstance(layout, str) and layout not in (AUTO, *LAYOUTS) and ":" not in layout:
        others = "" if request.are_flags else "a Layout, "
        raise ValueError(
            f"{request.quote('layout')}; it must be one of {', '.join(LAYOUTS)}, {AUTO}, rules such as "
            f"conv1/filters:all, {others}or a plan's file, plan.json"
        )
    if not isinstance(layout, (str, Layout, Plan)):
        raise ValueError(f"{request.quote('layout')}; it must be a name, rules, a Layout or a Plan")
    return request


def requested_devices(request: Request) -> tuple[str, ...] | None:
    """Return the devices that the user or the plan names; None if neither does."""
    if request.devices is None and isinstance(request.layout, Plan):
        return request.layout.devices
    return request.devices


def requested_cluster(request: Request, workers: Sequence[str] | None = None) -> Cluster:
    """Return the devices that the user named: of workers, of this process, or as the environment has it.

    Args:
      request: what the user asked for, loaded.
      workers: "host:port" of the present workers; None: those of the request.

    Raises:
      ValueError: a device that does not exist, or a worker that does not answer.
    """
    devices = requested_devices(request)
    if workers := workers or request.workers:
        if request.port is None:
            return Cluster.from_workers(workers, devices)
        cluster = Cluster.from_workers(workers, devices, chief=f":{request.port}")
        _ = cluster.target  # a port that is in use is said now
        return cluster
    found = Cluster.from_environment(devices)
    if found is not None:
        return found
    cluster = Cluster.local(devices)
    if devices is not None:
        return cluster
    found_gpus = tuple(device for device in cluster.devices if device.startswith("gpu"))
    if not found_gpus:
        gpus.warn_of_unused()
        return cluster
    return dataclasses.replace(cluster, devices=found_gpus)


def leave_out(
    cluster: Cluster, machines: Machines | None, lost: Collection[int]
) -> tuple[list[int], Cluster, Machines | None]:
    """Leave workers out; returns the numbers of the other devices, the cluster of them, and their figures.

    Args:
      cluster: all devices.
      machines: their figures, of which some devices may be left out of the cluster; None: they are not known.
      lost: indices of the workers.

    Raises:
      ValueError: no device is left.
    """
    devices = cluster.devices if machines is None else machines.names
    kept = [number for number, device in enumerate(devices) if Device.parse(device).worker not in lost]
    if not kept:
        raise ValueError("no device is left")
    cluster = dataclasses.replace(cluster, devices=tuple(devices[number] for number in kept))
    return kept, cluster, None if machines is None else machines.only(kept)


def requested_mesh(request: Request, devices: Sequence[str]) -> Layout:
    """Return a layout with the mesh and the shares of a request, without rules.

    Raises:
      ValueError: the mesh has more or fewer processors than there are devices, or the shares do not fit it.
    """
    if isinstance(request.layout, Plan):  # it names its devices
        return Layout(request.layout.layout.mesh_shape, (), slots=request.layout.layout.slots)
    if isinstance(request.layout, Layout):
        empty = Layout(request.layout.mesh_shape, (), slots=request.layout.slots)
    else:
        mesh_shape = ((AXIS, len(devices)),) if request.mesh_shape is None else request.axes
        if not mesh_shape:
            raise ValueError(f"{request.quote('mesh_shape')}, which has no axis; write one such as all:3")
        try:
            empty = Layout(mesh_shape, (), request.shares)
        except ValueError as error:
            raise ValueError(f"{request.quote('list_speed')}: {error}") from error
    if empty.device_count != len(devices):
        raise ValueError(
            f"mesh {empty.mesh_text} has {empty.size} processors, but there are {len(devices)} devices, "
            f"{', '.join(devices)}; give one device per processor with {request.name('devices')}, or another mesh"
        )
    return empty


def place(
    request: Request,
    cluster: Cluster,
    build: Callable[[], mtf.Graph],
    *,
    graph: mtf.Graph | None = None,
    search: Search | None = None,
    machines: Machines | None = None,
    names: Sequence[str] | None = None,
) -> Placement:
    """Find how a step is split over devices.

    Args:
      request: what the user asked for, loaded.
      cluster: the devices.
      build: builds the step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      graph: one that it built, to read dimensions from; None: it is called.
      search: limits, where the devices are measured.
      machines: figures of the devices, which are planned for in place of a measurement.
      names: of the devices that those of the cluster stand for; None: they are meant themselves.

    Raises:
      ValueError: a layout that does not fit the step or the devices.
      NotImplementedError: it splits a dimension that an operation needs whole.
    """
    layout, limits = request.layout, request.memory_bytes(cluster.devices)
    # One device has no choice but the number of parts, so the graph need not be built; but the user's rules are checked
    is_single = len(cluster.devices) == 1 and machines is None and not limits
    if is_single and isinstance(layout, str) and ":" not in layout and request.slots is None:
        return Placement(cluster, ALONE if layout == AUTO else requested_mesh(request, cluster.devices))
    if graph is None:
        with tf.Graph().as_default():
            graph = build()
    if isinstance(layout, Plan):
        layout.check((dim for shape in tensor_shapes(graph) for dim in shape), names or cluster.devices)
        _check_tensors(graph, layout.layout)
        return Placement(cluster, layout.layout, layout)
    if isinstance(layout, Layout):
        requested_mesh(request, cluster.devices)
        names_lib.check(layout, dimension_sizes(graph.operations), extents(graph.operations))
        return Placement(cluster, layout)
    split = None if layout == AUTO else _make_layout(request, graph, cluster.devices)
    if not request.is_measured:
        assert split is not None
        return Placement(cluster, split)
    if is_single:
        return Placement(cluster, ALONE)
    measured = None if split is None else {name for name, _ in split.rules}
    if machines is not None:
        plan = find_fitting(build, machines, names=measured)
        return _place_plan(cluster, plan, None if names else plan.devices)
    return _choose(request, cluster, build, measured, search or Search())


def _make_layout(request: Request, graph: mtf.Graph, devices: Sequence[str]) -> Layout:
    """Return the layout that a recipe or the user's rules make for a graph."""
    empty, words = requested_mesh(request, devices), request.layout
    assert isinstance(words, str)
    if ":" in words:
        layout = Layout(empty.mesh_shape, words, empty.shares)
    else:
        recipe, shares = LAYOUTS[words], dict(empty.shares)
        layout = recipe(graph, mesh_shape=empty.mesh_shape, shares=shares, **request.options)
    try:
        names_lib.check(layout, dimension_sizes(graph.operations), extents(graph.operations))
    except ValueError as error:
        raise ValueError(f"{request.quote('layout')}: {error}") from error
    _check_axes(request, graph, layout)
    layout = under_all_names(layout, graph) if ":" in words else layout
    return in_slots(layout, graph, slots) if (slots := request.slots_on(devices)) else layout


def _check_axes(request: Request, graph: mtf.Graph, layout: Layout) -> None:
    """Raise ValueError if a mesh axis splits nothing."""
    words = request.layout
    assert isinstance(words, str)
    axes = [axis for axis, count in layout.mesh_shape if count > 1]
    for axis in axes:
        if axis not in dict(layout.rules).values():
            raise ValueError(
                f"mesh axis {axis!r} is used by no rule of layout {request.layout!r}; drop it from "
                f"{request.name('mesh_shape')}, or give rules that split a dimension over it"
            )
    _check_tensors(graph, layout)
    if not request.are_flags and ":" not in words:  # the next batch may be large enough
        return
    used = {layout.axis_name_of(mtf.Dimension(*dim)) for dim in split_dims(graph, layout)}
    for axis in axes:
        if axis not in used:
            small = ", ".join(repr(dim) for dim, other in layout.rules if other == axis)
            count = dict(layout.mesh_shape)[axis]
            raise ValueError(
                f"{request.quote('layout')}, but {small} cannot be split over the {count} processors of mesh axis "
                f"{axis!r}: each needs at least one unit; use fewer processors or split another dimension"
            )


def _check_tensors(graph: mtf.Graph, layout: Layout) -> None:
    """Raise ValueError if the layout cannot hold a tensor of the graph."""
    for shape in tensor_shapes(graph):
        layout.check(shape)


def split_dims(graph: mtf.Graph, layout: Layout) -> tuple[tuple[str, int], ...]:
    """Return the dimensions of a graph that a layout splits, as (name, size)."""
    dims = [mtf.Dimension(name, size) for name, sizes in dimension_sizes(graph.operations).items() for size in sizes]
    return tuple((dim.name, dim.size) for dim in dims if layout.axis_of(dim) is not None)


def sizes_on_devices(graph: mtf.Graph, layout: Layout, devices: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return {dimension: {device: its size}} of the dimensions of a graph that a layout splits."""
    found = {}
    for name, total in split_dims(graph, layout):
        axis, sizes = layout.axis_of(name), layout.split(name, total)
        assert axis is not None
        parts: list[dict[int, int]] = [{} for _ in devices]  # of each device, by coordinate
        for pnum, place in enumerate(layout.places):
            coordinate = layout.coordinates(pnum)[axis]
            parts[place][coordinate] = sizes[coordinate]
        found[name] = {shorten(device): sum(own.values()) for device, own in zip(devices, parts, strict=True)}
    return found


def shown_sizes(graph: mtf.Graph, layout: Layout) -> dict[str, list[int]]:
    """Return {dimension: its sizes} for the user, of dimensions in equal proportions the first one."""
    shown: dict[tuple[int, ...], tuple[str, list[int]]] = {}
    for name, total in split_dims(graph, layout):
        sizes = layout.split(name, total)
        shown.setdefault(tuple(round(100 * size / total) for size in sizes), (name, list(sizes)))
    return dict(shown.values())


def _choose(
    request: Request,
    cluster: Cluster,
    build: Callable[[], mtf.Graph],
    names: Collection[str] | None,
    search: Search,
) -> Placement:
    """Return the fastest layout that is found, on the devices that it uses."""
    choose = functools.partial(
        auto.choose,
        build,
        cluster,
        COMPARED if names is None else {},
        names=names,
        memory_bytes=request.memory_bytes(cluster.devices),
        seconds=request.measure_seconds,
        steps=search.steps,
        cache_dir=cache_directory(os.environ) if search.keeps else None,
        progress=search.progress,
    )
    choice = run_watched(choose, cluster.workers_in_use)
    return dataclasses.replace(_place_plan(cluster, choice.plan, choice.plan.devices), choice=choice)


def _place_plan(cluster: Cluster, plan: Plan, devices: tuple[str, ...] | None = None) -> Placement:
    """Return the placement of a plan; without devices, those of the cluster stand for the plan's."""
    devices = cluster.devices[: len(plan.devices)] if devices is None else devices
    return Placement(dataclasses.replace(cluster, devices=devices), plan.layout, plan)


def resize_layout(layout: Layout, graph: mtf.Graph) -> Layout:
    """Return a layout for a graph whose dimensions may have other sizes, which are split in the same proportions.

    Args:
      layout: with exact sizes of dimensions of another graph of the same model.
      graph: mtf.Graph, of another batch.
    """
    extents = dimension_sizes(graph.operations)
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
        if len(sizes[name]) != len(exact):  # it is replicated, or does not exist
            dropped.add(name)
    return Layout(
        layout.mesh_shape,
        [(name, axis) for name, axis in rules.items() if name not in dropped],
        layout.shares,
        {name: exact for name, exact in sizes.items() if name not in dropped},
        layout.slots,
    )

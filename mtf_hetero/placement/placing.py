"""From a Request to a Placement: the devices, and how a step's tensors lie on them."""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import extras, graphs
from mtf_hetero.cluster import Cluster, run_watched
from mtf_hetero.layout import Layout, convert_to_mesh_shape
from mtf_hetero.layouts import COMPARED, LAYOUTS
from mtf_hetero.layouts.batch import under_all_names
from mtf_hetero.lowering import names as names_lib
from mtf_hetero.placement.request import AUTO, Request
from mtf_hetero.planner import auto
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.held import find_fitting
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import Plan
from mtf_hetero.profile.hardware import cache_directory

_AXIS = "all"
_ALONE = Layout([(_AXIS, 1)], ())


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
    if request.is_file:
        return dataclasses.replace(request, layout=plan_lib.load(request.layout))
    layout = request.layout
    if isinstance(layout, str) and layout not in (AUTO, *LAYOUTS) and ":" not in layout:
        others = "" if request.are_flags else "a Layout, "
        raise ValueError(
            f"{request.said('layout')}; it must be one of {', '.join(LAYOUTS)}, {AUTO}, rules such as "
            f"conv1/filters:all, {others}or a plan's file, plan.json"
        )
    if not isinstance(layout, (str, Layout, Plan)):
        raise ValueError(f"{request.said('layout')}; it must be a name, rules, a Layout or a Plan")
    return request


def devices_of(request: Request) -> tuple[str, ...] | None:
    """Return the devices that the user or the plan names; None if neither does."""
    if request.devices is None and isinstance(request.layout, Plan):
        return request.layout.devices
    return request.devices


def cluster_of(request: Request) -> Cluster:
    """Return the devices that the user named: of workers, of this process, or as the environment has it.

    Raises:
      ValueError: a device that does not exist, or a worker that does not answer.
    """
    devices = devices_of(request)
    if request.workers:
        return Cluster.from_workers(request.workers, devices)
    found = Cluster.from_environment(devices)
    if found is not None:
        return found
    cluster = Cluster.local(devices)
    gpus = tuple(device for device in cluster.devices if device.startswith("gpu"))
    return dataclasses.replace(cluster, devices=gpus) if devices is None and gpus else cluster


def mesh_of(request: Request, devices: Sequence[str]) -> Layout:
    """Return a layout with the mesh and the shares of a request, without rules.

    Raises:
      ValueError: the mesh has more or fewer processors than there are devices, or the shares do not fit it.
    """
    if isinstance(request.layout, Plan):  # it names its devices
        return Layout(request.layout.layout.mesh_shape, ())
    if isinstance(request.layout, Layout):
        empty = Layout(request.layout.mesh_shape, ())
    else:
        mesh_shape = convert_to_mesh_shape(request.mesh_shape or f"{_AXIS}:{len(devices)}")
        if not mesh_shape:
            raise ValueError(f"{request.said('mesh_shape')}, which has no axis; write one such as all:3")
        try:
            empty = Layout(mesh_shape, (), request.shares(mesh_shape[0][0]))
        except ValueError as error:
            raise ValueError(f"{request.said('list_speed')}: {error}") from error
    if empty.size != len(devices):
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
      machines: figures of devices that need not exist here, which are planned for in place of a measurement.
      names: of the devices that those of the cluster stand for; None: they are meant themselves.

    Raises:
      ValueError: a layout that does not fit the step or the devices.
      NotImplementedError: it splits a dimension that an operation needs whole.
    """
    layout = request.layout
    if len(cluster.devices) == 1 and machines is None and isinstance(layout, str) and ":" not in layout:
        return Placement(cluster, _ALONE if layout == AUTO else mesh_of(request, cluster.devices))
    if graph is None:
        with tf.Graph().as_default():
            graph = build()
    if isinstance(layout, Plan):
        layout.check((dim for shape in graphs.mtf_shapes(graph) for dim in shape), names or cluster.devices)
        _check_tensors(graph, layout.layout)
        return Placement(cluster, layout.layout, layout)
    if isinstance(layout, Layout):
        mesh_of(request, cluster.devices)
        names_lib.check(layout, graphs.mtf_sizes(graph))
        return Placement(cluster, layout)
    split = None if layout == AUTO else _layout_of(request, graph, cluster.devices)
    if not request.is_measured:
        assert split is not None
        return Placement(cluster, split)
    if len(cluster.devices) == 1 and machines is None:
        return Placement(cluster, _ALONE)
    measured = None if split is None else {name for name, _ in split.rules}
    if machines is not None:
        return _planned(cluster, find_fitting(build, machines, names=measured))
    return _chosen(request, cluster, build, measured, search or Search())


def _layout_of(request: Request, graph: mtf.Graph, devices: Sequence[str]) -> Layout:
    """Return the layout that a recipe or the user's rules make for a graph."""
    empty = mesh_of(request, devices)
    if ":" in request.layout:
        layout = Layout(empty.mesh_shape, request.layout, empty.shares)
    else:
        recipe, shares = LAYOUTS[request.layout], dict(empty.shares)
        layout = recipe(graph, mesh_shape=empty.mesh_shape, shares=shares, **request.options)
    try:
        names_lib.check(layout, graphs.mtf_sizes(graph))
    except ValueError as error:
        raise ValueError(f"{request.said('layout')}: {error}") from error
    _check_axes(request, graph, layout)
    return under_all_names(layout, graph) if ":" in request.layout else layout


def _check_axes(request: Request, graph: mtf.Graph, layout: Layout) -> None:
    """Raise ValueError if a mesh axis splits nothing."""
    axes = [axis for axis, count in layout.mesh_shape if count > 1]
    for axis in axes:
        if axis not in dict(layout.rules).values():
            raise ValueError(
                f"mesh axis {axis!r} is used by no rule of layout {request.layout!r}; drop it from "
                f"{request.name('mesh_shape')}, or give rules that split a dimension over it"
            )
    _check_tensors(graph, layout)
    used = {layout.axis_name_of(mtf.Dimension(*dim)) for dim in split_dims(graph, layout)}
    for axis in axes:
        if axis not in used:
            small = ", ".join(repr(dim) for dim, other in layout.rules if other == axis)
            count = dict(layout.mesh_shape)[axis]
            raise ValueError(
                f"{request.said('layout')}, but {small} cannot be split over the {count} processors of mesh axis "
                f"{axis!r}: each needs at least one unit; use fewer processors or split another dimension"
            )


def _check_tensors(graph: mtf.Graph, layout: Layout) -> None:
    """Raise ValueError if the layout cannot hold a tensor of the graph."""
    for shape in graphs.mtf_shapes(graph):
        layout.check(shape)


def split_dims(graph: mtf.Graph, layout: Layout) -> tuple[tuple[str, int], ...]:
    """Return the dimensions of a graph that a layout splits, as (name, size)."""
    dims = [mtf.Dimension(name, size) for name, sizes in graphs.mtf_sizes(graph).items() for size in sizes]
    return tuple((dim.name, dim.size) for dim in dims if layout.axis_of(dim) is not None)


def _chosen(
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
    return dataclasses.replace(_planned(cluster, choice.plan, choice.plan.devices), choice=choice)


def _planned(cluster: Cluster, plan: Plan, devices: tuple[str, ...] | None = None) -> Placement:
    """Return the placement of a plan; without devices, those of the cluster stand for the plan's."""
    devices = cluster.devices[: len(plan.devices)] if devices is None else devices
    return Placement(dataclasses.replace(cluster, devices=devices), plan.layout, plan)


def fitted(layout: Layout, graph: mtf.Graph) -> Layout:
    """Return a layout for a graph whose dimensions may have other sizes, which are split in the same proportions.

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
        if len(sizes[name]) != len(exact):  # it is replicated, or does not exist
            dropped.add(name)
    return Layout(
        layout.mesh_shape,
        [(name, axis) for name, axis in rules.items() if name not in dropped],
        layout.shares,
        {name: exact for name, exact in sizes.items() if name not in dropped},
    )

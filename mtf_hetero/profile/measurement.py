"""Measures the devices and links of a cluster on the work of a graph, and says in text what was found."""

import dataclasses
import datetime
import itertools
import os
import pathlib
import platform
from collections.abc import Mapping
from importlib import metadata

from mtf_hetero import speeds
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import extras, tables
from mtf_hetero.cluster import Cluster, shorten
from mtf_hetero.layout import Layout
from mtf_hetero.profile.effort import Effort
from mtf_hetero.profile.hardware import descriptions, memory_limits, representatives
from mtf_hetero.profile.link import measure_link
from mtf_hetero.profile.schedule import Sweep
from mtf_hetero.profile.timing import convert_to_loop_config
from mtf_hetero.profile.work import Group, read


@dataclasses.dataclass(frozen=True)
class Measured:
    """Devices, measured on the work of a graph.

    Args:
      profile: times and links, under the names of the devices.
      work: what a step consists of.
      devices: in their order.
      memory_limits: {device: bytes or None}, as TensorFlow or the system reports them.
      new: how many times had to be measured; the others were known.
      notes: what went wrong with what is kept, one sentence each.
    """

    profile: speeds.Profile
    work: speeds.Work
    devices: tuple[str, ...]
    memory_limits: Mapping[str, int | None]
    new: int
    notes: tuple[str, ...] = ()

    def shares(self) -> tuple[float, ...]:
        """The devices' speeds on the whole step, per cent of all of them."""
        return speeds.shares_from(self.profile, self.work, self.devices)

    def best_split(
        self,
        *,
        memory_limits: Mapping[str, int | None] | None = None,
        multiple_of: Mapping[str, int] | None = None,
        least_gain: float = 0.05,
    ) -> speeds.Split:
        """The devices that are to take part, and exact sizes; see `speeds.best_split`.

        Args:
          memory_limits: {device: bytes}, in place of what was reported.
          multiple_of: {name of a dimension: granule}.
          least_gain: by how much, as a fraction, a split must be faster than the fastest device alone.
        """
        limits = {**self.memory_limits, **(memory_limits or {})}
        return speeds.best_split(
            self.profile, self.work, self.devices, memory_limits=limits, multiple_of=multiple_of, least_gain=least_gain
        )


def measure(
    graph: mtf.Graph,
    layout: Layout,
    cluster: Cluster,
    *,
    effort: Effort | None = None,
    multiple_of: Mapping[str, int] | None = None,
    cache_dir: str | os.PathLike | None = None,
    remeasure: bool = False,
    progress: bool = False,
    fresh: bool = False,
) -> Measured:
    """Measures each device of a cluster on the layers of a graph, forward, backward and update, and the links.

    To be called where the tf.Graph is the default in which `graph` was built; it adds operations to it, so build one
    that is thrown away. Nothing of `graph` is lowered or changed.

    Args:
      graph: mtf.Graph, of a training step.
      layout: its rules say which dimensions are split; its shares, its sizes and its number of processors do not
        matter.
      cluster: the devices, each measured by itself.
      effort: how thoroughly; None: Effort().
      multiple_of: {name of a dimension: granule}; sizes are multiples of it.
      cache_dir: where measurements are kept; None: nowhere. What cannot be read there is measured anew.
      remeasure: measure again what is known.
      progress: whether to show a bar on the standard error.
      fresh: the former name of `remeasure`.

    Raises:
      ValueError: the layout splits nothing, or over more than one axis; or the graph is on more than one mesh.
      NotImplementedError: an operation that cannot be measured by itself.
    """
    work, groups = read(graph, layout)
    by_key = {group.layer.key: group for group in reversed(groups)}
    first = representatives(cluster.devices)
    description_of = descriptions(cluster)
    path = None if cache_dir is None else pathlib.Path(cache_dir) / f"profile-{digest_of_versions()}.json"
    notes: list[str] = []
    old = speeds.Profile({}) if remeasure or fresh or path is None else _known(path, notes)
    todo = [
        (device, key)
        for device in dict.fromkeys(first.values())
        for key in _missing(old, description_of[device], by_key)
    ]
    config = convert_to_loop_config(cluster.session_config())
    with tf.Session(cluster.target, config=config) as session:
        limits = memory_limits(cluster, session)
        if todo:
            session.run(tf.global_variables_initializer())  # a learning rate may be computed from the step
        sweep = Sweep(session, by_key, effort or Effort(), multiple_of or {}, progress=progress)
        models_of = sweep.run(todo)
    models = {description_of[device]: models for device, models in models_of.items()}
    links = _links(cluster, first, description_of, old, progress=progress)
    new = speeds.Profile(models, links, _provenance())
    if path is not None and (models or links):
        _keep(new, path, notes)
    merged = old.merge(new)
    named = speeds.Profile(
        {device: {key: merged.model(description_of[device], key) for key in by_key} for device in cluster.devices},
        {
            (a, b): link
            for a, b in itertools.combinations(cluster.devices, 2)
            if (
                link := merged.links.get((description_of[a], description_of[b]))
                or merged.links.get((description_of[b], description_of[a]))
            )
            is not None
        },
        {**merged.provenance, **{device: description_of[device] for device in cluster.devices}},
    )
    return Measured(named, work, tuple(cluster.devices), limits, len(todo), tuple(notes))


def _known(path: pathlib.Path, notes: list[str]) -> speeds.Profile:
    """What was measured before; what cannot be read is measured anew."""
    if path.exists():
        try:
            return speeds.load(path)
        except speeds.ProfileError as error:
            notes.append(f"measured anew: {error}")
    return speeds.Profile({})


def _keep(new: speeds.Profile, path: pathlib.Path, notes: list[str]) -> None:
    """Adds to what is kept. Where that fails, what was measured is used all the same."""
    try:
        speeds.update(new, path)
    except speeds.ProfileError as error:
        notes.append(f"not kept: {error}")


def _missing(profile: speeds.Profile, description: str, by_key: Mapping[str, Group]) -> list[str]:
    return [key for _, key in profile.missing([description], list(by_key))]


def _versions() -> dict[str, str]:
    try:
        version = metadata.version("mtf_hetero")
    except metadata.PackageNotFoundError:
        version = "none"
    return {"tensorflow": tf.__version__, "mtf_hetero": version}


def digest_of_versions() -> str:
    """The versions with which measurements hold, as a part of a file's name."""
    return "-".join(f"{name}_{version}" for name, version in _versions().items())


def _provenance() -> dict[str, str]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, "host": platform.node(), "python": platform.python_version(), **_versions()}


def _links(
    cluster: Cluster,
    first: Mapping[str, str],
    description_of: Mapping[str, str],
    old: speeds.Profile,
    *,
    progress: bool,
) -> dict[tuple[str, str], speeds.Link]:
    """Links that are not known yet, one per pair of different hardware, and one among the devices of one CPU."""
    pairs = {}
    for a, b in itertools.combinations(cluster.devices, 2):
        name = (description_of[first[a]], description_of[first[b]])
        if not {name, name[::-1]} & (old.links.keys() | pairs.keys()):
            pairs[name] = (a, b)
    config = cluster.session_config()
    links = {}
    hide = None if progress and pairs else True
    with extras.progress_bar(total=len(pairs), desc="links", unit="link", disable=hide, leave=False) as bar:
        for name, (a, b) in pairs.items():
            links[name] = measure_link(a, b, target=cluster.target, config=config)
            bar.update()
    return links


def table(measured: Measured) -> str:
    """The times as text: per layer, a row per device and a column per size."""
    lines = ["milliseconds of a step's forward, backward and update; +- is the interquartile range"]
    seen: dict[str, str] = {}
    for layer in measured.work.layers:
        title = f"\n{layer.name}, {f'of {layer.dim}' if layer.dim else 'done whole by every processor'}"
        if layer.key in seen:
            lines.append(f"{title}: as {seen[layer.key]}")
            continue
        seen[layer.key] = layer.name
        lines.append(title)
        rows = [_row(device, measured.profile.model(device, layer.key)) for device in measured.devices]
        columns = max(map(len, rows))
        lines += tables.lines(rows, "<" * columns, gap=" ", indent="  ", least=(0, *[27] * columns))
    links = measured.profile.links
    lines += ["\nlinks"] * bool(links)
    for (a, b), link in links.items():
        lines.append(f"  {a} - {b}: {link.latency_seconds * 1e6:.0f} us, {link.bytes_per_second / 1e9:.3g} GB/s")
    return shorten("\n".join(lines))


def _row(device: str, model: speeds.TimeModel) -> list[str]:
    points = model.points
    return [shorten(device), *(f"{n:>5}: {time * 1e3:9.3f} +- {spread * 1e3:.3f}" for n, time, spread in points)]


def conclusion(measured: Measured) -> str:
    """What follows, as text: the shares, and the best split."""
    shares = ",".join(f"{share:.3g}" for share in measured.shares())
    lines = [f"speeds on the whole step: --devices={','.join(measured.devices)} --list_speed={shares}"]
    split = measured.best_split()
    lines += [split.reason, *split.left_out.values()]
    lines += [f"  {name}: {', '.join(map(str, sizes))}" for name, sizes in split.sizes.items() if split.is_parallel]
    return shorten("\n".join(lines))

"""Sessions of this process with the devices that a mesh names: their configuration, and one line if it is missing.

A session has one CPU device unless its configuration says otherwise. Without this check, the first step of a mesh on
cpu:0 and cpu:1 ends in more than fifty lines of TensorFlow.
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.cluster.cluster import Cluster
from mtf_hetero.cluster.devices import ALONE, Device, cpu_count
from mtf_hetero.cluster.gpus import why_no_gpu

_named: "weakref.WeakKeyDictionary[tf.Graph, set[Device]]" = weakref.WeakKeyDictionary()  # devices of this process


def session_config(mesh_impl: Any) -> tf.ConfigProto:
    """Return the configuration of a session that has the devices of a mesh, all of them in this process.

    Args:
      mesh_impl: an UnevenMeshImpl, or any other with `devices`; or the names of the devices.

    Raises:
      ValueError: a GPU that does not exist, or a device of a worker.

    Example:
      >>> mesh_impl = UnevenMeshImpl("all:2", "hidden:all", ["cpu:0", "cpu:1"])
      >>> with tf.Session(config=session_config(mesh_impl)) as session:
      ...     session.run(train)
    """
    names = getattr(mesh_impl, "devices", mesh_impl)
    for name in names:
        if Device.parse(name).job not in (None, ALONE):
            raise ValueError(
                f"device {name!r} is not of this process; give the session the configuration of its Cluster: "
                "tf.Session(cluster.target, config=cluster.session_config())"
            )
    return Cluster.local([device.short_name for device in _local(names)]).session_config()


def needed_cpus(graph: tf.Graph) -> int:
    """Return the number of CPU devices of this process that the lowered meshes of a graph name."""
    return cpu_count(_named.get(graph, ()))


def expect_devices(names: Iterable[str]) -> None:
    """Check every session of the default graph for devices that a mesh names.

    Raises:
      ValueError: the default session lacks one of them.
    """
    graph = tf.get_default_graph()
    _named.setdefault(graph, set()).update(_local(names))
    _check_new_sessions()
    session = tf.get_default_session()
    if session is not None and session.graph is graph:
        _check(session, soft_placement=False)


def _local(names: Iterable[str]) -> list[Device]:
    """Return the devices of this process among some."""
    devices = map(Device.parse, names)
    return [device.within(Device(ALONE)) for device in devices if device.job in (None, ALONE)]


def _check(session: tf.Session, *, soft_placement: bool) -> None:
    """Raise ValueError if a local session lacks a device of its graph, and no other device replaces it."""
    required = _named.get(session.graph)
    if not required or soft_placement or session.sess_str:
        return
    there = {Device.parse(device.name).within(Device(ALONE)) for device in session.list_devices()}
    missing = sorted(device.short_name for device in required - there)
    if not missing:
        return
    if missing[-1].startswith("gpu") and not tf.config.list_physical_devices("GPU"):
        remedy = f"{why_no_gpu()}; or name other devices"
    else:
        remedy = "make the session with tf.Session(config=mtf_hetero.session_config(mesh_impl))"
    raise ValueError(f"this session has no {' or '.join(missing)}, which a mesh names; {remedy}")


@functools.cache
def _check_new_sessions() -> None:
    """Have new sessions check their devices: graph and session are known then."""

    def checking(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(  # noqa: N807
            self: tf.Session, target: str = "", graph: tf.Graph | None = None, config: tf.ConfigProto | None = None
        ) -> None:
            init(self, target, graph, config)
            soft = tf.config.get_soft_device_placement() if config is None else config.allow_soft_placement
            try:
                _check(self, soft_placement=soft)
            except ValueError:
                self.close()
                raise

        return __init__

    for kind in (tf.Session, tf.InteractiveSession):
        kind.__init__ = checking(kind.__init__)

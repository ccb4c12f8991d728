"""Cache measurements of devices on a program, so that they need not be repeated."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import files, installed
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost import devices_file
from mtf_hetero.cost.hardware import descriptions
from mtf_hetero.cost.machines import Machines
from mtf_hetero.graph import group_key, live_operations


class Known:
    """The cached measurements of a cluster's devices on a program, in files of a directory.

    Args:
      build: builds the program in TensorFlow's default graph, and returns its mtf.Graph.
      cluster: the devices; recognised by their hardware, and workers by their addresses.
      directory: of the cache; None: nothing is cached.
      efforts: how thoroughly the devices are to be measured, by names of `calibration.Effort`, the most thorough first.
    """

    def __init__(
        self,
        build: Callable[[], mtf.Graph],
        cluster: Cluster,
        directory: str | os.PathLike | None,
        efforts: Sequence[str] = ("",),
    ) -> None:
        self._devices = cluster.devices
        path = None if directory is None else _path(build, cluster, pathlib.Path(directory))
        self._paths = [] if path is None else [path.with_stem(path.stem + effort) for effort in efforts]

    def load(self) -> tuple[Machines, str] | None:
        """Return the devices, with their present names, and the file; None if they must be measured."""
        for path in self._paths:
            with contextlib.suppress(ValueError):  # an unreadable file is measured again
                known = devices_file.load(path)
                if len(known.devices) == len(self._devices):
                    return _renamed(known, self._devices), str(path)
        return None

    def save(self, machines: Machines) -> None:
        """Cache devices that were measured with the least of the efforts."""
        for path in self._paths[-1:]:
            with contextlib.suppress(OSError):  # a directory that cannot be written to only costs the next run its time
                files.write_text(path, devices_file.dumps(machines))


def _path(build: Callable[[], mtf.Graph], cluster: Cluster, directory: pathlib.Path) -> pathlib.Path:
    """Return the file of a program on devices: its name has the versions, and a digest of program and devices."""
    with tf.Graph().as_default():
        program = group_key([op for op in live_operations(build()) if op.inputs])
    description_of = descriptions(cluster)
    text = "\n".join([program, *(description_of[device] for device in cluster.devices)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return directory / f"devices-{_versions()}-{digest}.json"


def _versions() -> str:
    """Return the versions with which measurements hold, as a part of a file's name."""
    return f"tensorflow_{tf.__version__}-mtf_hetero_{installed.version('mtf_hetero')}"


def _renamed(known: Machines, names: tuple[str, ...]) -> Machines:
    new: Mapping[str, str] = dict(zip(known.names, names, strict=True))
    return dataclasses.replace(
        known,
        devices=tuple(dataclasses.replace(machine, name=new[machine.name]) for machine in known.devices),
        links={(new[a], new[b]): link for (a, b), link in known.links.items()},
    )

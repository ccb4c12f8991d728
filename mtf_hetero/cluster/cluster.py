"""The devices of a run: those of this process, or of TensorFlow workers on other machines.

Distribution is TensorFlow's own: in-graph replication over tf.distribute.Server. The training process holds the whole
graph. A worker (`mtf-hetero worker --port=2222`) knows nothing but its port: each session brings the
cluster along (ConfigProto.cluster_def), so that a worker serves any run, in any place of the cluster. It names the
workers alone that have a device in use: another one may be lost, and nobody waits for it.

The training process runs a server of its own, the task "chief", and is the master of its sessions. What has no device,
the input and the checkpoints, is then where the user's files are; the processor list may name the chief's own GPUs and
CPU beside those of the workers; and the master is not lost with a worker. It costs one more open port, which the
workers must be able to reach: they fetch from the chief, and from each other, what it computed for them.

With a cluster in its configuration, each session has its variables on the workers to itself, and what an earlier one
left there, of a killed training process too, is freed when the next begins. No resource container has to be named.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero.cluster import packet_filter
from mtf_hetero.cluster import versions as versions_lib
from mtf_hetero.cluster.devices import CHIEF, WORKER, Device, cpu_count, listed_devices, local_device
from mtf_hetero.cluster.environment import task_of_environment
from mtf_hetero.cluster.probe import (
    UnreachableWorkerError,
    check_reachable,
    convert_to_workers,
    host_towards,
    split_address,
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers and devices of a run.

    `Cluster.local`, `Cluster.from_workers` and `Cluster.from_environment` make one, and find the devices.

    Args:
      workers: "host:port" of each worker; none: everything is in this process.
      devices: one per processor, in the order of the mesh.
      chief: "host:port" at which the workers reach this process; None: a free port of the address on the way to them.
      cpus: logical CPU devices of this process.

    Raises:
      ValueError: an address that is not host:port or comes twice, or no device.

    Example:
      >>> cluster = Cluster.from_workers("10.0.0.7:2222,10.0.0.8:2222")
      >>> mesh_impl = UnevenMeshImpl("all:2", "hidden:all", cluster.devices, shares={"all": [2, 1]})
      >>> session = tf.Session(cluster.target, config=cluster.session_config())
    """

    workers: tuple[str, ...]
    devices: tuple[str, ...]
    chief: str | None = None
    cpus: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", convert_to_workers(self.workers))
        if not self.devices:
            raise ValueError("devices is empty; name one device per processor")
        if self.chief is not None:
            split_address(self.chief)

    @classmethod
    def local(cls, devices: Sequence[str] | None = None) -> "Cluster":
        """Return a cluster with the devices of this process.

        Args:
          devices: "gpu:0", "cpu:0", ... one per processor; cpu:0, cpu:1, ... are logical devices of one CPU. None: all
            GPUs that TensorFlow finds, then cpu:0.

        Raises:
          ValueError: a device that is not there.
        """
        gpus = len(tf.config.list_physical_devices("GPU"))
        if devices is None:
            return cls((), (*[f"gpu:{index}" for index in range(gpus)], "cpu:0"))
        local = [local_device(device, gpus) for device in devices]
        return cls((), tuple(device.short_name for device in local), cpus=cpu_count(local))

    @classmethod
    def from_workers(
        cls,
        workers: str | Sequence[str],
        devices: Sequence[str] | None = None,
        *,
        chief: str | None = None,
        timeout_seconds: float = 5.0,
    ) -> "Cluster":
        """Return a cluster with the devices of running workers, and of this process.

        Args:
          workers: "host:port,host:port", a sequence of them, or "@hosts.txt", a file with one per line; those of which
            no device is named need not be up.
          devices: one per processor: "worker:1/gpu:0", or "gpu:0" and "cpu:0" of this process. None: of each worker all
            GPUs, then its CPUs; none of this process.
          chief: "host:port" at which the workers reach this process; ":port": at the address on the way to them; None:
            a free port there.
          timeout_seconds: within which each worker must answer.

        Raises:
          UnreachableWorkerError: a worker does not answer; it says which.
          ValueError: an address that is not one, a device that is not there, or a worker with another TensorFlow.
        """
        workers = convert_to_workers(workers)
        if not workers:
            raise ValueError("workers is empty; give host:port of each worker, separated by commas")
        if chief is not None and chief.startswith(":"):
            chief = f"{host_towards(workers)}{chief}"
        addresses = dict(enumerate(workers)) if devices is None else _named_addresses(workers, devices)
        check_reachable(addresses, timeout_seconds)
        present = _list_devices(addresses, timeout_seconds)
        if devices is None:
            return cls(workers, _all_devices(present), chief)
        return _choose(workers, present, devices, chief)

    @classmethod
    def from_environment(cls, devices: Sequence[str] | None = None) -> "Cluster | None":
        """Return the cluster that TF_CONFIG or Slurm describes to this process, its chief; None: neither does.

        The workers run `mtf-hetero worker` under the same TF_CONFIG or in the same Slurm step.

        Args:
          devices: as in `from_workers`.

        Raises:
          UnreachableWorkerError: a worker does not answer; it says which.
          ValueError: TF_CONFIG is malformed, there is no worker, this process is not the chief, or the devices are all
            of this process, so that it cannot be both.
        """
        task = task_of_environment()
        if task is None:
            return None
        if devices and all(Device.parse(device).worker is None for device in devices):
            raise ValueError(
                f"the devices {', '.join(devices)} all belong to this process, but {task.source} describes a cluster "
                f"of {len(task.workers)} workers; unset {task.variable} to train here, or name devices of workers, as "
                "worker:0/cpu:0"
            )
        if task.job != "chief":
            raise ValueError(
                f"this process is {task.job} {task.index} of {task.source}; train in its task 'chief', and run "
                f"`mtf-hetero worker` in the others; or unset {task.variable} to train in this process only"
            )
        return cls.from_workers(task.workers, devices, chief=task.address)

    @functools.cached_property
    def target(self) -> str:
        """The target of every session. With workers, this starts the server of this process."""
        if not self.workers:
            return ""
        return _start_chief(self.chief or f"{host_towards(self.workers)}:0", self.cpus).target

    def with_members(self, present: Collection[str], *, timeout_seconds: float = 5.0) -> "Cluster":
        """Return the cluster with those workers that are present.

        Workers keep their numbers and their devices. A worker that had none in use brings all of its devices.

        Args:
          present: "host:port" of each worker.
          timeout_seconds: within which each worker that had no device in use must answer.

        Raises:
          UnreachableWorkerError: a worker does not answer; it says which.
          ValueError: no device is left, or a worker has another TensorFlow.
        """
        workers = (*self.workers, *(address for address in present if address not in self.workers))
        in_use = self.workers_in_use
        remaining = (
            name for name in self.devices if (worker := Device.parse(name).worker) is None or in_use[worker] in present
        )
        new = {number: workers[number] for number in map(workers.index, present) if number not in in_use}
        check_reachable(new, timeout_seconds)
        added_devices = _list_devices(new, timeout_seconds)
        return dataclasses.replace(self, workers=workers, devices=(*remaining, *_all_devices(added_devices)))

    @property
    def workers_in_use(self) -> dict[int, str]:
        """Return {index: "host:port"} of the workers that have a device among `devices`."""
        workers = {worker for name in self.devices if (worker := Device.parse(name).worker) is not None}
        return {worker: self.workers[worker] for worker in sorted(workers)}

    @property
    def workers_not_in_use(self) -> dict[int, str]:
        """Return {index: "host:port"} of the other workers."""
        used = self.workers_in_use
        return {index: address for index, address in enumerate(self.workers) if index not in used}

    def session_config(self) -> tf.ConfigProto:
        """Return the tf.ConfigProto of every session of the run."""
        config = tf.ConfigProto(allow_soft_placement=True, device_count={"CPU": self.cpus})
        config.gpu_options.allow_growth = True
        if self.workers:
            chief = self.target.removeprefix("grpc://")
            jobs = {"chief": [chief], "worker": self.workers_in_use}
            spec = tf.train.ClusterSpec({job: tasks for job, tasks in jobs.items() if tasks})
            config.cluster_def.CopyFrom(spec.as_cluster_def())
        return config

    def check_reachable(self, timeout_seconds: float = 5.0) -> None:
        """Raise UnreachableWorkerError, which names the worker, unless every worker in use answers."""
        check_reachable(self.workers_in_use, timeout_seconds)

    def describe(self) -> str:
        """Return the workers in one line; "": there are none."""
        return ", ".join(f"worker {index} at {address}" for index, address in enumerate(self.workers))


def _named_addresses(workers: tuple[str, ...], devices: Sequence[str]) -> dict[int, str]:
    """Return {index: "host:port"} of the workers whose devices the user names."""
    addresses = {}
    for text in devices:
        task = Device.parse(text).worker
        if task is not None:
            if task >= len(workers):
                raise ValueError(
                    f"device {text!r} names worker {task}, but there are only workers 0 to {len(workers) - 1}"
                )
            addresses[task] = workers[task]
    return addresses


def _list_devices(workers: Mapping[int, str], timeout_seconds: float) -> dict[int, list[Device]]:
    """Return the devices of workers that answered.

    Raises:
      UnreachableWorkerError: a worker goes silent after that.
      ValueError: a worker has another TensorFlow.
    """
    devices, versions = {}, {}
    config = tf.ConfigProto(operation_timeout_in_ms=round(timeout_seconds * 1000))
    for task, address in workers.items():
        try:
            with tf.Graph().as_default(), tf.Session(f"grpc://{address}", config=config) as session:
                devices[task] = listed_devices([device.name for device in session.list_devices()])
                versions[task] = versions_lib.read(session)
        except tf.errors.OpError as error:
            raise UnreachableWorkerError(
                f"worker {task} ({address}) answers, but does not list its devices ({type(error).__name__}); start the "
                "worker again, or give its direct address if there is a proxy"
            ) from error
    versions_lib.check(workers, versions)
    return devices


def _all_devices(devices_by_worker: Mapping[int, list[Device]]) -> tuple[str, ...]:
    return tuple(
        device.within(Device(WORKER, task)).name for task, devices in devices_by_worker.items() for device in devices
    )


def _choose(
    workers: tuple[str, ...], devices_by_worker: Mapping[int, list[Device]], devices: Sequence[str], chief: str | None
) -> Cluster:
    """Return the cluster with the devices that the user names."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    names, of_chief = [], []
    for text in devices:
        device = Device.parse(text)
        task = device.worker
        if task is None:
            of_chief.append(local_device(text, gpus))
            names.append(of_chief[-1].within(Device(CHIEF)).name)
            continue
        if Device(kind=device.kind, index=device.index) not in devices_by_worker[task]:
            present = ", ".join(other.short_name for other in devices_by_worker[task])
            raise ValueError(f"device {text!r} does not exist: worker {task} ({workers[task]}) has {present}")
        names.append(device.name)
    return Cluster(workers, tuple(names), chief, cpus=cpu_count(of_chief))


@functools.cache
def _start_chief(address: str, cpus: int) -> tf.train.Server:
    """Start the server of this process, once: TensorFlow cannot stop a server."""
    config = tf.ConfigProto(device_count={"CPU": cpus})
    config.gpu_options.allow_growth = True
    try:
        # Not by the name "chief": a session must not bring along the very task that the server was started as
        server = tf.train.Server({"client": [address]}, job_name="client", task_index=0, config=config, start=False)
    except tf.errors.OpError as error:
        raise ValueError(
            f"this process cannot listen at {address}; end the program that uses the port, or choose another one"
        ) from error
    host, port = address.rpartition(":")[0], int(server.target.rpartition(":")[2])
    # Before it serves anyone; the registry of workers has made sure that the filter works if there is a secret
    packet_filter.restrict(port, host if packet_filter.is_own(host) else None)
    server.start()
    return server

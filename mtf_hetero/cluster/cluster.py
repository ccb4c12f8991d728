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
import itertools
import socket
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero.cluster.devices import CHIEF, Device, cpu_count, local_device, offered_by
from mtf_hetero.cluster.environment import task_of_environment
from mtf_hetero.cluster.probe import UnreachableWorkerError, check_reachable, convert_to_workers, split_address

_WORKER = "worker"  # the job of all workers


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Where a run takes place.

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
        """The devices of this process.

        Args:
          devices: "gpu:0", "cpu:0", ... one per processor; cpu:0, cpu:1, ... are logical devices of one CPU. None: all
            GPUs that TensorFlow finds, then cpu:0.

        Raises:
          ValueError: a device that is not there.
        """
        gpus = len(tf.config.list_physical_devices("GPU"))
        if devices is None:
            return cls((), (*[f"gpu:{index}" for index in range(gpus)], "cpu:0"))
        chosen = [local_device(device, gpus) for device in devices]
        return cls((), tuple(device.short_name for device in chosen), cpus=cpu_count(chosen))

    @classmethod
    def from_workers(
        cls,
        workers: str | Sequence[str],
        devices: Sequence[str] | None = None,
        *,
        chief: str | None = None,
        timeout_seconds: float = 5.0,
    ) -> "Cluster":
        """The devices of workers, which must be up, and of this process.

        Args:
          workers: "host:port,host:port" or a sequence of them; those of which no device is named need not be up.
          devices: one per processor: "worker:1/gpu:0", or "gpu:0" and "cpu:0" of this process. None: of each worker all
            GPUs, then its CPUs; none of this process.
          chief: "host:port" at which the workers reach this process; None: found out.
          timeout_seconds: within which each worker must answer.

        Raises:
          UnreachableWorkerError: a worker does not answer; it says which.
          ValueError: an address that is not one, or a device that is not there.
        """
        workers = convert_to_workers(workers)
        if not workers:
            raise ValueError("workers is empty; give host:port of each worker, separated by commas")
        needed = dict(enumerate(workers)) if devices is None else _named(workers, devices)
        check_reachable(needed, timeout_seconds)
        offered = {task: _offered(task, address, timeout_seconds) for task, address in needed.items()}
        if devices is None:
            chosen = [
                device.within(_worker(task)).name for task, devices_of in offered.items() for device in devices_of
            ]
            return cls(workers, tuple(chosen), chief)
        return _choose(workers, offered, devices, chief)

    @classmethod
    def from_environment(
        cls, devices: Sequence[str] | None = None, *, timeout_seconds: float = 5.0, environment: Mapping | None = None
    ) -> "Cluster | None":
        """The cluster that TF_CONFIG or Slurm describes to this process, its chief; None where neither does.

        The workers run `mtf-hetero worker` under the same TF_CONFIG or in the same Slurm step.

        Args:
          devices: as in `from_workers`.
          timeout_seconds: within which each worker must answer.
          environment: the environment variables; None: os.environ.

        Raises:
          UnreachableWorkerError: a worker does not answer; it says which.
          ValueError: TF_CONFIG is malformed, there is no worker, this process is not the chief, or the devices are all
            of this process, so that it cannot be both.
        """
        task = task_of_environment(environment)
        if task is None:
            return None
        if devices and all(Device.parse(device).job != _WORKER for device in devices):
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
        return cls.from_workers(task.workers, devices, chief=task.address, timeout_seconds=timeout_seconds)

    @functools.cached_property
    def target(self) -> str:
        """The target of every session; with workers, that of this process's server, which this starts."""
        if not self.workers:
            return ""
        return _start_chief(self.chief or f"{_host_towards(self.workers)}:0", self.cpus).target

    @property
    def workers_in_use(self) -> dict[int, str]:
        """{index: "host:port"} of the workers that have a device among `devices`."""
        tasks = {device.task or 0 for device in map(Device.parse, self.devices) if device.job == _WORKER}
        return {task: self.workers[task] for task in sorted(tasks)}

    def session_config(self) -> tf.ConfigProto:
        """A tf.ConfigProto for every session of the run."""
        config = tf.ConfigProto(allow_soft_placement=True, device_count={"CPU": self.cpus})
        config.gpu_options.allow_growth = True
        if self.workers:
            chief = self.target.removeprefix("grpc://")
            jobs = {"chief": [chief], "worker": self.workers_in_use}
            spec = tf.train.ClusterSpec({job: tasks for job, tasks in jobs.items() if tasks})
            config.cluster_def.CopyFrom(spec.as_cluster_def())
        return config

    def check_reachable(self, timeout_seconds: float = 5.0) -> None:
        """Raises UnreachableWorkerError, which says which, unless every worker in use answers."""
        check_reachable(self.workers_in_use, timeout_seconds)

    def describe(self) -> str:
        """The workers in one line; "" where there are none."""
        return ", ".join(f"worker {index} at {address}" for index, address in enumerate(self.workers))


def _named(workers: tuple[str, ...], devices: Sequence[str]) -> dict[int, str]:
    """{index: "host:port"} of the workers of which the user names a device."""
    named = {}
    for text in devices:
        device = Device.parse(text)
        if device.job == _WORKER:
            task = device.task or 0
            if task >= len(workers):
                raise ValueError(
                    f"device {text!r} names worker {task}, but there are only workers 0 to {len(workers) - 1}"
                )
            named[task] = workers[task]
    return named


def _offered(task: int, address: str, timeout_seconds: float) -> list[Device]:
    """Return the devices of a worker that answered. Raises UnreachableWorkerError where it goes silent after that."""
    try:
        return offered_by(address, timeout_seconds)
    except tf.errors.OpError as error:
        raise UnreachableWorkerError(
            f"worker {task} ({address}) answers, but does not list its devices ({type(error).__name__}); start the "
            "worker again, or give its direct address if there is a proxy"
        ) from error


def _worker(task: int) -> Device:
    return Device(_WORKER, task)


def _choose(
    workers: tuple[str, ...], offered: Mapping[int, list[Device]], devices: Sequence[str], chief: str | None
) -> Cluster:
    """The cluster with the devices that the user names."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    names, of_chief = [], []
    for text in devices:
        device = Device.parse(text)
        if device.job != _WORKER:
            of_chief.append(local_device(text, gpus))
            names.append(of_chief[-1].within(Device(CHIEF)).name)
            continue
        task = device.task or 0
        if Device(kind=device.kind, index=device.index) not in offered[task]:
            present = ", ".join(other.short_name for other in offered[task])
            raise ValueError(f"device {text!r} does not exist: worker {task} ({workers[task]}) has {present}")
        names.append(device.name)
    return Cluster(workers, tuple(names), chief, cpus=cpu_count(of_chief))


def _host_towards(workers: Sequence[str]) -> str:
    """The address of this machine that a worker on another one can reach. Nothing is sent to find it out."""
    addresses = []
    for host, port in map(split_address, workers):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            addresses.append(probe.getsockname()[0])
    remote = [address for address in addresses if not address.startswith("127.")]
    return next(itertools.chain(remote, addresses))


@functools.cache
def _start_chief(address: str, cpus: int) -> tf.train.Server:
    """Starts this process's server, once: TensorFlow cannot stop one."""
    config = tf.ConfigProto(device_count={"CPU": cpus})
    config.gpu_options.allow_growth = True
    try:
        # Not by the name "chief": a session must not bring along the very task that the server was started as
        return tf.train.Server({"client": [address]}, job_name="client", task_index=0, config=config)
    except tf.errors.OpError as error:
        raise ValueError(
            f"chief is {address!r}, where no server can be started; check that the port is free"
        ) from error

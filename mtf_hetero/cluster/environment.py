"""The task of this process according to TF_CONFIG or Slurm."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero.cluster.probe import convert_to_workers

_SLURM_VARIABLE = "SLURM_STEP_NUM_TASKS"
SLURM_PORT = 8888  # of the first task on a node, as in TensorFlow's SlurmClusterResolver


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of this process according to TF_CONFIG or Slurm.

    Args:
      job: "chief" or "worker".
      index: its index in that job.
      address: "host:port" at which the others expect it.
      workers: "host:port" of each worker.
      source: "TF_CONFIG" or "Slurm".
    """

    job: str
    index: int
    address: str
    workers: tuple[str, ...]
    source: str

    @property
    def variable(self) -> str:
        """Return the environment variable that makes this process a task."""
        return "TF_CONFIG" if self.source == "TF_CONFIG" else _SLURM_VARIABLE


def task_of_environment() -> Task | None:
    """Return the task of this process according to TF_CONFIG or else Slurm; None: neither is set.

    TensorFlow's own resolvers read both.

    In a Slurm step of N tasks, task 0 is the chief and the others are workers.

    Raises:
      ValueError: what it says is malformed.
    """
    resolvers = tf.distribute.cluster_resolver
    try:
        if os.environ.get("TF_CONFIG"):
            source, resolver = "TF_CONFIG", resolvers.TFConfigClusterResolver()
            job, index = resolver.task_type, resolver.task_id
            jobs = resolver.cluster_spec().as_dict()
        elif (tasks := int(os.environ.get(_SLURM_VARIABLE, 1))) > 1:
            # One imaginary GPU a task: with none, the resolver finds no task at all
            source, resolver = (
                "Slurm",
                resolvers.SlurmClusterResolver(
                    {"chief": 1, "worker": tasks - 1}, SLURM_PORT, tasks, 1, auto_set_gpu=False
                ),
            )
            jobs = resolver.cluster_spec().as_dict()
            job, index = resolver.get_task_info()
        else:
            return None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        of_tf = bool(os.environ.get("TF_CONFIG"))
        name, variable = ("TF_CONFIG", "TF_CONFIG") if of_tf else ("the Slurm environment", _SLURM_VARIABLE)
        raise ValueError(
            f"{name} is invalid: {' '.join(str(error).split())}; correct it, or unset {variable} to train in "
            "this process only"
        ) from error
    jobs = {("chief" if name == "master" else name): addresses for name, addresses in jobs.items()}
    job = "chief" if job == "master" else job
    _check_task(source, jobs, job, index)
    return Task(str(job), int(index), jobs[job][index], convert_to_workers(jobs["worker"]), source)


def _check_task(source: str, jobs: Mapping[str, Sequence[str]], job: str, index: object) -> None:
    for required_job in ("chief", "worker"):
        if not jobs.get(required_job):
            raise ValueError(
                f"{source} has the jobs {', '.join(sorted(jobs)) or 'none'}; it needs a chief, which trains, and at "
                "least one worker"
            )
    if job not in jobs or not isinstance(index, int) or not 0 <= index < len(jobs[job]):
        raise ValueError(
            f"{source} says that this process is task {index!r} of job {job!r}, but its cluster has no such task"
        )

"""The devices of a run: those of this process, or of TensorFlow workers on other machines.

A name is imported when it is first asked for: what asks and guards workers needs no TensorFlow.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.cluster.claim import WorkerClaim, WorkerHeldError
    from mtf_hetero.cluster.cluster import Cluster
    from mtf_hetero.cluster.devices import shorten
    from mtf_hetero.cluster.environment import Task, task_of_environment
    from mtf_hetero.cluster.local import LimitedProcesses, LocalCluster, convert_to_fractions
    from mtf_hetero.cluster.local_session import expect_devices, needed_cpus, session_config
    from mtf_hetero.cluster.probe import UnreachableWorkerError, Workers, check_reachable, convert_to_workers
    from mtf_hetero.cluster.session import WaitingSessionCreator
    from mtf_hetero.cluster.watch import WorkerWatch, run_watched

__all__ = [
    "Cluster",
    "LimitedProcesses",
    "LocalCluster",
    "Task",
    "UnreachableWorkerError",
    "WaitingSessionCreator",
    "WorkerClaim",
    "WorkerHeldError",
    "WorkerWatch",
    "Workers",
    "check_reachable",
    "convert_to_fractions",
    "convert_to_workers",
    "expect_devices",
    "needed_cpus",
    "run_watched",
    "session_config",
    "shorten",
    "task_of_environment",
]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Cluster": "cluster",
        "LimitedProcesses": "local",
        "LocalCluster": "local",
        "Task": "environment",
        "UnreachableWorkerError": "probe",
        "WaitingSessionCreator": "session",
        "WorkerClaim": "claim",
        "WorkerHeldError": "claim",
        "WorkerWatch": "watch",
        "Workers": "probe",
        "check_reachable": "probe",
        "convert_to_fractions": "local",
        "convert_to_workers": "probe",
        "expect_devices": "local_session",
        "needed_cpus": "local_session",
        "run_watched": "watch",
        "session_config": "local_session",
        "shorten": "devices",
        "task_of_environment": "environment",
    },
)

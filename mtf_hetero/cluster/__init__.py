"""The devices of a run: those of this process, or of TensorFlow workers on other machines.

Example:
  >>> cluster = Cluster.from_workers("host1:2222,host2:2222")  # or Cluster.local(["gpu:0", "cpu:0"])
  >>> cluster.devices
  ('/job:worker/task:0/device:CPU:0', '/job:worker/task:1/device:CPU:0')
  >>> with WorkerClaim(cluster.workers_in_use):  # a worker serves one training at a time
  ...     with tf.Session(cluster.target, config=cluster.session_config()) as session:
  ...         session.run(step)

`LocalCluster` starts workers on this machine, which may be slowed down as other machines are. A name is imported when
it is first asked for: asking and guarding workers needs no TensorFlow.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.cluster.claim import WorkerClaim
    from mtf_hetero.cluster.cluster import Cluster
    from mtf_hetero.cluster.emulation.local import LocalCluster
    from mtf_hetero.cluster.local_session import session_config
    from mtf_hetero.cluster.probe import UnreachableWorkerError
    from mtf_hetero.cluster.watch import WorkerWatch

__all__ = ["Cluster", "LocalCluster", "UnreachableWorkerError", "WorkerClaim", "WorkerWatch", "session_config"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Cluster": "cluster",
        "LocalCluster": "emulation.local",
        "UnreachableWorkerError": "probe",
        "WorkerClaim": "claim",
        "WorkerWatch": "watch",
        "session_config": "local_session",
    },
)

"""Small operations on the devices of a worker: one that answers and carries out none has hung, a GPU for instance."""

import concurrent.futures
import time

from mtf_hetero._compat import tf
from mtf_hetero._support import threads
from mtf_hetero.cluster import probe

_GPUS = 8  # of a worker; the operation of one that does not exist is carried out elsewhere


class Pulse:
    """Small operations on the devices of a worker, one at a time.

    Args:
      address: "host:port".
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._operation: concurrent.futures.Future[None] | None = None
        self._since = 0.0

    def beats(self, limit_seconds: float) -> bool:
        """Return whether the last operation has ended, or still has time; then another one may begin.

        If it has not, all questions to the worker (probe.ask) fail until it has.
        """
        if self._operation is None or self._operation.done():
            self._since = time.monotonic()
            self._operation = threads.begin(lambda: _carry_out(self._address), "worker_pulse")
            return True
        if time.monotonic() - self._since < limit_seconds:
            return True
        probe.hung[self._address] = self._operation
        return False


def _carry_out(address: str) -> None:
    """Draw a number on each device, in a session without a cluster, which disturbs no other one."""
    with tf.Graph().as_default() as graph:
        numbers = []
        for device in ("cpu:0", *(f"gpu:{index}" for index in range(_GPUS))):
            with tf.device(device):
                numbers.append(tf.random.uniform([]))
    with tf.Session(f"grpc://{address}", graph=graph, config=tf.ConfigProto(allow_soft_placement=True)) as session:
        session.run(numbers)

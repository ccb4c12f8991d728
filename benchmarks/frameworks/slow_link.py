"""Workers of this machine whose links the kernel slows down, each way by itself, as a network of full duplex does."""

import pathlib
import subprocess
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mtf_hetero.cluster import Cluster, LocalCluster

_BURST = "512kb"  # that passes at once


class LinkedCluster(LocalCluster):
    """Workers over slow links. This process has to be in a network of its own (`benchmarks.child`), as root.

    Args:
      fractions: cores of each worker.
      link: megabits per second that each worker sends, and this process too; 0: as many as it can.
      **options: of LocalCluster.
    """

    def __init__(self, fractions: Sequence[float], link: float, **options: Any) -> None:
        super().__init__(list(fractions), **options)
        self._link = link

    def __enter__(self) -> Cluster:
        """Start the workers. A tensor is sent as the answer to the worker that asks for it, so from its worker's port.

        Raises:
          RuntimeError: a worker does not start, or the kernel refuses the limit.
        """
        cluster = super().__enter__()
        addresses = [*self.addresses, cluster.target.removeprefix("grpc://")]
        slow_down([[int(address.rpartition(":")[2])] for address in addresses], self._link)
        return cluster

    def lift_limit(self) -> None:
        """Let everything pass as fast as it can."""
        if self._link:
            _tc("qdisc del dev lo root")


def slow_down(ports: Sequence[Collection[int]], megabits_per_second: float) -> None:
    """Let so much pass of what each process sends from its ports, to all others together; 0: everything."""
    for command in _commands(ports, megabits_per_second) if megabits_per_second else ():
        _tc(command)


def sent_bytes() -> int:
    """Return the bytes that went over the loopback of this process's network so far."""
    lines = pathlib.Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()
    (loopback,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(loopback.partition(":")[2].split()[8])


def _commands(ports: Sequence[Collection[int]], megabits_per_second: float) -> Iterator[str]:
    yield "qdisc add dev lo root handle 1: htb"  # what is in none of its classes passes
    limits = f"rate {megabits_per_second:g}mbit burst {_BURST} cburst {_BURST} quantum 65536"
    for number, own in enumerate(ports, 1):
        yield f"class add dev lo parent 1: classid 1:{number} htb {limits}"
        for port in own:
            yield f"filter add dev lo parent 1: protocol ip u32 match ip sport {port} 0xffff flowid 1:{number}"


def _tc(command: str) -> None:
    done = subprocess.run(["tc", *command.split()], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"tc {command}: {' '.join(done.stderr.split())}")

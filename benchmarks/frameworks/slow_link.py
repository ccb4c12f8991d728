"""Workers of this machine whose links the kernel slows down, each way by itself, as a network of full duplex does."""

import subprocess
from collections.abc import Collection, Iterator, Sequence

_BURST = "512kb"  # that passes at once


def slow_down(addresses: Sequence[str], megabits_per_second: float) -> None:
    """Lets so much pass of what each worker sends to all others together, from now on.

    This process has to be in a network of its own (`benchmarks.child`), as root. A tensor is sent as the answer to the
    worker that asks for it, and so from its worker's port.

    Args:
      addresses: "host:port" of each worker, at this machine's loopback.
      megabits_per_second: of each worker.

    Raises:
      RuntimeError: the kernel refuses it.
    """
    slow_down_ports([[int(address.rpartition(":")[2])] for address in addresses], megabits_per_second)


def slow_down_ports(ports: Sequence[Collection[int]], megabits_per_second: float) -> None:
    """Do as `slow_down` does, for workers that send from these ports."""
    for command in _commands(ports, megabits_per_second):
        done = subprocess.run(["tc", *command.split()], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"tc {command}: {' '.join(done.stderr.split())}")


def _commands(ports: Sequence[Collection[int]], megabits_per_second: float) -> Iterator[str]:
    yield "qdisc add dev lo root handle 1: htb"  # what is in none of its classes passes
    limits = f"rate {megabits_per_second:g}mbit burst {_BURST} cburst {_BURST} quantum 65536"
    for number, own in enumerate(ports, 1):
        yield f"class add dev lo parent 1: classid 1:{number} htb {limits}"
        for port in own:
            yield f"filter add dev lo parent 1: protocol ip u32 match ip sport {port} 0xffff flowid 1:{number}"

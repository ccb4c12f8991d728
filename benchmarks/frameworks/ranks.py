"""Ranks: a process for each worker, which computes its part of what one of the peers trains."""

import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import psutil

from benchmarks.child import LimitedChild, result
from benchmarks.frameworks import slow_link
from benchmarks.harness import CHECKED_STEPS
from mtf_hetero.cluster.emulation.local import LimitedProcesses


class Ranks:
    """Holds the ranks, which are connected before their cores and links are limited.

    Args:
      target: "package.module:Class" of a rank, whose arguments are `rank`, `addresses` and those below; an address for
        each rank, "127.0.0.1:port", is free for a rendezvous or a server.
      fractions: cores of each rank.
      link: megabits per second that each rank sends, in a network of this process's own; 0: as many as it can.
      **arguments: of every rank.
    """

    def __init__(self, target: str, fractions: Sequence[float], link: int = 0, **arguments: Any) -> None:
        arguments["addresses"] = _free_addresses(len(fractions))
        with contextlib.ExitStack() as stack:
            processes = stack.enter_context(LimitedProcesses(fractions))
            self._ranks = [
                stack.enter_context(LimitedChild(target, {**arguments, "rank": rank}, processes, rank))
                for rank, _ in enumerate(fractions)
            ]
            self._answers()
            for rank, _ in enumerate(fractions):
                processes.limit(rank)
            slow_link.slow_down([_ports(pid) for pid in processes.pids], link)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End the processes."""
        self._stack.close()

    def add(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Build a way; return what the first rank says of it, and the losses before two steps."""
        facts = self.ask("add", name=name, **arguments)[0]
        return {**(facts or {}), "losses": self.run(name=name, steps=CHECKED_STEPS)["losses"]}

    def run(self, **arguments: Any) -> dict[str, Any]:
        """Train, and return the sums of the ranks' parts of the losses, and of all else the largest figures."""
        answers = self.ask("run", **arguments)
        return {name: _merge(name, [answer[name] for answer in answers]) for name in answers[0]}

    def ask(self, method: str, **arguments: Any) -> list[Any]:
        """Return the answers of all ranks, each of which may wait for the others."""
        for child in self._ranks:
            child.send(method, arguments)
        return self._answers()

    def _answers(self) -> list[Any]:
        return [result(answer) for answer in [child.answer() for child in self._ranks]]


def _merge(name: str, figures: Sequence[Any]) -> Any:
    combine = sum if name == "losses" else max
    if isinstance(figures[0], list):
        return [combine(parts) for parts in zip(*figures, strict=True)]
    return combine(figures)


def _free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def _ports(pid: int) -> set[int]:
    """Return the ports from which a process sends."""
    return {connection.laddr.port for connection in psutil.Process(pid).net_connections("tcp") if connection.laddr}

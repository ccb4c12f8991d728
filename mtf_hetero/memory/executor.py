"""In which order TensorFlow runs the operations of a graph, and sends what one device needs of another. Pure.

Each memory has some threads and one queue: an operation joins it when its last input is there, and the first in the
queue runs on the first thread that is free, for about as long as its shapes suggest. What another memory needs is sent
when it is made, and is there at once.

TensorFlow's own executor (common_runtime/executor.cc) runs cheap operations on the spot, has a queue for each thread,
of which the newest comes first, and its messages take time. All that was simulated with fitted constants, and gained
next to nothing: against the memory that 45 stored steps of 1 to 8 workers took (benchmarks/results, splitbrain and
spatial), the sum over the workers is off by 5.5 per cent in the mean, and by 5.4 with all these. What is left does
gain: with the same durations in every step it would be 6.3, with a bias of -5.3 and not -0.5, and in the graph's own
order 8.7 (of 24 of these steps, where this has 5.6).
"""

import collections
import heapq
import random
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero.memory.liveness import BEGIN, END, RECEIVED, SEND, Event, Node

SLOWEST = 2.0  # an operation beside another on one core takes up to twice as long


class _Executor:
    """The simulated run; arguments as in `events`."""

    def __init__(self, nodes: Sequence[Node], memories: Mapping[str, str], threads: int, seed: int) -> None:
        chance = random.Random(seed)
        self._seconds = [node.seconds * chance.uniform(1.0, SLOWEST) for node in nodes]
        self._memory_of = [memories[node.device] for node in nodes]
        self._pending = [len(node.inputs) + len(node.after) for node in nodes]
        self._near: list[list[int]] = [[] for _ in nodes]  # a node is listed once for each input
        self._far: list[dict[tuple[int, str], list[int]]] = [{} for _ in nodes]  # output -1: it has ended
        for index, node in enumerate(nodes):
            for source, output in [*node.inputs, *((source, -1) for source in node.after)]:
                if self._memory_of[source] == self._memory_of[index]:
                    self._near[source].append(index)
                else:
                    self._far[source].setdefault((output, node.device), []).append(index)
        self._queues: dict[str, collections.deque[int]] = collections.defaultdict(collections.deque)
        self._free = dict.fromkeys(self._memory_of, threads)
        self._running: list[tuple[float, int, int]] = []  # (when it ends, how many began before it, node)
        self.events: list[Event] = []

    def run(self) -> None:
        """Runs all nodes."""
        self._add(index for index, pending in enumerate(self._pending) if not pending)
        begun = self._begin(0.0, 0)
        while self._running:
            now, _, node = heapq.heappop(self._running)
            self.events.append(Event(END, node))
            self._free[self._memory_of[node]] += 1
            self._add(self._made_ready(self._near[node]))
            for (output, device), readers in self._far[node].items():
                if output >= 0:
                    self.events += [Event(kind, node, output, device) for kind in (SEND, RECEIVED)]
                self._add(self._made_ready(readers))
            begun = self._begin(now, begun)

    def _made_ready(self, nodes: Sequence[int]) -> list[int]:
        ready = []
        for node in nodes:
            self._pending[node] -= 1
            if not self._pending[node]:
                ready.append(node)
        return ready

    def _add(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self._queues[self._memory_of[node]].append(node)

    def _begin(self, now: float, begun: int) -> int:
        """Begins as many nodes as there are free threads; returns how many have begun so far."""
        for memory, queue in self._queues.items():
            while queue and self._free[memory]:
                node = queue.popleft()
                self._free[memory] -= 1
                self.events.append(Event(BEGIN, node))
                heapq.heappush(self._running, (now + self._seconds[node], begun, node))
                begun += 1
        return begun


def events(
    nodes: Sequence[Node], *, memories: Mapping[str, str] | None = None, threads: int = 2, seed: int = 0
) -> list[Event]:
    """All that happens while the nodes run, in its order.

    Args:
      nodes: the operations, each after those that it needs.
      memories: {device: the memory that it uses}; None: each has its own. Devices of one memory share their threads.
      threads: of each memory, as TensorFlow's inter_op_parallelism_threads.
      seed: of how long each node takes, which differs from step to step.

    Raises:
      ValueError: nodes that wait for each other.
    """
    if memories is None:
        memories = {node.device: node.device for node in nodes}
    executor = _Executor(nodes, memories, threads, seed)
    executor.run()
    if sum(event.kind == END for event in executor.events) < len(nodes):
        raise ValueError("operations wait for each other; give each node only inputs of nodes before it")
    return executor.events

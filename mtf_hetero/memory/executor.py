"""In which order TensorFlow runs the operations of a graph, and sends what one device needs of another. Pure.

Each memory has some threads and one queue: an operation joins it when its last input is there, and the first in the
queue runs on the first thread that is free, for about as long as its shapes suggest. What another memory needs is sent
when it is made, over links that carry one message after the other.

TensorFlow's own executor (common_runtime/executor.cc) also runs cheap operations on the spot, and has a queue for each
thread, of which the newest comes first; a message takes time before its first byte. All that was simulated with fitted
constants, and gained nothing: against the memory that 45 stored steps of 1 to 8 workers took (benchmarks/results,
splitbrain and spatial), the sum over the workers is off by 5.5 per cent in the mean and 12.3 at worst, and by 5.4 and
12.6 with all these. What is left does gain. With the same durations in every step it would be 6.3 and 21.8; with
messages that are there at once, 5.5 and 13.8; in the graph's own order, of 24 of the steps, 8.7 and 19.3 in place of
5.7 and 12.3.
"""

import collections
import dataclasses
import heapq
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero.memory.liveness import BEGIN, END, RECEIVED, SEND, Event, Node

BYTES_PER_SECOND = 1e9  # of a link
SLOWEST = 2.0  # an operation beside another on one core takes up to twice as long


class _Executor:
    """The simulated run; arguments as in `events`."""

    def __init__(self, nodes: Sequence[Node], memories: Mapping[str, str], threads: int, seed: int) -> None:
        chance = random.Random(seed)
        self._seconds = [node.seconds * chance.uniform(1.0, SLOWEST) for node in nodes]
        self._nodes = nodes
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
        self._threads = dict.fromkeys(self._memory_of, threads)  # those that are free
        self._links: dict[tuple[str, str], float] = collections.defaultdict(float)  # when each is free
        self._coming: list[tuple[float, int, Event]] = []  # (when, how many were before it, END or RECEIVED)
        self._number = itertools.count()
        self._now = 0.0
        self.events: list[Event] = []

    def run(self) -> None:
        """Runs all nodes."""
        self._add(index for index, pending in enumerate(self._pending) if not pending)
        self._begin()
        while self._coming:
            self._now, _, event = heapq.heappop(self._coming)
            if event.kind == END:
                self._end(event)
            else:
                self._receive(event)
            self._begin()

    def _at(self, seconds: float, event: Event) -> None:
        heapq.heappush(self._coming, (seconds, next(self._number), event))

    def _begin(self) -> None:
        """Begins as many nodes as there are free threads."""
        for memory, queue in self._queues.items():
            while queue and self._threads[memory]:
                node = queue.popleft()
                self._threads[memory] -= 1
                self.events.append(Event(BEGIN, node))
                self._at(self._now + self._seconds[node], Event(END, node))

    def _end(self, event: Event) -> None:
        self.events.append(event)
        self._threads[self._memory_of[event.node]] += 1
        self._made_ready(self._near[event.node])
        for output, device in self._far[event.node]:
            self._send(Event(SEND, event.node, output, device))

    def _send(self, event: Event) -> None:
        node, size_bytes = self._nodes[event.node], 0
        if event.output >= 0:
            size_bytes = node.outputs[event.output].size_bytes
            self.events.append(event)
        link = (node.device, event.device)
        self._links[link] = max(self._now, self._links[link]) + size_bytes / BYTES_PER_SECOND
        self._at(self._links[link], dataclasses.replace(event, kind=RECEIVED))

    def _receive(self, event: Event) -> None:
        if event.output >= 0:
            self.events.append(event)
        self._made_ready(self._far[event.node][event.output, event.device])

    def _made_ready(self, nodes: Iterable[int]) -> None:
        """Counts an input of each node; those that have all of theirs join their queues."""
        for node in nodes:
            self._pending[node] -= 1
            self._add([node] * (not self._pending[node]))

    def _add(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self._queues[self._memory_of[node]].append(node)


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

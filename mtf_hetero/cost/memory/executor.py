"""Simulate the order in which TensorFlow runs the operations of a graph, and sends tensors between devices. Pure.

Each memory has some threads, as in TensorFlow's executor (common_runtime/executor.cc). A ready operation goes to the
front of its thread's queue. The thread runs the newest first; an idle thread takes the oldest of another queue. So a
step runs depth first, in as many places as there are threads, which share a processor. Durations follow from shapes. A
tensor that another memory needs is sent when it is made, over links that carry one message after another.

Cheap operations that TensorFlow runs on the spot, and the latency of messages, are not simulated: neither made the
estimates of memory better. `tests/cost/test_memory.py` compares them with workers. Two cases are off: two workers that
exchange a gradient which is most of a step need 19 % less, and four that train in rounds 17 % more.
"""

import collections
import dataclasses
import heapq
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero._support import cores
from mtf_hetero.cost.memory.liveness import BEGIN, END, RECEIVED, SEND, Event, Node

BYTES_PER_SECOND = 1e9  # of a link
SLOWEST = 2.0  # of two steps, an operation takes up to twice as long in one


class _Pool:
    """The threads that share a memory and a processor, with their queues."""

    def __init__(self, threads: int, chance: random.Random) -> None:
        self._chance = chance
        self.queues: list[collections.deque[int]] = [collections.deque() for _ in range(threads)]
        self.idle = list(range(threads))
        self._running: list[tuple[float, int, int, int]] = []  # (work when done, how many began before, node, thread)
        self._began = itertools.count()
        self._work = 0.0  # seconds of the processor that each running node has had since the beginning
        self._now = 0.0

    def begin(self, node: int, seconds: float, thread: int, now: float) -> None:
        """Begin a node, which lasts so long if nothing else runs."""
        self._advance(now)
        heapq.heappush(self._running, (self._work + seconds, next(self._began), node, thread))

    def next_end(self) -> float:
        """Return when the next node ends, if no other begins before."""
        return self._now + (self._running[0][0] - self._work) * len(self._running) if self._running else math.inf

    def end(self) -> tuple[int, int]:
        """End that node; return the node and its thread."""
        self._advance(self.next_end())
        self._work, _, node, thread = heapq.heappop(self._running)
        return node, thread

    def _advance(self, now: float) -> None:
        if self._running:
            self._work += (now - self._now) / len(self._running)
        self._now = now

    def add(self, node: int) -> None:
        """Append a node that no thread of the pool has made ready to one of the queues."""
        self._chance.choice(self.queues).append(node)

    def take(self, thread: int) -> int | None:
        """Return the next node of a thread, or None."""
        if self.queues[thread]:
            return self.queues[thread].popleft()
        longest = max(self.queues, key=len)
        return longest.pop() if longest else None


class _Executor:
    """The simulated run; arguments as in `events`."""

    def __init__(self, nodes: Sequence[Node], memories: Mapping[str, str], threads: int, seed: int) -> None:
        chance = random.Random(seed)
        self._seconds = [node.seconds * chance.uniform(1.0, SLOWEST) for node in nodes]
        self._nodes = nodes
        self._memory_of = [memories[node.device] for node in nodes]
        self._pools = {memory: _Pool(threads, chance) for memory in sorted(set(self._memory_of))}
        self._pending = [len(node.inputs) + len(node.after) for node in nodes]
        self._near: list[list[int]] = [[] for _ in nodes]  # a node is listed once for each input
        self._far: list[dict[tuple[int, str], list[int]]] = [{} for _ in nodes]  # output -1: it has ended
        for index, node in enumerate(nodes):
            for source, output in [*node.inputs, *((source, -1) for source in node.after)]:
                if self._memory_of[source] == self._memory_of[index]:
                    self._near[source].append(index)
                else:
                    self._far[source].setdefault((output, node.device), []).append(index)
        self._links: dict[tuple[str, str], float] = collections.defaultdict(float)  # when each is free
        self._coming: list[tuple[float, int, Event]] = []  # (when, how many were before it, RECEIVED)
        self._number = itertools.count()
        self._now = 0.0
        self.events: list[Event] = []

    def run(self) -> None:
        """Run all nodes."""
        for node, pending in enumerate(self._pending):
            if not pending:
                self._pools[self._memory_of[node]].add(node)
        for pool in self._pools.values():
            self._wake(pool)
        while True:
            pool = min(self._pools.values(), key=_Pool.next_end)
            comes, ends = self._coming[0][0] if self._coming else math.inf, pool.next_end()
            self._now = min(comes, ends)
            if math.isinf(self._now):
                return
            if comes <= ends:
                self._receive(heapq.heappop(self._coming)[-1])
            else:
                self._end(*pool.end())

    def _wake(self, pool: _Pool) -> None:
        """Give idle threads of the pool the nodes that are ready."""
        for thread in list(pool.idle):
            if (node := pool.take(thread)) is None:
                return
            pool.idle.remove(thread)
            self._begin(node, thread)

    def _begin(self, node: int, thread: int) -> None:
        self.events.append(Event(BEGIN, node))
        self._pools[self._memory_of[node]].begin(node, self._seconds[node], thread, self._now)

    def _end(self, node: int, thread: int) -> None:
        self.events.append(Event(END, node))
        for output, device in self._far[node]:
            self._send(Event(SEND, node, output, device))
        pool = self._pools[self._memory_of[node]]
        pool.queues[thread].extendleft(self._made_ready(self._near[node]))
        if (following := pool.take(thread)) is None:
            pool.idle.append(thread)
        else:
            self._begin(following, thread)
        self._wake(pool)

    def _send(self, event: Event) -> None:
        node, size_bytes = self._nodes[event.node], 0
        if event.output >= 0:
            size_bytes = node.outputs[event.output].size_bytes
            self.events.append(event)
        link = (node.device, event.device)
        self._links[link] = max(self._now, self._links[link]) + size_bytes / BYTES_PER_SECOND
        received = dataclasses.replace(event, kind=RECEIVED)
        heapq.heappush(self._coming, (self._links[link], next(self._number), received))

    def _receive(self, event: Event) -> None:
        if event.output >= 0:
            self.events.append(event)
        for node in self._made_ready(self._far[event.node][event.output, event.device]):
            pool = self._pools[self._memory_of[node]]
            pool.add(node)
            self._wake(pool)

    def _made_ready(self, nodes: Iterable[int]) -> list[int]:
        """Count an input of each node; return the nodes that have all inputs."""
        ready = []
        for node in nodes:
            self._pending[node] -= 1
            if not self._pending[node]:
                ready.append(node)
        return ready


def events(
    nodes: Sequence[Node], *, memories: Mapping[str, str] | None = None, threads: int = cores.OPERATIONS, seed: int = 0
) -> list[Event]:
    """Return all that happens while the nodes run, in its order.

    Args:
      nodes: the operations, each after those that it needs.
      memories: {device: the memory that it uses}; None: each has its own. Devices of one memory share their threads.
      threads: of each memory, as TensorFlow's inter_op_parallelism_threads.
      seed: of what differs from step to step: how long each node takes, and on which thread it begins.

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

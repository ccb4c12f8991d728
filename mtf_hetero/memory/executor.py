"""In which order TensorFlow runs the operations of a graph, and sends what one device needs of another. Pure.

Each memory has some threads, as TensorFlow's executor (common_runtime/executor.cc) has. What an operation makes ready
goes to the front of its thread's queue, of which the thread takes the newest first; a thread that has nothing takes the
oldest of another's. So a step runs depth first, in as many places as there are threads, which share a processor. An
operation takes about as long as its shapes suggest; what another memory needs is sent when it is made, over links that
carry one message after the other.

TensorFlow also runs cheap operations on the spot, and a message takes time before its first byte; simulated with fitted
constants, neither gained anything. Against the memory that 45 stored steps of 1 to 8 workers took (benchmarks/results,
splitbrain and spatial), the sum over the workers is off by 5.3 per cent in the mean and 12.3 at worst. With one queue
for all threads, first in, first out, it would be 5.5 and 12.3, and single workers (tests/test_memory.py) off by up to
15, where it is 10 now; newest first, 5.7 and 13.3. With the same durations in every step, 6.1 and 21.5. In the graph's
own order, 8.7 and 19.3 of 24 steps. (These were compared with workers of two threads, each with a processor of its own.
Workers have eight today, and the plans of seven networks take what `memory.estimation` says they do. What is not known
yet: where one gradient is a good part of all, two workers that exchange it take 19 per cent less than is estimated, and
four that train in rounds 17 per cent more.)
"""

import collections
import dataclasses
import heapq
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero._support import cores
from mtf_hetero.memory.liveness import BEGIN, END, RECEIVED, SEND, Event, Node

BYTES_PER_SECOND = 1e9  # of a link
SLOWEST = 2.0  # of two steps, an operation takes up to twice as long in one


class _Pool:
    """The threads that share a memory, their queues, and what they do: with a processor that they share, too."""

    def __init__(self, threads: int, chance: random.Random) -> None:
        self._chance = chance
        self.queues: list[collections.deque[int]] = [collections.deque() for _ in range(threads)]
        self.idle = list(range(threads))
        self._running: list[tuple[float, int, int, int]] = []  # (work when done, how many began before, node, thread)
        self._began = itertools.count()
        self._work = 0.0  # in seconds of the processor: what each that runs has had since the beginning
        self._now = 0.0

    def begin(self, node: int, seconds: float, thread: int, now: float) -> None:
        """A thread begins with a node that takes so long if nothing else runs."""
        self._advance(now)
        heapq.heappush(self._running, (self._work + seconds, next(self._began), node, thread))

    def next_end(self) -> float:
        """When a node ends, if no other begins before that."""
        return self._now + (self._running[0][0] - self._work) * len(self._running) if self._running else math.inf

    def end(self) -> tuple[int, int]:
        """Ends that node; it and its thread."""
        self._advance(self.next_end())
        self._work, _, node, thread = heapq.heappop(self._running)
        return node, thread

    def _advance(self, now: float) -> None:
        if self._running:
            self._work += (now - self._now) / len(self._running)
        self._now = now

    def add(self, node: int) -> None:
        """What no thread of the pool has made ready goes to the end of one of the queues."""
        self._chance.choice(self.queues).append(node)

    def take(self, thread: int) -> int | None:
        """What a thread does next."""
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
        """Runs all nodes."""
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
        """Gives idle threads of the pool what there is to do."""
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
        """Counts an input of each node; returns those that have all of theirs."""
        ready = []
        for node in nodes:
            self._pending[node] -= 1
            if not self._pending[node]:
                ready.append(node)
        return ready


def events(
    nodes: Sequence[Node], *, memories: Mapping[str, str] | None = None, threads: int = cores.OPERATIONS, seed: int = 0
) -> list[Event]:
    """All that happens while the nodes run, in its order.

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

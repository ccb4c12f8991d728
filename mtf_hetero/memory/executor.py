"""In which order TensorFlow runs the operations of a graph, and sends what one device needs of another. Pure.

This is TensorFlow's executor (common_runtime/executor.cc) over a pool of threads that steal from each other. Of the
operations that an ended one makes ready, a thread goes on with the cheap ones and with one other; the rest go to the
front of its queue, from which it takes the newest first, and a thread that has nothing takes the oldest of another's.
So a step runs depth first, in as many places as there are threads. What each operation costs is known about, from its
shapes; a real step differs from this one as two real steps differ from each other.
"""

import collections
import functools
import heapq
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero.memory.liveness import BEGIN, END, RECEIVED, SEND, Event, Node

CHEAP_SECONDS = 3e-6  # the executor's 8,000 cycles
BYTES_PER_SECOND = 1e9  # of a link
SLOWEST = 2.0  # an operation beside another on one core takes up to twice as long
MESSAGE_SECONDS = 1.6e-3  # of a message, before any byte


class _Pool:
    """The threads that share a memory, and their queues.

    Args:
      threads: how many.
      chance: where the queue of a node is chosen by.
    """

    def __init__(self, threads: int, chance: random.Random) -> None:
        self._chance = chance
        self.queues: list[collections.deque[int]] = [collections.deque() for _ in range(threads)]
        self.inline: list[collections.deque[int]] = [collections.deque() for _ in range(threads)]
        self.idle = list(range(threads))

    def add(self, node: int) -> None:
        """What no thread of the pool made ready goes to the end of one of the queues."""
        self._chance.choice(self.queues).append(node)

    def take(self, thread: int) -> int | None:
        """What a thread does next."""
        for queue in (self.inline[thread], self.queues[thread]):
            if queue:
                return queue.popleft()
        longest = max(self.queues, key=len)
        return longest.pop() if longest else None


class _Executor:
    """The simulated run.

    Args:
      nodes: as in `events`.
      memories: as in `events`.
      threads: as in `events`.
      seed: as in `events`.
    """

    def __init__(self, nodes: Sequence[Node], memories: Mapping[str, str], threads: int, seed: int) -> None:
        chance = random.Random(seed)
        self._seconds = [node.seconds * chance.uniform(1.0, SLOWEST) for node in nodes]
        self._nodes = nodes
        self._memories = memories
        self._pools = {memory: _Pool(threads, chance) for memory in sorted({memories[node.device] for node in nodes})}
        self._pending = [len(node.inputs) + len(node.after) for node in nodes]
        self._near: list[list[int]] = [[] for _ in nodes]  # a node is listed once for each input
        self._far: dict[tuple[int, int, str], list[int]] = collections.defaultdict(list)  # output -1: it has ended
        self._sends: list[list[tuple[int, str]]] = [[] for _ in nodes]
        for index, node in enumerate(nodes):
            for source, output in [*node.inputs, *((source, -1) for source in node.after)]:
                if memories[nodes[source].device] == memories[node.device]:
                    self._near[source].append(index)
                    continue
                if (source, output, node.device) not in self._far:
                    self._sends[source].append((output, node.device))
                self._far[source, output, node.device].append(index)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._now = 0.0
        self._free: dict[tuple[str, str], float] = collections.defaultdict(float)
        self.events: list[Event] = []

    def run(self) -> None:
        """Runs all nodes."""
        for index, node in enumerate(self._nodes):
            if not self._pending[index]:
                self._pools[self._memories[node.device]].add(index)
        for pool in self._pools.values():
            self._wake(pool)
        while self._heap:
            self._now, _, action = heapq.heappop(self._heap)
            action()

    def _at(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._heap, (seconds, next(self._number), functools.partial(action, *arguments)))

    def _wake(self, pool: _Pool) -> None:
        for thread in list(pool.idle):
            node = pool.take(thread)
            if node is None:
                return
            pool.idle.remove(thread)
            self._begin(pool, thread, node)

    def _begin(self, pool: _Pool, thread: int, node: int) -> None:
        self.events.append(Event(BEGIN, node))
        self._at(self._now + self._seconds[node], self._end, pool, thread, node)

    def _end(self, pool: _Pool, thread: int, node: int) -> None:
        self.events.append(Event(END, node))
        for output, device in self._sends[node]:
            self._queue_message(node, output, device)
        self._share_out(pool, thread, self._made_ready(self._near[node]))
        following = pool.take(thread)
        if following is None:
            pool.idle.append(thread)
        else:
            self._begin(pool, thread, following)
        self._wake(pool)

    def _made_ready(self, nodes: Sequence[int]) -> list[int]:
        ready = []
        for node in nodes:
            self._pending[node] -= 1
            if not self._pending[node]:
                ready.append(node)
        return ready

    def _share_out(self, pool: _Pool, thread: int, ready: Sequence[int]) -> None:
        costly = []
        for node in ready:
            if self._nodes[node].seconds <= CHEAP_SECONDS:
                pool.inline[thread].append(node)
            else:
                costly.append(node)
        if costly and not pool.inline[thread]:
            pool.inline[thread].append(costly.pop())
        pool.queues[thread].extendleft(costly)

    def _queue_message(self, node: int, output: int, device: str) -> None:
        link = (self._nodes[node].device, device)
        size_bytes = self._nodes[node].outputs[output].size_bytes if output >= 0 else 0
        self._free[link] = max(self._now, self._free[link]) + size_bytes / BYTES_PER_SECOND
        if output >= 0:
            self.events.append(Event(SEND, node, output, device))
        self._at(self._free[link] + MESSAGE_SECONDS, self._receive, node, output, device)

    def _receive(self, node: int, output: int, device: str) -> None:
        if output >= 0:
            self.events.append(Event(RECEIVED, node, output, device))
        pool = self._pools[self._memories[device]]
        for ready in self._made_ready(self._far[node, output, device]):
            pool.add(ready)
        self._wake(pool)


def events(
    nodes: Sequence[Node], *, memories: Mapping[str, str] | None = None, threads: int = 2, seed: int = 0
) -> list[Event]:
    """All that happens while the nodes run, in its order.

    Args:
      nodes: the operations, each after those that it needs.
      memories: {device: the memory that it uses}; None: each has its own. Devices of one memory share their threads.
      threads: of each memory, as TensorFlow's inter_op_parallelism_threads.
      seed: of what differs from step to step: how long each node takes, and where in the queues it begins.

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

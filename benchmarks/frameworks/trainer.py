"""The base of all frameworks' trainers: a step, and its timing."""

import abc
import resource
import time
from typing import Any

from benchmarks.networks import NETWORKS, Network, batch, initial_values

LEARNING_RATE = 0.01  # of plain gradient descent


class Trainer(abc.ABC):
    """A network with its weights and its one batch, ready to be trained by plain gradient descent."""

    def __init__(self, network: str, batch_size: int, seed: int, **options: Any) -> None:
        self.network: Network = NETWORKS[network]
        self.images, self.labels = batch(self.network, batch_size, seed)
        self._parameters = self.build(initial_values(self.network, seed), **options)

    @abc.abstractmethod
    def build(self, values: list[Any], **options: Any) -> int:
        """Build the framework's variant with these initial values, and return how many parameters it has."""

    @abc.abstractmethod
    def step(self) -> float:
        """One step; returns the loss before it."""

    def threads(self) -> str:
        """Return the number of threads that the framework uses, in words."""
        return "defaults: as many as cores"

    def describe(self) -> dict[str, Any]:
        """Return the facts that do not change from run to run."""
        return {"parameters": self._parameters, "threads": self.threads()}

    def run(self, steps: int) -> dict[str, Any]:
        """Take steps, and return the losses before them, seconds, and the largest memory so far."""
        wall, cpu = time.perf_counter(), time.process_time()
        losses = [float(self.step()) for _ in range(steps)]
        return {
            "wall_seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "losses": losses,
            "max_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

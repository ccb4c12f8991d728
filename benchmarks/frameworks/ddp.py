"""PyTorch's DistributedDataParallel over gloo: one rank, which a limited process runs."""

import time
from collections.abc import Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports] - the test extra does not have it
import torch.distributed  # pyright: ignore[reportMissingImports]

from benchmarks.frameworks.torch_nets import TorchTrainer
from benchmarks.frameworks.trainer import LEARNING_RATE


class _Slice(TorchTrainer):
    """Trains on one rank's part of the batch; the gradients are those of the mean over the whole batch."""

    def build(self, values: list[Any], *, batches: Sequence[int] = (), rank: int = 0, **options: Any) -> int:
        """As in TorchTrainer.

        Args:
          values: initial values.
          batches: images of each rank.
          rank: which is this one.
          **options: of TorchTrainer.
        """
        parameters = super().build(values, **options)
        torch.set_num_threads(1)
        part = slice(sum(batches[:rank]), sum(batches[: rank + 1]))
        self._whole = len(self._labels)
        self._images, self._labels = self._images[part], self._labels[part]
        self._ranks = len(batches)
        if self._ranks > 1:
            self._model = torch.nn.parallel.DistributedDataParallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)
        return parameters

    def step(self) -> float:
        """One step; returns this rank's part of the loss."""
        self._optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self._model(self._images), self._labels, reduction="sum") / self._whole
        (loss * self._ranks).backward()  # the gradients are averaged over the ranks
        self._optimizer.step()
        return loss.item()


class Rank:
    """One rank and the ways to divide the batch that it knows.

    Args:
      rank: its number.
      ranks: how many there are.
      port: of the rendezvous on this machine.
      network: a name in benchmarks.networks.NETWORKS.
      batch_size: images per step, of all ranks.
      seed: of the initial values, the images and the labels.
      channels_last: memory format of images and kernels.
    """

    def __init__(
        self, rank: int, ranks: int, port: int, network: str, batch_size: int, seed: int, channels_last: bool
    ) -> None:
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
        self._rank = rank
        self._arguments = {"network": network, "batch_size": batch_size, "seed": seed, "channels_last": channels_last}
        self._trainers: dict[str, _Slice] = {}

    def add(self, name: str, batches: list[int]) -> dict[str, Any]:
        """Builds a way to divide the batch; takes two steps. Returns this rank's part of the losses before them."""
        self._trainers[name] = _Slice(**self._arguments, batches=batches, rank=self._rank)
        return self.run(name, 2)

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Takes steps; returns seconds and this rank's part of the losses before them."""
        begin = time.perf_counter()
        losses = [self._trainers[name].step() for _ in range(steps)]
        return {"wall_seconds": time.perf_counter() - begin, "losses": losses}

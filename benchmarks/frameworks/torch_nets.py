"""The same networks in PyTorch: eager, with the channels last in memory, compiled, or by DistributedDataParallel."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports] - the test extra does not have it
import torch.distributed  # pyright: ignore[reportMissingImports]

from benchmarks.frameworks.trainer import LEARNING_RATE, Trainer
from benchmarks.networks import AvgPool, Conv, MaxPool
from mtf_hetero.layout.partition import split_by_share


def _cut(values: list[Any]) -> Any:
    return torch.from_numpy(values.pop(0))


class TorchTrainer(Trainer):
    """Trains as PyTorch's tutorials do."""

    def build(self, values: list[Any], *, channels_last: bool = False, compiled: bool = False) -> int:
        """Take Trainer's arguments; `channels_last`: a memory format; `compiled`: torch.compile."""
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        model: Any = torch.nn.Sequential(*self._layers(list(values)))
        images = torch.from_numpy(self.images).permute(0, 3, 1, 2)
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self._images = images.contiguous(memory_format=memory_format)
        model = model.to(memory_format=memory_format)
        self._labels = torch.from_numpy(self.labels).long()
        self._optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        self._model = torch.compile(model) if compiled else model
        return sum(parameter.numel() for parameter in model.parameters())

    def _layers(self, values: list[Any]) -> list[Any]:
        """Return the layers with their initial values, kernels in PyTorch's order of dimensions."""
        height, width, channels = self.network.image_shape
        layers: list[Any] = []
        inputs = 0
        for layer in self.network.layers:
            if isinstance(layer, (MaxPool, AvgPool)):
                layers.append(torch.nn.MaxPool2d(2) if isinstance(layer, MaxPool) else torch.nn.AvgPool2d(2))
                height, width = height // 2, width // 2
                continue
            if isinstance(layer, Conv):
                made: Any = torch.nn.Conv2d(channels, layer.filters, layer.size, padding="same", bias=layer.use_bias)
                kernel = _cut(values).permute(3, 2, 0, 1)
                channels = layer.filters
            else:
                kernel = _cut(values)
                if not inputs:  # flattened channels first
                    layers.append(torch.nn.Flatten())
                    kernel = kernel.reshape(height, width, channels, -1).permute(2, 0, 1, 3).flatten(0, 2)
                inputs = kernel.shape[0]
                made = torch.nn.Linear(inputs, layer.units)
                kernel = kernel.T
            with torch.no_grad():
                made.weight.copy_(kernel)
                if made.bias is not None:
                    made.bias.copy_(_cut(values))
            layers.append(made)
            if isinstance(layer, Conv) or layer.relu:
                layers.append(torch.nn.ReLU(inplace=True))
        return layers

    def step(self) -> float:
        self._optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def loss(self) -> Any:
        """Return the mean over the batch."""
        return torch.nn.functional.cross_entropy(self._model(self._images), self._labels)

    def threads(self) -> str:
        return f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between operations"


class DistributedSlice(TorchTrainer):
    """Trains on one rank's part of the batch, where each rank has so many images."""

    def build(self, values: list[Any], *, batches: Sequence[int] = (), rank: int = 0, **options: Any) -> int:
        """Take TorchTrainer's options too."""
        parameters = super().build(values, **options)
        torch.set_num_threads(1)
        part = slice(sum(batches[:rank]), sum(batches[: rank + 1]))
        self._weight = len(batches) / len(self._labels)  # the gradients are averaged over the ranks
        self._images, self._labels = self._images[part], self._labels[part]
        self._ranks = len(batches)
        if self._ranks > 1:
            self._model = torch.nn.parallel.DistributedDataParallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)
        return parameters

    def loss(self) -> Any:
        """Return the mean over the whole batch of this rank's images, times the ranks."""
        outputs = self._model(self._images)
        return torch.nn.functional.cross_entropy(outputs, self._labels, reduction="sum") * self._weight

    def step(self) -> float:
        return super().step() / self._ranks

    def save(self, path: pathlib.Path, step: int) -> None:
        """Save a checkpoint, which takes the place of the last one once it is complete."""
        made = path.with_suffix(".new")
        torch.save({"step": step, "model": self._whole().state_dict()}, made)
        made.replace(path)

    def load(self, path: pathlib.Path) -> int:
        """Load a checkpoint; returns its step."""
        saved = torch.load(path)
        self._whole().load_state_dict(saved["model"])
        return saved["step"]

    def _whole(self) -> Any:
        return self._model.module if self._ranks > 1 else self._model


class Rank:
    """One rank of DistributedDataParallel over gloo, and the ways to divide the batch that it knows."""

    def __init__(self, rank: int, addresses: Sequence[str], batch_size: int, **arguments: Any) -> None:
        join(rank, addresses)
        self._batch_size = batch_size
        self._arguments = {**arguments, "batch_size": batch_size, "rank": rank}
        self._trainers: dict[str, DistributedSlice] = {}

    def add(self, name: str, shares: Sequence[float]) -> dict[str, Any]:
        """Build a way to split the batch, and return its sizes."""
        batches = list(split_by_share(self._batch_size, shares))
        self._trainers[name] = DistributedSlice(**self._arguments, batches=batches)
        return {"sizes": {"batch": batches}}

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Take steps, and return seconds and this rank's part of the losses before them."""
        return self._trainers[name].run(steps)


def join(rank: int, addresses: Sequence[str]) -> None:
    """Join the group of ranks, whose rendezvous is at the first address, and wait until all are connected."""
    group = {"init_method": f"tcp://{addresses[0]}", "rank": rank, "world_size": len(addresses)}
    torch.distributed.init_process_group("gloo", **group)
    torch.distributed.barrier()

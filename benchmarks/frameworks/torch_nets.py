"""The same networks in PyTorch: eager, with the channels last in memory, or compiled."""

import os
from typing import Any

import torch  # pyright: ignore[reportMissingImports] - the test extra does not have it

from benchmarks.frameworks.trainer import LEARNING_RATE, Trainer
from benchmarks.networks import AvgPool, Conv, MaxPool


def _cut(values: list[Any]) -> Any:
    return torch.from_numpy(values.pop(0))


class TorchTrainer(Trainer):
    """Trains as PyTorch's tutorials do."""

    def build(self, values: list[Any], *, channels_last: bool = False, compiled: bool = False) -> int:
        """As in Trainer; `channels_last`: memory format of images and kernels; `compiled`: torch.compile."""
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
        """The layers with their initial values, kernels in PyTorch's order of dimensions."""
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
        loss = torch.nn.functional.cross_entropy(self._model(self._images), self._labels)
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def threads(self) -> str:
        return f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between operations"

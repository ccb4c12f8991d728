"""A rank of PyTorch's DistributedDataParallel that trains on images in files, which a DataLoader reads."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports] - the test extra does not have it
import torch.distributed  # pyright: ignore[reportMissingImports]
from PIL import Image
from torch.utils import data  # pyright: ignore[reportMissingImports]

from benchmarks.frameworks.reading import CLASSES, RATE, Problem
from benchmarks.frameworks.slow_link import sent_bytes
from benchmarks.frameworks.torch_nets import join
from benchmarks.frameworks.torch_stages import resnet50


class Rank:
    """One rank, which reads its own images."""

    def __init__(self, rank: int, addresses: Sequence[str], **problem: Any) -> None:
        join(rank, addresses)
        torch.set_num_threads(1)
        self._problem = Problem(**problem)

    def run(self, epochs: int, loaders: int) -> dict[str, Any]:
        """Train; returns the seconds, the bytes sent and this rank's part of the loss of each epoch.

        Args:
          epochs: how many.
          loaders: processes that read and decode the images; 0: this process does.
        """
        model = torch.nn.parallel.DistributedDataParallel(self._make_model().to(memory_format=torch.channels_last))
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        images, ranks = _Images(self._problem), torch.distributed.get_world_size()
        options = {"num_workers": loaders, "persistent_workers": loaders > 0}
        sampler = data.DistributedSampler(images, shuffle=False)
        batches = data.DataLoader(images, self._problem.batch_size // ranks, sampler=sampler, **options)
        found: dict[str, list[float]] = {"seconds": [], "sent_bytes": [], "losses": []}
        for _ in range(epochs):
            begin, sent, losses = time.perf_counter(), sent_bytes(), []
            for pixels, labels in batches:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(pixels.permute(0, 3, 1, 2) / 255), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item() / ranks)
            found["losses"].append(float(np.mean(losses)))
            found["seconds"].append(time.perf_counter() - begin)
            found["sent_bytes"].append(sent_bytes() - sent)
        return found

    def _make_model(self) -> Any:
        """Return the network; the one of a convolution has Keras's initial weights."""
        if self._problem.network != "convolution":
            torch.manual_seed(self._problem.seed)
            return torch.nn.Sequential(*resnet50(CLASSES))
        kernel, before, matrix, bias = map(torch.from_numpy, self._problem.make_model().get_weights())
        convolution, dense = torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.Linear(*matrix.shape)
        with torch.no_grad():
            convolution.weight.copy_(kernel.permute(3, 2, 0, 1))
            convolution.bias.copy_(before)
            dense.weight.copy_(matrix.T)
            dense.bias.copy_(bias)
        return torch.nn.Sequential(convolution, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), dense)


class _Images(data.Dataset):
    """Images and labels."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._labels = problem, problem.labels()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(self._problem.path(index)) as image:
            return np.asarray(image), int(self._labels[index])

"""The networks of `frameworks.stages` in PyTorch: alone, by DistributedDataParallel, and by its pipelines (1F1B)."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports] - the test extra does not have it
import torch.distributed  # pyright: ignore[reportMissingImports]
from torch.distributed import pipelining  # pyright: ignore[reportMissingImports]

from benchmarks.frameworks import ranks
from benchmarks.frameworks.torch_nets import join
from benchmarks.networks import STAGED, Staged
from mtf_hetero.layout.partition import split_by_share

ALONE, BATCH, STAGES = "alone", "batch", "stages"
_RATE = 1e-3  # of learning
_SLOTS = (4, 8)  # microbatches that are tried
_MOVED = (-1, 0, 1)  # layers by which the cut that measured times suggest is moved
_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # filters; 0: a pool
_RESNET50 = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # filters, blocks and stride of a stage
nn = torch.nn


class Ranks(ranks.Ranks):
    """The ranks of a network of benchmarks.networks.STAGED, and the ways that they compare."""

    def __init__(self, network: str, fractions: Sequence[float], **options: Any) -> None:
        self._batch_size, self._fractions = STAGED[network].batch_size, list(fractions)
        super().__init__(f"{__name__}:Rank", fractions, network=network, **options)

    def find(self) -> dict[str, dict[str, Any]]:
        """Return the ways to compare: {name: arguments of `add`}; cut and microbatches are the best of some."""
        batches = list(split_by_share(self._batch_size, self._fractions))
        found = {"PyTorch, alone": {"kind": ALONE}, "PyTorch DDP": {"kind": BATCH, "batches": batches}}
        seconds = self.ask("layer_seconds")[0]
        total, share = sum(seconds), self._fractions[0] / sum(self._fractions)
        until = list(itertools.accumulate(seconds))
        cut = 1 + min(range(len(until) - 1), key=lambda number: abs(until[number] - share * total))
        tried = []
        for moved, slots in itertools.product(_MOVED, _SLOTS):
            if 0 < cut + moved < len(seconds):
                arguments = {"kind": STAGES, "cut": cut + moved, "slots": slots}
                self.add("trial", **arguments)
                tried.append((self.run(name="trial", steps=1)["wall_seconds"], arguments))
        return {**found, "PyTorch pipeline": min(tried, key=lambda pair: pair[0])[1]}


class Rank:
    """One rank: its part of each way."""

    def __init__(self, network: str, rank: int, addresses: Sequence[str], seed: int) -> None:
        join(rank, addresses)
        torch.set_num_threads(1)
        self._rank, self._ranks, self._seed = rank, len(addresses), seed
        self._network, self._about = network, STAGED[network]
        inputs, labels = map(torch.from_numpy, self._about.batch(seed))
        self._inputs = (
            inputs.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last) if self._about.size else inputs
        )
        self._labels = labels.long()
        self._ways: dict[str, Any] = {}

    def layer_seconds(self) -> list[float]:
        """Return the seconds of each layer, forward and backward, on the first rank; none on others."""
        if self._rank:
            return []
        layers, seconds = self._layers(), list[float]()
        for turn in range(2):
            x, outputs = self._inputs, []
            forward, backward = [], []
            for number, layer in enumerate(layers):
                begin, given = time.perf_counter(), x.detach().requires_grad_(number > 0)
                x = layer(given)
                forward.append(time.perf_counter() - begin)
                outputs.append((given, x))
            gradient = torch.ones_like(x)
            for given, made in reversed(outputs):
                begin = time.perf_counter()
                made.backward(gradient)
                gradient = given.grad
                backward.append(time.perf_counter() - begin)
            if turn:  # the first one is slow
                seconds = [a + b for a, b in zip(forward, reversed(backward), strict=True)]
        return seconds

    def add(self, name: str, kind: str, batches: Sequence[int] = (), cut: int = 0, slots: int = 1) -> None:
        """Build a way: alone, with the batch so divided, or with stages that are cut before a layer."""
        layers = self._layers()
        if kind == STAGES:
            own = [*layers[:cut], _Contiguous()] if self._rank == 0 else [_Contiguous(), *layers[cut:]]
            self._ways[name] = self._pipeline(nn.Sequential(*own), slots)
        elif kind == BATCH:
            part = slice(sum(batches[: self._rank]), sum(batches[: self._rank + 1]))
            model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
            self._ways[name] = self._steps(model, part, len(batches) / self._about.batch_size, len(batches))
        else:
            self._ways[name] = self._steps(nn.Sequential(*layers), slice(None), 1 / self._about.batch_size, 1)
            if self._rank:
                self._ways[name] = itertools.repeat(0.0)

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Take steps, and return seconds and this rank's part of the losses before them."""
        torch.distributed.barrier()
        begin = time.perf_counter()
        losses = [next(self._ways[name]) for _ in range(steps)]
        return {"wall_seconds": time.perf_counter() - begin, "losses": losses}

    def _steps(self, model: Any, part: slice, weight: float, count: int) -> Iterator[float]:
        """Take a step for each loss; DistributedDataParallel gives all the mean of the ranks' gradients."""
        optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
        inputs, labels = self._inputs[part], self._labels[part]
        tokens = labels.numel() // len(labels)
        while True:
            optimizer.zero_grad()
            loss = _cross_entropy(model(inputs), labels, "sum") * (weight / tokens)
            loss.backward()
            optimizer.step()
            yield loss.item() / count

    def _pipeline(self, model: Any, slots: int) -> Iterator[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
        stage = pipelining.PipelineStage(model, self._rank, self._ranks, torch.device("cpu"))
        schedule = pipelining.Schedule1F1B(stage, slots, loss_fn=lambda y, labels: _cross_entropy(y, labels, "mean"))
        while True:
            optimizer.zero_grad()
            losses: list[Any] = []
            if self._rank == 0:
                schedule.step(self._inputs)
            else:
                schedule.step(target=self._labels, losses=losses)
            optimizer.step()
            yield float(sum(loss.item() for loss in losses) / slots)

    def _layers(self) -> list[Any]:
        torch.manual_seed(self._seed)
        if not self._about.size:
            return list(_transformer(self._about))
        layers = list(_vgg16() if self._network == "VGG16" else resnet50(self._about.classes))
        return [layer.to(memory_format=torch.channels_last) for layer in layers]


def _cross_entropy(outputs: Any, labels: Any, reduction: str) -> Any:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction=reduction)


class _Contiguous(nn.Module):
    """Makes activations and their gradients contiguous, as gloo needs them."""

    def forward(self, x: Any) -> Any:
        return _MakeContiguous.apply(x)


class _MakeContiguous(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        return x.contiguous()

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient.contiguous()


class _Tokens(nn.Module):
    def __init__(self, about: Staged) -> None:
        super().__init__()
        self.tokens = nn.Embedding(about.classes, about.width)
        self.positions = nn.Parameter(torch.randn(about.length, about.width))

    def forward(self, x: Any) -> Any:
        return self.tokens(x) + self.positions


def _transformer(about: Staged) -> Iterator[Any]:
    yield _Tokens(about)
    for _ in range(about.layers):
        yield nn.TransformerEncoderLayer(
            about.width, about.heads, about.hidden, dropout=0.0, batch_first=True, norm_first=True
        )
    yield nn.Sequential(nn.LayerNorm(about.width), nn.Linear(about.width, about.classes))


def _vgg16() -> Iterator[Any]:
    before = 3
    for filters in _VGG16:
        if filters:
            yield nn.Sequential(nn.Conv2d(before, filters, 3, padding=1), nn.ReLU(inplace=True))
        else:
            yield nn.MaxPool2d(2)
        before = filters or before
    yield nn.Sequential(nn.Flatten(), nn.Linear(before, 4096), nn.ReLU(inplace=True))
    yield nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(inplace=True))
    yield nn.Linear(4096, 1000)


class _Block(nn.Module):
    """A bottleneck of ResNet-50."""

    def __init__(self, before: int, filters: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *_convolution(before, filters, 1, stride),
            nn.ReLU(inplace=True),
            *_convolution(filters, filters, 3, 1),
            nn.ReLU(inplace=True),
            *_convolution(filters, 4 * filters, 1, 1),
        )
        is_same = before == 4 * filters and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*_convolution(before, 4 * filters, 1, stride))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.path(x) + self.shortcut(x))


def _convolution(before: int, filters: int, size: int, stride: int) -> tuple[Any, Any]:
    return nn.Conv2d(before, filters, size, stride, size // 2), nn.BatchNorm2d(filters)


def resnet50(classes: int) -> Iterator[Any]:
    """Yield the layers of ResNet-50."""
    yield nn.Sequential(*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    before = 64
    for filters, blocks, stride in _RESNET50:
        for number in range(blocks):
            yield _Block(before, filters, stride if number == 0 else 1)
            before = 4 * filters
    yield nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))

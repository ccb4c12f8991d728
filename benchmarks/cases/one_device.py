"""One device: a training step of mtf_hetero beside stock Mesh-TensorFlow, Keras 3 and PyTorch.

    python -m benchmarks.run one_device

All train the same network from the same initial values on the same batch by plain gradient descent. A contender whose
losses before and after the first step are not mtf_hetero's is not timed, and its row says so. Each lives in a process
of its own, which sleeps while another is timed; every repeat times all of them in a new random order. Two more
processes time a large product and a large convolution: what the machine can do.

Time: about 50 minutes on two cores. Expected: mtf_hetero at most as slow as stock Mesh-TensorFlow, by its native
gradients of relu and pooling, and near Keras, which runs the same kernels.
"""

import contextlib
import dataclasses
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from benchmarks.cases.base import Case, progress
from benchmarks.process import Child, ChildError
from benchmarks.rows import Writer, summarise

OURS = "mtf_hetero"
_CHECKED_STEPS = 2
_TOLERANCE = 1e-4  # relative, of the losses before and after the first step: float32, summed in another order


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to train: the class in a child process, its options, and whether it trains at all or shows the peak."""

    target: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_peak: bool = False


_MESH, _KERAS, _TORCH, _PEAK = (
    f"benchmarks.frameworks.{name}"
    for name in ("mesh_nets:MeshTrainer", "keras_nets:KerasTrainer", "torch_nets:TorchTrainer", "peak:Peak")
)
CONTENDERS: Mapping[str, Contender] = MappingProxyType(
    {
        OURS: Contender(_MESH),
        "stock mtf": Contender(_MESH, {"stock": True}),
        "Keras": Contender(_KERAS),
        "Keras, jit auto": Contender(_KERAS, {"jit_compile": "auto"}),
        "PyTorch": Contender(_TORCH),
        "PyTorch, channels last": Contender(_TORCH, {"channels_last": True}),
        "PyTorch, compiled": Contender(_TORCH, {"compiled": True}),
        "peak: matmul": Contender(_PEAK, {"operation": "matmul"}, is_peak=True),
        "peak: conv": Contender(_PEAK, {"operation": "conv"}, is_peak=True),
    }
)


@dataclasses.dataclass(frozen=True)
class OneDevice(Case):
    """The case.

    Args:
      repeats: how often each contender is timed.
      steps: training steps per timing.
      warmup: training steps before the first timing, after those whose losses are compared.
      networks: names in benchmarks.networks.NETWORKS.
      batch_sizes: images per step.
      contenders: names in CONTENDERS.
    """

    name: ClassVar[str] = "one_device"
    summary: ClassVar[str] = "seconds per training step on one device, beside stock mtf, Keras and PyTorch"

    repeats: int = 7
    steps: int = 2
    warmup: int = 1
    networks: tuple[str, ...] = ("paper_cifar", "vgg16")
    batch_sizes: tuple[int, ...] = (64, 256)
    contenders: tuple[str, ...] = tuple(CONTENDERS)

    def variants(self) -> tuple[str, ...]:
        return tuple(f"{network}/{batch_size}" for network in self.networks for batch_size in self.batch_sizes)

    def make_toy(self) -> "OneDevice":
        small = (OURS, "stock mtf", "Keras", "PyTorch")  # the others only take longer
        return dataclasses.replace(
            self, toy=True, repeats=2, steps=1, networks=("toy", "toy_vgg"), batch_sizes=(4,), contenders=small
        )

    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        with progress(len(variants) * (self.repeats + 2) * len(self.contenders), "timings") as bar:
            for variant in variants:
                network, batch_size = variant.rsplit("/", 1)
                _Group(self, network, int(batch_size), bar).measure(writer)


class _Group:
    """The contenders on one network and batch size, each in its process."""

    def __init__(self, case: OneDevice, network: str, batch_size: int, bar: Any) -> None:
        self._case = case
        self._network = network
        self._batch_size = batch_size
        self._bar = bar
        self._children: dict[str, Child] = {}
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._failures: dict[str, str] = {}
        self._timings: dict[str, list[dict[str, Any]]] = {}

    def measure(self, writer: Writer) -> None:
        """Starts and checks all contenders, times them in turns, and writes one row for each."""
        with contextlib.ExitStack() as stack:
            for name in self._case.contenders:
                self._start(name, stack)
            self._check_losses()
            self._warm_up()
            rng = random.Random(self._case.seed)
            for _ in range(self._case.repeats):
                for name in rng.sample(sorted(self._children), len(self._children)):
                    self._timings.setdefault(name, []).append(self._time(name))
        for name in self._case.contenders:
            writer.write(f"{self._network}/{self._batch_size}/{name}", self._row(name))

    def _say(self, name: str) -> None:
        self._bar.set_description(f"{self._network}, batch {self._batch_size}, {name}")
        self._bar.update()

    def _start(self, name: str, stack: contextlib.ExitStack) -> None:
        self._say(name)
        contender = CONTENDERS[name]
        arguments = {
            "network": self._network,
            "batch_size": self._batch_size,
            "seed": self._case.seed,
            **contender.options,
        }
        try:
            child = stack.enter_context(Child(contender.target, arguments))
            self._descriptions[name] = child.call("describe")
            if not contender.is_peak:
                self._descriptions[name]["losses"] = child.call("run", steps=_CHECKED_STEPS)["losses"]
            self._children[name] = child
        except ChildError as error:  # a framework that is not installed, or that cannot do this here
            if name == OURS:
                raise ChildError(f"{name} on {self._network}: {error}") from error
            self._failures[name] = str(error)

    def _check_losses(self) -> None:
        """Takes out the contenders that train another network, or train it wrongly."""
        ours = self._descriptions[OURS]
        for name in [name for name in self._children if not CONTENDERS[name].is_peak]:
            theirs = self._descriptions[name]
            pairs = zip(theirs["losses"], ours["losses"], strict=True)
            if theirs["parameters"] != ours["parameters"] or any(abs(a - b) > _TOLERANCE * abs(b) for a, b in pairs):
                self._failures[name] = (
                    f"it does not train as {OURS} does: {theirs['parameters']:,} parameters and losses "
                    f"{theirs['losses']}, instead of {ours['parameters']:,} and {ours['losses']}"
                )
                self._children.pop(name).close()

    def _warm_up(self) -> None:
        for name, child in self._children.items():
            self._say(name)
            if self._case.warmup:
                child.call("run", steps=self._case.warmup)

    def _time(self, name: str) -> dict[str, Any]:
        """Times a contender, and how much processor time the others, who should sleep, have used meanwhile."""
        self._say(name)
        others = [child for other, child in self._children.items() if other != name]
        before = sum(child.cpu_seconds() for child in others)
        timing = self._children[name].call("run", steps=self._case.steps)
        idle = sum(child.cpu_seconds() for child in others) - before
        return {
            "wall": timing["wall_seconds"] / self._case.steps,
            "cpu": timing["cpu_seconds"] / self._case.steps,
            "others_cpu_share": idle / timing["wall_seconds"],
            "max_memory_bytes": timing["max_memory_bytes"],
        }

    def _row(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = {
            "network": self._network,
            "batch_size": self._batch_size,
            "contender": name,
            "devices": ["cpu:0"],
            "shares": None,
            "layout": None,
            "seed": self._case.seed,
            "warmup": self._case.warmup + _CHECKED_STEPS,
            "steps": self._case.steps,
            "repeats": self._case.repeats,
        }
        if name in self._failures:
            return {**row, "failed": self._failures[name]}
        description, timings = self._descriptions[name], self._timings[name]
        flops = description.get("flops_per_step") or self._descriptions[OURS]["flops_per_step"]
        for clock in ("wall", "cpu"):
            seconds = [timing[clock] for timing in timings]
            row[f"{clock}_seconds_per_step"] = {**summarise(seconds), "all": seconds}
            if not CONTENDERS[name].is_peak:
                ours = [timing[clock] for timing in self._timings[OURS]]
                row[f"{clock}_ratio"] = summarise(mine / our for mine, our in zip(seconds, ours, strict=True))
        return {
            **row,
            **description,
            "flops_per_step": flops,
            "gflops_per_second": flops / 1e9 / row["wall_seconds_per_step"]["median"],
            "others_cpu_share": max(timing["others_cpu_share"] for timing in timings),
            "max_memory_bytes": max(timing["max_memory_bytes"] for timing in timings),
        }

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
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

from benchmarks.harness import LOSS_TOLERANCE, Case, Part, loss_error, take_turns
from benchmarks.process import Child, ChildError
from benchmarks.rows import Writer, summarise

OURS = "mtf_hetero"
_CHECKED_STEPS = 2


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
    unit: ClassVar[str] = "timings"

    repeats: int = 7
    steps: int = 2
    warmup: int = 1
    networks: tuple[str, ...] = ("paper_cifar", "vgg16")
    batch_sizes: tuple[int, ...] = (64, 256)
    contenders: tuple[str, ...] = tuple(CONTENDERS)

    def make_toy(self) -> Self:
        small = (OURS, "stock mtf", "Keras", "PyTorch")  # the others only take longer
        return dataclasses.replace(
            self, toy=True, repeats=2, steps=1, networks=("toy", "toy_vgg"), batch_sizes=(4,), contenders=small
        )

    @property
    def units(self) -> int:
        return (self.repeats + 2) * len(self.contenders)

    def parts(self) -> Mapping[str, Part]:
        pairs = itertools.product(self.networks, self.batch_sizes)
        return {f"{network}/{size}": functools.partial(self._measure, network, size) for network, size in pairs}

    def _measure(self, network: str, batch_size: int, writer: Writer, bar: Any) -> None:
        """Starts and checks all contenders, times them in turns, and writes one row for each."""

        def report(name: str) -> None:
            bar.set_description(f"{network}, batch {batch_size}, {name}")
            bar.update()

        with contextlib.ExitStack() as stack:
            common = {"network": network, "batch_size": batch_size, "seed": self.seed}
            group = _Group(self.contenders, common, stack, report)
            for name, child in group.children.items():
                report(name)
                if self.warmup:
                    child.call("run", steps=self.warmup)
            ways = {name: functools.partial(group.time, name, self.steps) for name in group.children}
            timings = take_turns(ways, self.repeats, self.seed)
        warmup = self.warmup + _CHECKED_STEPS
        about = {**self.columns(warmup=warmup), **common, "devices": ["cpu:0"], "layout": None}
        for name in self.contenders:
            values = {"failed": group.failures[name]} if name in group.failures else group.row(name, timings)
            writer.write(f"{network}/{batch_size}/{name}", {**about, "contender": name, **values})


class _Group:
    """The contenders on one network and batch size, each in its process; those that train alike are kept.

    Args:
      contenders: names in CONTENDERS.
      common: network, batch size and seed.
      stack: ends the processes.
      report: is told which contender starts.
    """

    def __init__(
        self,
        contenders: Sequence[str],
        common: Mapping[str, Any],
        stack: contextlib.ExitStack,
        report: Callable[[str], None],
    ) -> None:
        self.children: dict[str, Child] = {}
        self.failures: dict[str, str] = {}
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._report = report
        for name in contenders:
            report(name)
            contender = CONTENDERS[name]
            try:
                child = stack.enter_context(Child(contender.target, {**common, **contender.options}))
                self._descriptions[name] = child.call("describe")
                if not contender.is_peak:
                    self._descriptions[name]["losses"] = child.call("run", steps=_CHECKED_STEPS)["losses"]
                self.children[name] = child
            except ChildError as error:  # a framework that is not installed, or that cannot do this here
                if name == OURS:
                    raise ChildError(f"{name} on {common['network']}: {error}") from error
                self.failures[name] = str(error)
        for name in [name for name in self.children if not CONTENDERS[name].is_peak]:
            self._check(name)

    def _check(self, name: str) -> None:
        """Takes out a contender that trains another network, or trains it wrongly."""
        ours, theirs = self._descriptions[OURS], self._descriptions[name]
        alike = theirs["parameters"] == ours["parameters"]
        if not alike or loss_error(theirs["losses"], ours["losses"]) > LOSS_TOLERANCE:
            self.failures[name] = (
                f"it does not train as {OURS} does: {theirs['parameters']:,} parameters and losses "
                f"{theirs['losses']}, instead of {ours['parameters']:,} and {ours['losses']}"
            )
            self.children.pop(name).close()

    def time(self, name: str, steps: int) -> dict[str, Any]:
        """Times a contender, and how much processor time the others, who should sleep, have used meanwhile."""
        self._report(name)
        others = [child for other, child in self.children.items() if other != name]
        before = sum(child.cpu_seconds() for child in others)
        timing = self.children[name].call("run", steps=steps)
        idle = sum(child.cpu_seconds() for child in others) - before
        return {
            "wall": timing["wall_seconds"] / steps,
            "cpu": timing["cpu_seconds"] / steps,
            "others_cpu_share": idle / timing["wall_seconds"],
            "max_memory_bytes": timing["max_memory_bytes"],
        }

    def row(self, name: str, timings: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """What was measured of a contender, beside ours."""
        description = self._descriptions[name]
        flops = description.get("flops_per_step") or self._descriptions[OURS]["flops_per_step"]
        row: dict[str, Any] = {**description, "flops_per_step": flops}
        for clock in ("wall", "cpu"):
            seconds = [timing[clock] for timing in timings[name]]
            row[f"{clock}_seconds_per_step"] = {**summarise(seconds), "all": seconds}
            if not CONTENDERS[name].is_peak:
                ours = [timing[clock] for timing in timings[OURS]]
                row[f"{clock}_ratio"] = summarise(mine / our for mine, our in zip(seconds, ours, strict=True))
        row["gflops_per_second"] = flops / 1e9 / row["wall_seconds_per_step"]["median"]
        for column in ("others_cpu_share", "max_memory_bytes"):
            row[column] = max(timing[column] for timing in timings[name])
        return row

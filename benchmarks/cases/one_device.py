"""One device: a training step of mtf_hetero beside stock Mesh-TensorFlow, Keras 3 and PyTorch; and where its time goes.

    python -m benchmarks.run one_device

All train the same network from the same initial values on the same batch by plain gradient descent. A contender must
have mtf_hetero's losses before and after the first step; otherwise it is not timed, and its row says so. Each runs in a
process of its own, which sleeps while another is timed. Every repeat times all of them in a new random order. Two more
processes time a large product and a large convolution, for the peak rate of the machine.

Time: about a quarter of an hour on two cores. Expected: mtf_hetero is at least as fast as stock Mesh-TensorFlow, thanks
to its native gradients of relu and pooling, and close to Keras, which runs the same kernels.

    python -m benchmarks.run accounting

TensorFlow's own trace of whole steps: the sum of the seconds of all operations of a kind. Operations that run side by
side both count, so the sum may exceed the step; tracing slows a step a little.

Time: one minute on two cores. Expected: most of the time is in convolutions. The difference from stock Mesh-TensorFlow
is in the gradients of relu and pooling.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from benchmarks.child import Child, ChildError
from benchmarks.harness import CHECKED_STEPS, LOSS_TOLERANCE, Case, Part, loss_error, take_turns
from benchmarks.rows import Writer, summarise

OURS = "mtf_hetero"
LOWERINGS = {OURS: False, "stock mtf": True}


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to train: the class in a child process, its options, and whether it trains at all or shows the peak."""

    target: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_peak: bool = False


_MESH, _KERAS, _TORCH, _PEAK = (
    f"benchmarks.frameworks.{name}"
    for name in ("mesh_nets:MeshTrainer", "keras_nets:KerasTrainer", "torch_nets:TorchTrainer", "mesh_nets:Peak")
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
class _OnOneDevice(Case):
    """Measures each network, a name in benchmarks.networks.NETWORKS, at each batch size."""

    networks: tuple[str, ...] = ("paper_cifar", "vgg16")
    batch_sizes: tuple[int, ...] = (64, 256)  # images per step

    def parts(self) -> Mapping[str, Part]:
        parts = {}
        for network, size in itertools.product(self.networks, self.batch_sizes):
            common = {"network": network, "batch_size": size, "seed": self.seed}
            parts[f"{network}/{size}"] = functools.partial(self.measure_network, f"{network}/{size}", common)
        return parts

    def measure_network(self, variant: str, common: Mapping[str, Any], writer: Writer, bar: Any) -> None:
        """Write the rows of a network, whose trainers have these arguments in common."""


@dataclasses.dataclass(frozen=True)
class OneDevice(_OnOneDevice):
    """The case that is timed."""

    name: ClassVar[str] = "one_device"
    summary: ClassVar[str] = "step times beside stock mtf, Keras and PyTorch"
    minutes: ClassVar[float] = 13
    unit: ClassVar[str] = "timings"
    small: ClassVar[Mapping[str, Any]] = {
        "repeats": 2,
        "steps": 1,
        "networks": ("toy", "toy_vgg"),
        "batch_sizes": (4,),
        "contenders": (OURS, "stock mtf", "Keras", "PyTorch"),  # the others only take longer
    }

    repeats: int = 7  # how often each contender is timed
    steps: int = 2  # training steps per timing
    warmup: int = 1  # training steps before the first timing, after those whose losses are compared
    contenders: tuple[str, ...] = tuple(CONTENDERS)

    @property
    def units(self) -> int:
        return (self.repeats + 2) * len(self.contenders)

    def measure_network(self, variant: str, common: Mapping[str, Any], writer: Writer, bar: Any) -> None:
        """Start and check all contenders, time them in turns, and write one row for each."""
        with contextlib.ExitStack() as stack:
            group = _Group(self.contenders, common, stack, bar)
            for child in group.children.values():
                bar.update()
                if self.warmup:
                    child.call("run", steps=self.warmup)
            ways = {name: functools.partial(group.time, name, self.steps) for name in group.children}
            timings = take_turns(ways, self.repeats, self.seed)
        about = {**self.columns(warmup=self.warmup + CHECKED_STEPS), **common, "devices": ["cpu:0"], "layout": None}
        for name in self.contenders:
            values = {"failed": group.failures[name]} if name in group.failures else group.row(name, timings)
            writer.write(f"{variant}/{name}", {**about, "contender": name, **values})


class _Group:
    """The contenders on one network and batch size, each in its process; those that train alike are kept."""

    def __init__(
        self, contenders: Sequence[str], common: Mapping[str, Any], stack: contextlib.ExitStack, bar: Any
    ) -> None:
        self.children: dict[str, Child] = {}
        self.failures: dict[str, str] = {}
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._bar = bar
        for name in contenders:
            bar.update()
            contender = CONTENDERS[name]
            try:
                child = stack.enter_context(Child(contender.target, {**common, **contender.options}))
                self._descriptions[name] = child.call("describe")
                if not contender.is_peak:
                    self._descriptions[name]["losses"] = child.call("run", steps=CHECKED_STEPS)["losses"]
                self.children[name] = child
            except ChildError as error:  # a framework that is not installed, or that cannot do this here
                if name == OURS:
                    raise ChildError(f"{name} on {common['network']}: {error}") from error
                self.failures[name] = str(error)
        for name in [name for name in self.children if not CONTENDERS[name].is_peak]:
            self._check(name)

    def _check(self, name: str) -> None:
        """Take out a contender that trains another network, or trains it wrongly."""
        ours, theirs = self._descriptions[OURS], self._descriptions[name]
        alike = theirs["parameters"] == ours["parameters"]
        if not alike or loss_error(theirs["losses"], ours["losses"]) > LOSS_TOLERANCE:
            self.failures[name] = (
                f"it does not train as {OURS} does: {theirs['parameters']:,} parameters and losses "
                f"{theirs['losses']}, instead of {ours['parameters']:,} and {ours['losses']}"
            )
            self.children.pop(name).close()

    def time(self, name: str, steps: int) -> dict[str, Any]:
        """Time a contender, and measure the processor time of the others, which should sleep."""
        self._bar.set_description(name)
        self._bar.update()
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
        """Return the measurements of a contender, beside ours."""
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


@dataclasses.dataclass(frozen=True)
class Accounting(_OnOneDevice):
    """The case that is traced."""

    name: ClassVar[str] = "accounting"
    summary: ClassVar[str] = "time of each kind of operation on one device"
    minutes: ClassVar[float] = 1
    unit: ClassVar[str] = "steps"
    small: ClassVar[Mapping[str, Any]] = {"repeats": 2, "warmup": 1, "networks": ("toy_vgg",), "batch_sizes": (4,)}

    repeats: int = 5  # traced steps
    warmup: int = 3  # steps before them
    batch_sizes: tuple[int, ...] = (64,)

    @property
    def units(self) -> int:
        return len(LOWERINGS) * self.repeats

    def measure_network(self, variant: str, common: Mapping[str, Any], writer: Writer, bar: Any) -> None:
        for name, stock in LOWERINGS.items():
            accounts = []
            with Child(_MESH, {**common, "stock": stock}) as child:
                child.call("run", steps=self.warmup)
                for _ in range(self.repeats):
                    accounts.append(child.call("account"))
                    bar.update()
            kinds = sorted({kind for account in accounts for kind in account["kinds"]})
            values = {
                "lowering": name,
                "devices": ["cpu:0"],
                "layout": "none: one device",
                "step_seconds": summarise(account["step_seconds"] for account in accounts),
                "operations": accounts[0]["operations"],
                "kinds": {kind: summarise(account["kinds"].get(kind, 0.0) for account in accounts) for kind in kinds},
            }
            writer.write(f"{variant}/{name}", {**self.columns(steps=1), **common, **values})

"""Cases in which a model trains in pieces, with a test after each.

    python -m benchmarks.run learning_curve --data_dir=...

The paper's CIFAR-10 network at 70, 25, 5 on three devices, and on one. Both runs begin with the same initial values and
read the same images in the same order, with the paper's batch size and optimizer. The data is CIFAR-10 as
tensorflow-datasets prepares it in --data_dir (~/tensorflow_datasets by default).

Time: about an hour on two cores. Expected: the two curves agree at first. Float32 sums are in another order, and
training amplifies the difference. After some hundred steps they differ as two runs of one program on two machines do.

    python -m benchmarks.run cluster_curve --data_dir=...

The same network on workers of unequal speed, in every layout, and on one. Each worker is a process with a core, or less
by a CPU quota of the kernel. Each run is that of `mtf-hetero train --local_cluster=1.0,0.5 --layout=batch
--list_speed=2,1`. Steps are those of plain gradient descent, which amplifies the differences between two orders of a
float32 sum less than Adafactor does. On the same workers a smaller network then trains in float64, where no such
difference is visible.

Time: about eight minutes on two cores. Expected: the curves agree. The float32 losses of a step agree within 1e-4 for
five steps and within some per cent at the end, and the float64 losses within 1e-10.

    python -m benchmarks.run cosmology

A small CosmoFlow predicts the parameters of simulated universes, with the depth of its volumes split 2:1. The universes
are made by `mtf_hetero.data.preparing.cosmology` in a temporary directory: dark matter by second-order Lagrangian
perturbation theory, 64 cells of 4 Mpc/h along each edge, 600 for training and 100 for the test. The network is that of
`mtf-hetero train --model=cosmoflow_small --layout=spatial --mesh_shape=depth:2 --list_speed=2,1` on two logical devices
of the CPU. Two references stand beside it: the mean, and ridge regression on the power spectrum and the histogram of
each volume.

Time: six to fifteen minutes on two cores. Expected: R2 of about 0.5 for omega_m, 0.9 for sigma_8 and 0.1 for n_s, which
is hard to tell from omega_m; a little below those of ridge regression.

    apt-get download mricron-data && dpkg -x mricron-data_*.deb scans
    MRICRON_TEMPLATES=scans/usr/share/mricron/templates python -m benchmarks.run segmentation

A small 3D U-Net in the same layout segments the brain in a scan of a head. The scan is Colin27 (T1, 1 mm, the average
of 27 of one man's head: Holmes et al. 1998). The true brain is the one that Debian's package mricron-data has cut out
of it. The training patches are 32 x 32 x 32 voxels from its front half; the back half is cut into such patches, and all
of them are test patches. The reference needs no network: the range of intensities that predicts the brain of the front
half best. Scalp and marrow are as bright as the brain; only its surroundings distinguish it. One head is a
demonstration, and says nothing about others.

Time: three minutes on two cores. Expected: a Dice of 0.9; the range reaches 0.82.
"""

import abc
import dataclasses
import functools
import os
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from benchmarks.child import Child
from benchmarks.harness import Case, Part
from benchmarks.rows import Writer, summarise

ONE, UNEVEN = "one device", "70,25,5"
_TWO, _THREE = "1.0,0.5", "0.7,0.5,0.3"
WAYS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        ONE: {"local_cluster": "1.0"},
        "batch 2,1": {"local_cluster": _TWO, "layout": "batch", "list_speed": "2,1"},
        "filters 2,1": {"local_cluster": _TWO, "layout": "filters", "list_speed": "2,1"},
        "even": {"local_cluster": _TWO, "layout": "even"},
        "hybrid 2,1": {"local_cluster": _TWO, "layout": "hybrid", "list_speed": "2,1"},
        "spatial 2,1": {"local_cluster": _TWO, "layout": "spatial", "list_speed": "2,1"},
        "stages 2,1": {"local_cluster": _TWO, "layout": "stages", "list_speed": "2,1"},
        "filters 70,50,30": {"local_cluster": _THREE, "layout": "filters", "list_speed": "70,50,30"},
    }
)
_SMALL_SET = {"steps": 4, "batch_size": 2, "test_every": 2}


@dataclasses.dataclass(frozen=True)
class _Learning(Case, abc.ABC):
    """Trains each variant in a temporary directory, in a child that is a benchmarks.frameworks.learning.LearningRun."""

    unit: ClassVar[str] = "steps"
    target: ClassVar[str]
    tests_column: ClassVar[str]
    hidden: ClassVar[tuple[str, ...]]  # what of a configuration is a place of this machine, or has another name in rows

    steps: int = 500
    batch_size: int = 200  # images or volumes per step, and per batch of the test
    test_every: int = 50  # steps between tests

    @property
    def units(self) -> int:
        return self.steps

    @property
    @abc.abstractmethod
    def ways(self) -> tuple[str, ...]:
        """The names of the variants."""

    @abc.abstractmethod
    def config(self, variant: str, directory: str) -> dict[str, Any]:
        """Build the arguments of a run, which are the fields of mtf_hetero.cli.train.config.Config."""

    @abc.abstractmethod
    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        """More columns of a row, from a trained run."""

    def test_arguments(self) -> dict[str, Any]:
        """The arguments of the run's method `test`, which is called after each piece."""
        return {}

    def parts(self) -> Mapping[str, Part]:
        return {variant: functools.partial(self._train, variant) for variant in self.ways}

    def _train(self, variant: str, writer: Writer, bar: Any) -> None:
        losses: list[float] = []
        seconds: list[float] = []
        tests: list[tuple[int, Any]] = []
        with tempfile.TemporaryDirectory(prefix=f"{self.name}_") as directory:
            config = self.config(variant, directory)
            with Child(self.target, config) as child:
                description = child.call("describe")
                while len(losses) < self.steps:
                    step = min(len(losses) + self.test_every, self.steps)
                    piece = child.call("train_to", step=step)
                    bar.update(step - len(losses))
                    losses += piece["losses"]
                    seconds += piece["seconds"][1:] or piece["seconds"]  # a session begins slowly
                    tests.append((step, child.call("test", **self.test_arguments())))
                more = self.finish(child, directory)
                child.call("close")
        values = {
            **self.columns(warmup=0, repeats=1, shares=config.get("list_speed")),
            **{name: value for name, value in config.items() if name not in (*self.hidden, "list_speed")},
            **description,
            "wall_seconds_per_step": summarise(seconds),
            "losses": losses,
            self.tests_column: tests,
            **more,
        }
        writer.write(variant, values)


@dataclasses.dataclass(frozen=True)
class LearningCurve(_Learning):
    """The case of one machine."""

    name: ClassVar[str] = "learning_curve"
    summary: ClassVar[str] = "paper_cifar learns at 70,25,5 as on one device"
    minutes: ClassVar[float] = 50
    target: ClassVar[str] = "benchmarks.frameworks.learning:LearningRun"
    tests_column: ClassVar[str] = "accuracy"
    hidden: ClassVar[tuple[str, ...]] = ("data_dir", "model_dir")
    small: ClassVar[Mapping[str, Any]] = {
        "model": "lenet",
        "dataset": "mnist5k",
        "batch_size": 20,
        "steps": 4,
        "test_every": 2,
        "test_batches": 1,
    }

    data_dir: str | None = None  # where prepared data sets are; None: ~/tensorflow_datasets
    model: str = "paper_cifar"
    dataset: str = "cifar10"
    optimizer: str = "adafactor"
    learning_rate: float | None = None  # None: the optimizer's own
    test_batches: int = 10  # of a test on the way
    final_batches: int | None = None  # of the last test; None: all images

    @property
    def ways(self) -> tuple[str, ...]:
        return (UNEVEN, ONE)

    def place(self, variant: str) -> Mapping[str, Any]:
        """Return the part of a configuration that is a variant's own: devices and layout."""
        if variant == ONE:
            return {"devices": ["cpu:0"]}
        return {"devices": ["cpu:0", "cpu:1", "cpu:2"], "list_speed": UNEVEN}

    def config(self, variant: str, directory: str) -> dict[str, Any]:
        own = ("model", "dataset", "data_dir", "batch_size", "optimizer", "learning_rate", "seed")
        return {
            **{name: getattr(self, name) for name in own},
            "model_dir": directory,
            "max_steps": self.steps,
            "learning_rate_schedule": "constant",
            **self.place(variant),
        }

    def test_arguments(self) -> dict[str, Any]:
        return {"batches": self.test_batches}

    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        all_images = child.call("describe")["test_images"]
        return {
            "final_accuracy": child.call("test", batches=self.final_batches),
            "final_images": min((self.final_batches or all_images) * self.batch_size, all_images),
            "tested_images": self.test_batches * self.batch_size,
        }


@dataclasses.dataclass(frozen=True)
class ClusterCurve(LearningCurve):
    """The case of unequal workers."""

    name: ClassVar[str] = "cluster_curve"
    summary: ClassVar[str] = "paper_cifar learns on unequal workers, in every layout"
    minutes: ClassVar[float] = 8
    small: ClassVar[Mapping[str, Any]] = {**LearningCurve.small, "final_batches": 2, "float64_steps": 3}

    steps: int = 100
    batch_size: int = 50
    optimizer: str = "sgd"
    learning_rate: float | None = 0.01
    final_batches: int | None = 40
    float64_model: str = "lenet"  # to be trained in float64
    float64_dataset: str = "mnist5k"
    float64_steps: int = 30

    @property
    def ways(self) -> tuple[str, ...]:
        return (ONE, "filters 2,1") if self.toy else tuple(WAYS)

    def place(self, variant: str) -> Mapping[str, Any]:
        return WAYS[variant]

    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        float64 = {"model": self.float64_model, "dataset": self.float64_dataset}
        place = {"steps": self.float64_steps, "model_dir": os.path.join(directory, "float64")}
        return {
            **super().finish(child, directory),
            **{f"float64_{name}": value for name, value in float64.items()},
            "float64_losses": child.call("losses_in_float64", **float64, **place),
        }


@dataclasses.dataclass(frozen=True)
class _VolumeLearning(_Learning):
    """Makes a set of volumes, trains on it and tests on the way."""

    tests_column: ClassVar[str] = "tests"
    hidden: ClassVar[tuple[str, ...]] = ("dataset", "model_dir", "made_by")
    model: ClassVar[str]
    made_by: ClassVar[tuple[str, ...]]  # the settings by which the set is made, beside the seed

    steps: int = 1500
    batch_size: int = 8
    test_every: int = 300
    epochs: int = 1000  # how often a volume may be seen; the rate reaches zero at the last step all the same
    learning_rate: float = 1e-3  # of Adam, at first; it falls to zero as a cosine
    shares: str = "2,1"  # speeds of the two devices, over which depth is divided

    @property
    def ways(self) -> tuple[str, ...]:
        return (self.model,)

    def _describe_set(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*self.made_by, "seed")}

    def config(self, variant: str, directory: str) -> dict[str, Any]:
        return {
            "model": variant,
            "dataset": os.path.join(directory, "set"),
            "model_dir": os.path.join(directory, "model"),
            "made_by": self._describe_set(),
            "batch_size": self.batch_size,
            "train_epochs": self.epochs,
            "max_steps": self.steps,
            "augment": True,
            "optimizer": "adam",
            "learning_rate": self.learning_rate,
            "learning_rate_schedule": "cosine",
            "layout": "spatial",
            "mesh_shape": "depth:2",
            "list_speed": self.shares,
            "devices": ["cpu:0", "cpu:1"],
            "seed": self.seed,
        }

    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        return {"set": self._describe_set(), **child.call("findings")}


@dataclasses.dataclass(frozen=True)
class Cosmology(_VolumeLearning):
    """The case of simulated universes."""

    name: ClassVar[str] = "cosmology"
    summary: ClassVar[str] = "CosmoFlow predicts parameters of simulated universes"
    minutes: ClassVar[float] = 10
    model: ClassVar[str] = "cosmoflow_small"
    target: ClassVar[str] = "benchmarks.frameworks.universes:Universes"
    made_by: ClassVar[tuple[str, ...]] = ("size", "cell", "train", "test")
    small: ClassVar[Mapping[str, Any]] = {**_SMALL_SET, "size": 16, "train": 12, "test": 5}

    size: int = 64  # cells along an edge
    cell: float = 4.0  # edge of a cell, Mpc/h
    train: int = 600  # universes to learn from
    test: int = 100  # universes to test on


@dataclasses.dataclass(frozen=True)
class Segmentation(_VolumeLearning):
    """The case of a scan."""

    name: ClassVar[str] = "segmentation"
    summary: ClassVar[str] = "a 3D U-Net segments the brain in a scan of a head"
    minutes: ClassVar[float] = 3
    model: ClassVar[str] = "unet3d_small"
    target: ClassVar[str] = "benchmarks.frameworks.scans:Scan"
    made_by: ClassVar[tuple[str, ...]] = ("scan", "edge", "patches")
    small: ClassVar[Mapping[str, Any]] = {**_SMALL_SET, "scan": "phantom", "edge": 8, "patches": 6}

    steps: int = 600
    batch_size: int = 4
    learning_rate: float = 3e-3
    test_every: int = 150
    scan: str = "colin27"  # or "phantom" for a head that is made up
    edge: int = 32  # voxels along an edge of a patch
    patches: int = 160  # to learn from

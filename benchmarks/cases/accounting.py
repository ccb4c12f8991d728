"""Accounting: where the time of a training step on one device goes, operation by operation, here and in stock mtf.

    python -m benchmarks.run accounting

TensorFlow's own trace of whole steps: the seconds of every operation, added up by kind. Operations that run side by
side count both, so that the sum may exceed the step; tracing slows a step a little.

Time: three minutes on two cores. Expected: nine tenths and more in convolutions, and in what they do not share with
stock Mesh-TensorFlow, the gradients of relu and pooling.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from benchmarks.harness import Case, Part
from benchmarks.process import Child
from benchmarks.rows import Writer, summarise

_TARGET = "benchmarks.frameworks.mesh_nets:MeshTrainer"
LOWERINGS = {"mtf_hetero": False, "stock mtf": True}


@dataclasses.dataclass(frozen=True)
class Accounting(Case):
    """The case.

    Args:
      repeats: traced steps.
      warmup: steps before them.
      networks: names in benchmarks.networks.NETWORKS.
      batch_sizes: images per step.
    """

    name: ClassVar[str] = "accounting"
    summary: ClassVar[str] = "where the time of a step on one device goes"
    unit: ClassVar[str] = "steps"

    repeats: int = 5
    warmup: int = 3
    networks: tuple[str, ...] = ("paper_cifar", "vgg16")
    batch_sizes: tuple[int, ...] = (64,)

    def make_toy(self) -> Self:
        return dataclasses.replace(self, toy=True, repeats=2, warmup=1, networks=("toy_vgg",), batch_sizes=(4,))

    @property
    def units(self) -> int:
        return len(LOWERINGS) * self.repeats

    def parts(self) -> Mapping[str, Part]:
        pairs = itertools.product(self.networks, self.batch_sizes)
        return {f"{network}/{size}": functools.partial(self._trace, network, size) for network, size in pairs}

    def _trace(self, network: str, batch_size: int, writer: Writer, bar: Any) -> None:
        for name, stock in LOWERINGS.items():
            arguments = {"network": network, "batch_size": batch_size, "seed": self.seed, "stock": stock}
            accounts = []
            with Child(_TARGET, arguments) as child:
                child.call("run", steps=self.warmup)
                for _ in range(self.repeats):
                    accounts.append(child.call("account"))
                    bar.update()
            kinds = sorted({kind for account in accounts for kind in account["kinds"]})
            values = {
                "lowering": name,
                "network": network,
                "batch_size": batch_size,
                "devices": ["cpu:0"],
                "layout": "none: one device",
                "step_seconds": summarise(account["step_seconds"] for account in accounts),
                "operations": accounts[0]["operations"],
                "kinds": {kind: summarise(account["kinds"].get(kind, 0.0) for account in accounts) for kind in kinds},
            }
            writer.write(f"{network}/{batch_size}/{name}", {**self.columns(steps=1), **values})

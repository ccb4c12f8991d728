"""Accounting: where the time of a training step on one device goes, operation by operation, here and in stock mtf.

    python -m benchmarks.run accounting

TensorFlow's own trace of whole steps: the seconds of every operation, added up by kind. Operations that run side by
side count both, so that the sum may exceed the step; tracing slows a step a little.

Time: three minutes on two cores. Expected: nine tenths and more in convolutions, and in what they do not share with
stock Mesh-TensorFlow, the gradients of relu and pooling.
"""

import dataclasses
from typing import Any, ClassVar

from benchmarks.cases.base import Case, progress
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

    repeats: int = 5
    warmup: int = 3
    networks: tuple[str, ...] = ("paper_cifar", "vgg16")
    batch_sizes: tuple[int, ...] = (64,)

    def variants(self) -> tuple[str, ...]:
        return tuple(f"{network}/{batch_size}" for network in self.networks for batch_size in self.batch_sizes)

    def make_toy(self) -> "Accounting":
        return dataclasses.replace(self, toy=True, repeats=2, warmup=1, networks=("toy_vgg",), batch_sizes=(4,))

    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        with progress(len(variants) * len(LOWERINGS) * self.repeats, "steps") as bar:
            for variant in variants:
                network, batch_size = variant.rsplit("/", 1)
                for name, stock in LOWERINGS.items():
                    values = self._trace(network, int(batch_size), stock, bar)
                    writer.write(f"{variant}/{name}", {"lowering": name, **values})

    def _trace(self, network: str, batch_size: int, stock: bool, bar: Any) -> dict[str, Any]:
        arguments = {"network": network, "batch_size": batch_size, "seed": self.seed, "stock": stock}
        with Child(_TARGET, arguments) as child:
            child.call("run", steps=self.warmup)
            found = []
            for _ in range(self.repeats):
                found.append(child.call("account"))
                bar.update()
        kinds = {kind for account in found for kind in account["kinds"]}
        return {
            "network": network,
            "batch_size": batch_size,
            "devices": ["cpu:0"],
            "layout": "none: one device",
            "shares": None,
            "seed": self.seed,
            "warmup": self.warmup,
            "steps": 1,
            "repeats": self.repeats,
            "step_seconds": summarise(account["step_seconds"] for account in found),
            "operations": found[0]["operations"],
            "kinds": {kind: summarise(account["kinds"].get(kind, 0.0) for account in found) for kind in sorted(kinds)},
        }

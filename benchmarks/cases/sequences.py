"""Random sequences of faults: a training goes on without lost workers, and its losses stay the same.

    python -m benchmarks.run sequences
    python -m benchmarks.run sequences --only=/7

`mtf-hetero train` runs 300 steps of a small network in float64 on two to four workers of this machine. Workers are
killed, stopped for a while or for ever, started again, added, removed, and get other quotas. A sequence has three to
six of these, at random steps. Some come so soon after the last that training has not continued yet. Layouts are batch,
filters and hybrid in turn, with `--rebalance=auto`. A worker counts as lost after 2 to 5 seconds.

Each run must end by itself. The loss of each batch must agree with that of an undisturbed run on one device to 1e-12,
of repeated steps too.

Time: 50 minutes on two cores. Expected: no failure.
"""

import dataclasses
import pathlib
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.faults import sequence
from benchmarks.harness import Case, progress
from benchmarks.process import Process
from benchmarks.rows import Writer
from mtf_hetero.cluster import LocalCluster
from mtf_hetero.estimator import metrics_log

LAYOUTS = ("batch", "filters", "hybrid")
TOLERANCE = 1e-12
_WORKERS, _CORES = (2, 4), 0.5  # at the beginning, and of each; one more may join
_WAIT_SECONDS = (2, 5)  # for a lost worker
_LINES = 60  # of the output of a training that fails
_FLAGS = (
    *("-m", "benchmarks.faults.double", "--model=double", "--summary_steps=1", "--optimizer=momentum"),
    *("--learning_rate=0.002", "--learning_rate_schedule=constant", "--train_epochs=100", "--batch_size=50"),
)


@dataclasses.dataclass(frozen=True)
class Sequences(Case):
    """The case."""

    name: ClassVar[str] = "sequences"
    summary: ClassVar[str] = "random kills, stops, joins, leaves, quotas: losses"
    minutes: ClassVar[float] = 50
    unit: ClassVar[str] = "sequences"
    small: ClassVar[Mapping[str, Any]] = {"count": 1, "steps": 60}

    count: int = 50  # sequences
    steps: int = 300  # of each training
    pause_seconds: float = 0.02  # after each step

    def variants(self) -> tuple[str, ...]:
        return tuple(f"sequence/{number}" for number in range(1, self.count + 1))

    def measure(self, writer: Writer, variants: Sequence[str]) -> None:
        expected = _undisturbed(self.steps, self.seed)
        workers = LocalCluster([_CORES] * (_WORKERS[-1] + 1), report=lambda line: None)
        with workers, progress(len(variants), self.unit) as bar:
            for variant in variants:
                begin = time.monotonic()
                values = self._carry_out(int(variant.rpartition("/")[2]), workers, expected)
                values["seconds"] = time.monotonic() - begin
                writer.write(variant, {**self.columns(warmup=0, repeats=1), **values})
                bar.update()

    def _carry_out(self, number: int, workers: LocalCluster, expected: Mapping[int, float]) -> dict[str, Any]:
        """Train while one of the sequences happens; returns its columns."""
        rng = random.Random(f"{self.seed}/{number}")
        count, wait = rng.randint(*_WORKERS), rng.randint(*_WAIT_SECONDS)
        chosen = sequence.choose(rng, workers=count, spare=1, count=rng.randint(3, 6), steps=self.steps)
        layout = LAYOUTS[number % len(LAYOUTS)]
        with tempfile.TemporaryDirectory(prefix="sequence_") as made:
            hosts, model_dir = pathlib.Path(made) / "hosts.txt", pathlib.Path(made) / "run"
            sequence.write_hosts(hosts, workers.addresses[:count])
            flags = [f"--layout={layout}", f"--workers=@{hosts}", f"--wait_for_workers={wait}", "--rebalance=auto"]
            flags += [f"--pause_seconds={self.pause_seconds}", f"--model_dir={model_dir}", f"--seed={self.seed}"]
            with Process([*_FLAGS, *flags, f"--max_steps={self.steps}"]) as process:
                disturbed = sequence.Disturbed(workers, process, model_dir, hosts)
                values: dict[str, Any] = {"difference": None}
                try:
                    disturbed.carry_out(chosen)
                    disturbed.await_end()
                    values["difference"] = disturbed.compare(expected)
                except RuntimeError as error:
                    values["failed"] = str(error)
                    values["last_lines"] = process.err[-_LINES:]
            changes = disturbed.changes
        if (values["difference"] or 0.0) > TOLERANCE:
            values["failed"] = f"losses differ by {values['difference']:.1e}"
        sequence.restore(workers, chosen)
        return {
            "layout": layout,
            "devices": [f"worker:{index}/cpu:0" for index in range(count)],
            "wait_for_workers": wait,
            "happenings": [str(happening) for happening in chosen],
            "changes": changes,
            "repeated": sum(change["repeated_steps"] for change in changes),
            **values,
        }


def _undisturbed(steps: int, seed: int) -> dict[int, float]:
    """Return the losses of a training on one device."""
    with tempfile.TemporaryDirectory(prefix="sequence_") as made:
        flags = ["--devices=cpu:0", f"--max_steps={steps}", f"--model_dir={made}", f"--seed={seed}"]
        with Process([*_FLAGS, *flags]) as process:
            process.succeed(300.0, "the run on one device failed")
        rows = metrics_log.read_kind(pathlib.Path(made) / metrics_log.NAME, "train")
    return {row["step"]: row["loss"] for row in rows}

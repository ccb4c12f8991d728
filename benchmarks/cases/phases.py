"""Lost workers in each phase of a training: it ends by itself, with the results of an undisturbed one.

    python -m benchmarks.run phases
    python -m benchmarks.run phases --only=fit/batch

`mtf-hetero train` with LeNet and with a Keras file, `mtf_hetero.keras.fit` and a loop of `mtf_hetero.function` run 16
steps in float64 on two or three workers of this machine, each with one thread. A training kills workers when it comes
to a phase: while the step is lowered, in a step, in a validation, in a save, in a change of the shares. The workers
are started again at once, or never. Other runs have a training process that is stopped for 60 s, and a slow network.

Losses, tests, weights and what the optimizer keeps must agree with those of an undisturbed run to 1e-9. Outputs
of a Keras file become float32, as the images are, and its results must agree to 1e-6.

Time: 25 minutes on two cores. Expected: no failure.
"""

import concurrent.futures
import dataclasses
import pathlib
import tempfile
from collections.abc import Sequence
from typing import ClassVar

from benchmarks import process
from benchmarks.faults import phases
from benchmarks.harness import Case, progress
from benchmarks.rows import Writer


@dataclasses.dataclass(frozen=True)
class Phases(Case):
    """The case."""

    name: ClassVar[str] = "phases"
    summary: ClassVar[str] = "workers killed in each phase of a training: results"
    minutes: ClassVar[float] = 25
    unit: ClassVar[str] = "runs"

    parallel: int = 2  # runs at a time

    def variants(self) -> tuple[str, ...]:
        return tuple(cell.name for cell in phases.list_cells() if not self.toy or cell.phase == "middle")

    def measure(self, writer: Writer, variants: Sequence[str]) -> None:
        process.heed_interrupts()
        chosen = [phases.Cell(*variant.split("/")) for variant in variants]
        first = list(dict.fromkeys(cell.undisturbed for cell in chosen))
        others = [cell for cell in chosen if cell not in first]
        columns = self.columns(warmup=0, steps=phases.STEPS, repeats=1)
        with (
            tempfile.TemporaryDirectory(prefix="phases_") as made,
            progress(len(first) + len(others), self.unit) as bar,
            concurrent.futures.ThreadPoolExecutor(self.parallel) as pool,
        ):
            try:
                for cells in (first, others):
                    futures = {pool.submit(cell.carry_out, pathlib.Path(made)): cell for cell in cells}
                    for future in concurrent.futures.as_completed(futures):
                        writer.write(futures[future].name, {**columns, **future.result()})
                        bar.update()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                process.close_all()
                raise

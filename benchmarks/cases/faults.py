"""Faults: each gets one line, ends with the documented exit code, and loses nothing.

    python -m benchmarks.run faults
    python -m benchmarks.run faults --only="SIGTERM twice"

* kills: kill -9 of a tiny run in float64, many times, at random moments and before and after each rename, unlink, sync
  and opening of a file in a save. A library made of kill_at_call.c also stops TensorFlow's own calls; without a C
  compiler all moments are random. Each following run has another layout. An independent reader finds the newest intact
  checkpoint, at which the next run must begin. The last run must end with the values of an undisturbed one on one
  device.
* damage: each file that a run resumes from is truncated, emptied, deleted, or has a byte changed, and all of them at
  once.
* faults: the binaries meet wrong flags, signals, lost and foreign workers, damaged data and full disks.

Time: 35 to 40 minutes on two cores, half of them for the kills. Expected: no failure.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import pathlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from benchmarks import process
from benchmarks.faults import damage, data_sets, disk, flags, kills, signals, workers
from benchmarks.faults.fault import Fault, Shared
from benchmarks.harness import Case, progress
from benchmarks.rows import Writer

PARTS: Mapping[str, Sequence[Fault]] = {
    "flags": flags.FAULTS,
    "signals": signals.FAULTS,
    "workers": workers.FAULTS,
    "data": data_sets.FAULTS,
    "disk": disk.FAULTS,
}
KILLS, DAMAGE, FAULTS = "kills", "damage", "faults"
_DONE = {f"{FAULTS}/{part}/{fault.name}": fault for part, faults in PARTS.items() for fault in faults}
_TOY_FAULTS = ("flags/train: an unknown flag", "flags/train: a file as model directory")

Task = Callable[[], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Faults(Case):
    """The case."""

    name: ClassVar[str] = "faults"
    summary: ClassVar[str] = "messages and checkpoints after kills, damage, faults"
    minutes: ClassVar[float] = 35
    small: ClassVar[Mapping[str, Any]] = {"repeats": 3, "calls": 4, "damages": 2}

    repeats: int = 200  # kills in all
    chain: int = 20  # kills of the runs in one model directory
    calls: int | None = None  # of a save at which it is killed; None: as many as there are
    damages: int | None = None  # how many are done; None: all
    parallel: int = 2  # how many things are done at a time

    def variants(self) -> tuple[str, ...]:
        chains = tuple(f"{KILLS}/{number + 1}" for number in range(-(-self.repeats // self.chain)))
        faults = tuple(name for name in _DONE if not self.toy or name.partition("/")[2] in _TOY_FAULTS)
        return (*chains, DAMAGE, *faults)

    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        process.heed_interrupts()
        with tempfile.TemporaryDirectory(prefix="faults_") as made, self._pool() as pool:
            directory = pathlib.Path(made)
            shared = Shared(directory / "shared")
            tasks: dict[str, Task] = {
                name: functools.partial(_DONE[name].judge, directory / f"fault_{number}", shared)
                for number, name in enumerate(variants)
                if name in _DONE
            }
            self._write_each(pool, tasks, writer)
            if DAMAGE in variants:
                self._damage(pool, directory, writer)
            chains = [name for name in variants if name.startswith(f"{KILLS}/")]
            if chains:
                self._kill(pool, directory, chains, writer)

    @contextlib.contextmanager
    def _pool(self) -> Iterator[concurrent.futures.Executor]:
        with concurrent.futures.ThreadPoolExecutor(self.parallel) as pool:
            try:
                yield pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                process.close_all()
                raise

    def _write_each(self, pool: concurrent.futures.Executor, tasks: Mapping[str, Task], writer: Writer) -> None:
        """Write a row for each task as soon as it is done."""
        devices = [f"cpu:{index}" for index in range(3)]
        settings = self.columns(warmup=0, steps=0, layout="several", shares="several", devices=devices)
        futures = {pool.submit(task): variant for variant, task in tasks.items()}
        with progress(len(futures), "faults") as bar:
            for future in concurrent.futures.as_completed(futures):
                variant = futures[future]
                writer.write(variant, {**settings, "part": variant.partition("/")[0], **future.result()})
                bar.update()

    def _damage(self, pool: concurrent.futures.Executor, directory: pathlib.Path, writer: Writer) -> None:
        made = damage.Made.by_training(directory / "undamaged")
        damages = [(damage.ALL, "truncated"), *made.cases()][: self.damages]
        places = (directory / f"damaged_{number}" for number in range(len(damages)))
        tasks = {
            f"{DAMAGE}/{file} {kind}": functools.partial(damage.carry_out, made, file, kind, place)
            for (file, kind), place in zip(damages, places, strict=True)
        }
        self._write_each(pool, tasks, writer)

    def _kill(
        self, pool: concurrent.futures.Executor, directory: pathlib.Path, chains: Sequence[str], writer: Writer
    ) -> None:
        library = kills.compile_killer(directory)
        calls = self.calls
        if library is None:
            calls = 0
        elif calls is None:
            calls = len(kills.count_calls(directory / "counted", library))
        chosen = kills.choose_kills(self.repeats, calls, random.Random(self.seed))
        lots = {f"{KILLS}/{i // self.chain + 1}": chosen[i : i + self.chain] for i in range(0, len(chosen), self.chain)}
        expected = {
            length: kills.final_values(directory / f"expected_{length}", kills.total_steps(length))
            for length in {len(lots[name]) for name in chains}
        }
        tasks = {}
        for number, name in enumerate(chains):
            place, first = directory / f"chain_{number}", number % len(kills.LAYOUTS)
            arguments = (place, library, lots[name], expected[len(lots[name])], first)
            tasks[name] = functools.partial(kills.run_chain, *arguments)
        self._write_each(pool, tasks, writer)

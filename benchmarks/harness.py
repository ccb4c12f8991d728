"""The base of all cases: settings and parts, turns, comparisons of losses, and a cluster's chief in a child."""

import contextlib
import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import tqdm

from benchmarks.child import Child, ChildError
from benchmarks.rows import Writer, summarise

LOSS_TOLERANCE = 1e-4  # relative, of losses before and after the first step: float32, summed in another order
CHECKED_STEPS = 2  # run when a way is built, to compare their losses
_CLOSE_SECONDS = 30.0
Way = TypeVar("Way")
Result = TypeVar("Result")
Part = Callable[[Writer, Any], None]  # measures, and writes rows; moves a progress bar on if it likes


@dataclasses.dataclass(frozen=True)
class Case:
    """A measurement behind one table or figure. Its fields are its settings.

    A case declares `parts`; a case without separate parts overrides `variants` and `measure` instead.
    """

    seed: int = 1  # of initial values, data, and the order in which things are measured
    toy: bool = False  # a trial in small, which reports leave out

    name: ClassVar[str]
    summary: ClassVar[str]
    minutes: ClassVar[float]  # that all variants usually take on two cores
    unit: ClassVar[str] = "settings"  # of the progress bar
    small: ClassVar[Mapping[str, Any]] = {}  # the settings of a trial of seconds

    @property
    def units(self) -> int:
        """Steps of the progress bar for one part."""
        return 1

    def parts(self) -> Mapping[str, Part]:
        """{variant: the function that measures it}."""
        return {}

    def variants(self) -> tuple[str, ...]:
        """Names of the parts, each of which can be measured alone."""
        return tuple(self.parts())

    def measure(self, writer: Writer, variants: Sequence[str]) -> None:
        """Measures these variants, and writes each row as soon as it is known."""
        parts = self.parts()
        with progress(len(variants) * self.units, self.unit) as bar:
            for number, variant in enumerate(variants, 1):
                bar.set_description(variant)
                parts[variant](writer, bar)
                bar.update(number * self.units - bar.n)

    def make_toy(self) -> Self:
        """Return the same in small."""
        return dataclasses.replace(self, toy=True, **self.small)

    def check(self) -> None:
        """Raise ValueError for a setting that is out of range."""
        for name, least in (("repeats", 1), ("steps", 1), ("warmup", 0), ("seed", 0)):
            value = getattr(self, name, None)
            if value is not None and value < least:
                raise ValueError(f"--{name} is {value}; it must be a whole number of at least {least}")

    def columns(self, **values: Any) -> dict[str, Any]:
        """Return the settings that every row has; values override the case's own fields."""
        fields = {name: getattr(self, name, None) for name in ("seed", "warmup", "steps", "repeats")}
        return {**fields, "shares": None, **values}


@dataclasses.dataclass(frozen=True)
class TimedCase(Case):
    """A case whose ways train in turns on one cluster."""

    repeats: int = 5  # how often each way is timed
    steps: int = 1  # training steps per timing

    def time_ways(self, ways: Mapping[Way, Callable[..., dict[str, Any]]]) -> dict[Way, list[float]]:
        """Seconds per step of ways that are given as `runner`s, in turns."""
        runs = {way: functools.partial(seconds_per_step, run, self.steps) for way, run in ways.items()}
        return take_turns(runs, self.repeats, self.seed)


def progress(total: int, unit: str) -> Any:
    """Return a progress bar on the standard error, where that is a terminal."""
    return tqdm.tqdm(total=total, unit=f" {unit}", dynamic_ncols=True, disable=None)


def take_turns(ways: Mapping[Way, Callable[[], Result]], repeats: int, seed: int) -> dict[Way, list[Result]]:
    """Measures every way once per repeat, in a new random order, so that other load on the machine hits all alike."""
    rng = random.Random(seed)
    results: dict[Way, list[Result]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way in rng.sample(sorted(ways), len(ways)):  # pyright: ignore[reportArgumentType]
            results[way].append(ways[way]())
    return results


def runner(side: Any, name: str, method: str = "run") -> Callable[..., dict[str, Any]]:
    """Return a function that runs steps of a way on a child, or on anything with the `call` of one."""
    return functools.partial(side.call, method, name=name)


def seconds_per_step(run: Callable[..., dict[str, Any]], steps: int) -> float:
    """Seconds per step of a `runner`."""
    return run(steps=steps)["wall_seconds"] / steps


def loss_error(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return the largest relative difference."""
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True))


def compare_losses(losses: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Return the columns that compare the losses of a way with those of the first one."""
    error = loss_error(losses, reference)
    failed = {"failed": f"losses {losses} instead of {reference}"} if error > LOSS_TOLERANCE else {}
    return {"loss_error": error, **failed}


def timed(row: Mapping[str, Any], seconds: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Return a row with the columns of a timed way, whose losses must be those of the reference."""
    return {**row, "wall_seconds_per_step": summarise(seconds), **compare_losses(row["losses"], reference)}


@contextlib.contextmanager
def chief(target: str, own_network: bool = False, /, **arguments: Any) -> Iterator[Child]:
    """Give a child that holds a cluster, and close it in the end: "package.module:Class" and its arguments."""
    with Child(target, arguments, own_network) as child:
        try:
            yield child
        finally:
            with contextlib.suppress(ChildError):
                child.call("close", timeout_seconds=_CLOSE_SECONDS)

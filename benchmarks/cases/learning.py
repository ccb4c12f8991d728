"""What the cases have in common in which a model is trained in pieces, and tested after each."""

import abc
import dataclasses
import functools
import tempfile
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.harness import Case, Part
from benchmarks.process import Child
from benchmarks.rows import Writer, summarise


@dataclasses.dataclass(frozen=True)
class Learning(Case, abc.ABC):
    """Trains each variant in a temporary directory, in a child that is a benchmarks.frameworks.learning.LearningRun.

    Args:
      steps: training steps.
      batch_size: images or volumes per step, and per batch of the test.
      test_every: steps between tests.
    """

    unit: ClassVar[str] = "steps"
    target: ClassVar[str]
    tests_column: ClassVar[str]
    hidden: ClassVar[tuple[str, ...]]  # what of a configuration is a place of this machine, or has another name in rows

    steps: int = 500
    batch_size: int = 200
    test_every: int = 50

    @property
    def units(self) -> int:
        return self.steps

    @property
    @abc.abstractmethod
    def ways(self) -> tuple[str, ...]:
        """The names of the variants."""

    @abc.abstractmethod
    def config(self, variant: str, directory: str) -> dict[str, Any]:
        """The arguments of a run, which are those of models.train.config.Config."""

    @abc.abstractmethod
    def finish(self, child: Child, directory: str) -> dict[str, Any]:
        """What else goes into a row, asked of a run that has been trained."""

    def test_arguments(self) -> dict[str, Any]:
        """Of the run's method `test`."""
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

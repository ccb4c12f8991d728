"""Any step: training steps of many kinds, divided and compared with TensorFlow's own.

    python -m benchmarks.run any_step
    python -m benchmarks.run any_step --only=vision/
    python -m benchmarks.run any_step --programs=vision/mnist_convnet,vision/cct

Each program of benchmarks/programs is small, on random data, with its dropout. TensorFlow runs five of its steps. The
divided step runs five from the same values: on one device, with the batch of 14 split 4:2:1 over three processors, with
a dimension of a weight split so (the recipe `filters` where the program names none), and with a plan for three
processors of such speeds. All results and all variables are compared, those of optimizers, metrics and random numbers
included.

"TensorFlow's own" is TensorFlow itself on inputs and variables of which each number is the next larger one, except
whole numbers such as labels. It shows the effect of rounding alone. All is in float64, except where an operation has no
other type than float32.

Time: three hours on two cores. Expected: differences of at most 1e-9, and under the batch less than 2 % of the FLOPs
replicated, apart from updates of weights.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.child import Child, ChildError
from benchmarks.harness import Case, progress
from benchmarks.rows import Writer
from mtf_hetero._support import command_line

if TYPE_CHECKING:
    from benchmarks.programs import Program

_TARGET = "benchmarks.frameworks.any_step:AnyStep"
_OF_A_PROCESS = 5  # programs, since Keras takes seconds to load


@dataclasses.dataclass(frozen=True)
class AnyStep(Case):
    """The case."""

    name: ClassVar[str] = "any_step"
    summary: ClassVar[str] = "steps of many programs: differences from TensorFlow"
    minutes: ClassVar[float] = 180
    unit: ClassVar[str] = "programs"
    small: ClassVar[Mapping[str, Any]] = {"steps": 2, "programs": ("vision/mnist_convnet",)}

    steps: int = 5
    programs: tuple[str, ...] = ()  # none: all
    limit_seconds: float = 1800.0  # how long one program may take

    def variants(self) -> tuple[str, ...]:
        """Names of the programs."""
        return tuple(self.programs or _load_programs())

    def check(self) -> None:
        """Raise ValueError for a program that is not in the table."""
        super().check()
        known = _load_programs() if self.programs else ()
        for name in self.programs:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
                raise ValueError(f"--programs names {name!r}, which is not in the table; the nearest is {nearest!r}")

    def measure(self, writer: Writer, variants: Sequence[str]) -> None:
        """Run some programs in each process; one that fails gets a row that says why, and ends its process."""
        left = list(variants)
        with progress(len(variants), self.unit) as bar:
            while left:
                with Child(_TARGET) as child:
                    for _ in range(_OF_A_PROCESS):
                        bar.set_description(left[0])
                        row = self._run(child, left[0])
                        writer.write(left.pop(0), row)
                        bar.update()
                        if "failed" in row or not left:
                            break

    def _run(self, child: Child, variant: str) -> dict[str, Any]:
        program = _load_programs()[variant]
        about = self.columns(warmup=0, repeats=1, shares=(4.0, 2.0, 1.0), kind=program.kind, program=program.name)
        about |= {"source": program.source, "dtype": program.dtype, "tolerance": program.tolerance}
        about |= {"reason": program.reason, "layout": None, "devices": [f"cpu:{i}" for i in range(3)]}
        try:
            return {**about, **child.call("run", name=variant, steps=self.steps, timeout_seconds=self.limit_seconds)}
        except (ChildError, ValueError) as error:
            return {**about, "failed": str(error)}


def _load_programs() -> Mapping[str, "Program"]:
    """Return {name: program} of the table, without what Keras and TensorFlow print while they are loaded."""
    with command_line.capture_stderr():
        from benchmarks.programs import programs

        return programs()

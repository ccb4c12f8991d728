"""Verdicts: how long `mtf-hetero plan` takes for every model of keras.applications, from the command to its answer.

    python -m benchmarks.run verdicts

Three programs take turns, each in a process of its own: `import tensorflow, keras` and the model's constructor, below
which no program that uses Keras comes; `mtf-hetero plan --model=keras:NAME --devices="A100, V100"`; and, with
`--before=DIR`, the same command of the checkout in that directory. Both the processor time and the time on the clock
are stored. The clock also counts what else the machine does.

Time: 20 minutes on two cores, and as long again with `--before`; `--only=ResNet50` measures one model. Expected: an
answer within 6 seconds, or within 3 seconds of the constructor alone.
"""

import dataclasses
import functools
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.cases.keras_models import MODELS
from benchmarks.harness import Case, Part, take_turns
from benchmarks.rows import ROOT, Writer, summarise

CONSTRUCTOR, PLAN, BEFORE = "constructor", "plan", "plan before"
DEVICES = "A100, V100"


@dataclasses.dataclass(frozen=True)
class Verdicts(Case):
    """The case."""

    name: ClassVar[str] = "verdicts"
    summary: ClassVar[str] = "seconds from the command to the verdict of a plan"
    minutes: ClassVar[float] = 20
    small: ClassVar[Mapping[str, Any]] = {"models": ("MobileNetV2",)}

    models: tuple[str, ...] = MODELS
    repeats: int = 2
    before: str = ""  # a checkout of an earlier version

    def parts(self) -> Mapping[str, Part]:
        return {model: functools.partial(self._measure, model) for model in self.models}

    def _measure(self, model: str, writer: Writer, bar: Any) -> None:
        del bar
        command = ["-m", "mtf_hetero", "plan", f"--model=keras:{model}", f"--devices={DEVICES}"]
        alone = f"import tensorflow, keras; keras.applications.{model}(weights=None)"
        ways = {
            CONSTRUCTOR: functools.partial(_run, ["-c", alone], str(ROOT)),
            PLAN: functools.partial(_run, command, str(ROOT)),
            **({BEFORE: functools.partial(_run, command, self.before)} if self.before else {}),
        }
        found = take_turns(ways, self.repeats, self.seed)
        seconds = {
            way: {"wall": summarise(wall for wall, *_ in runs), "cpu": summarise(cpu for _, cpu, _ in runs)}
            for way, runs in found.items()
        }
        (*_, said), *_ = found[PLAN]
        columns = {"devices": DEVICES.split(", "), "layout": PLAN, "verdict": said.partition(". ")[0]}
        writer.write(model, {**self.columns(model=model, steps=1, warmup=0), **columns, "seconds": seconds})


def _run(arguments: list[str], path: str) -> tuple[float, float, str]:
    """Return the seconds on the clock, the seconds of processors, and the output of a Python process."""
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the modules are compiled once, as those of an installed package
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, check=True)
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, " ".join(done.stdout.split())

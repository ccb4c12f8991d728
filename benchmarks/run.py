"""Measures a case and stores its rows.

    python -m benchmarks.run --list
    python -m benchmarks.run CASE [--repeats=...] [--steps=...] [--only=...] [--out=benchmarks/results]

Rows are appended to OUT/CASE.jsonl as soon as they are known: what was measured before Ctrl-C stays. Run it on a
machine that does nothing else; the load average before is in each row. `python -m benchmarks.report` shows the rows.

Exit codes: 0, 2 for a wrong flag or value (one line says which), 1 for a measurement that fails, 130 after Ctrl-C.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from benchmarks.cases import CASES, Case
from benchmarks.child import ChildError
from benchmarks.rows import ROOT, Writer
from mtf_hetero.models.train import console as command_line

_LIST = flags.DEFINE_bool("list", False, "Lists the cases and their variants, and measures nothing.")
_OUT = flags.DEFINE_string("out", str(ROOT / "benchmarks" / "results"), "Directory of the rows.")
_ONLY = flags.DEFINE_string("only", None, "Measures only the variants whose name contains this, such as vgg16/256.")
_TOY = flags.DEFINE_bool("toy", False, "Tries the case out on something small, in seconds; no report shows the rows.")
_SETTINGS = {
    holder.name: holder
    for holder in (
        flags.DEFINE_integer("repeats", None, "How often each variant is measured; by default the case's own."),
        flags.DEFINE_integer("steps", None, "Training steps; by default the case's own."),
        flags.DEFINE_integer("warmup", None, "Steps before the first timing; by default the case's own."),
        flags.DEFINE_integer("seed", None, "Of initial values, data and the order of measurements."),
        flags.DEFINE_string("data_dir", None, "Where tensorflow-datasets has prepared its sets."),
    )
}

FAILED = 1
INTERRUPTED = 130


def read_case(argv: Sequence[str]) -> Case:
    """The case that the command line names, with its settings.

    Raises:
      ValueError: there is no such case or setting.
    """
    if len(argv) != 2:
        raise ValueError(f"{len(argv) - 1} cases are named; name one of {', '.join(CASES)}")
    if argv[1] not in CASES:
        raise ValueError(f"case is {argv[1]!r}; it must be one of {', '.join(CASES)}")
    case = CASES[argv[1]]
    if _TOY.value:
        case = case.make_toy()
    given = {name: holder.value for name, holder in _SETTINGS.items() if holder.value is not None}
    known = {field.name for field in dataclasses.fields(case)}
    for name in given:
        if name not in known:
            raise ValueError(f"--{name} is {given[name]}, but case {case.name} has no such setting; leave the flag out")
    case = dataclasses.replace(case, **given)
    case.check()
    return case


def choose_variants(case: Case, only: str | None) -> tuple[str, ...]:
    """The variants of a case whose name contains a text.

    Raises:
      ValueError: there is none.
    """
    variants = tuple(variant for variant in case.variants() if only is None or only in variant)
    if not variants:
        raise ValueError(f"--only is {only!r}, which is in none of the variants {'; '.join(case.variants())}")
    return variants


def _make_directory(out: str) -> pathlib.Path:
    directory = pathlib.Path(out)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out is {out!r}, which cannot be made: {error.strerror}") from error
    return directory


def _list_cases() -> None:
    for case in CASES.values():
        print(f"{case.name}: {case.summary}")
        for variant in case.variants():
            print(f"  {variant}")


def main(argv: Sequence[str]) -> int:
    """Measures as the flags say; returns the exit code."""
    writer = None
    try:
        if _LIST.value:
            _list_cases()
            return 0
        case = read_case(argv)
        variants = choose_variants(case, _ONLY.value)
        writer = Writer(case.name, _make_directory(_OUT.value), case.toy)
        case.measure(writer, variants)
    except ValueError as error:
        command_line.say(error)
        return command_line.WRONG_USAGE
    except (ChildError, RuntimeError) as error:
        command_line.say(error)
        return FAILED
    except KeyboardInterrupt:
        kept = "" if writer is None or not writer.path.exists() else f"; finished rows are in {writer.path}"
        print(f"stopped{kept}", file=sys.stderr)
        return INTERRUPTED
    print(f"rows of run {writer.run}: {writer.path}")
    return 0


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)

"""Measure a case, print its table, and store its rows.

    python -m benchmarks.run --list
    python -m benchmarks.run --list CASE
    python -m benchmarks.run CASE [--repeats=...] [--steps=...] [--only=...] [--out=benchmarks/results]

Rows are appended to OUT/CASE.jsonl as soon as they are known, so Ctrl-C keeps the finished ones. Run it on a machine
that does nothing else; each row has the load average before. At the end the tables of this run are printed, with the
papers' figures, and the report on all stored rows is written: to benchmarks/reports, or to OUT if that is not
benchmarks/results.

Exit codes: 0, 2 for a wrong flag or value (one line names it), 1 for a measurement that fails, 130 after Ctrl-C,
141 if nobody reads the output any more.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from benchmarks import papers
from benchmarks.cases import CASES, Case
from benchmarks.child import ChildError
from benchmarks.durations import RESULTS, usual_duration
from benchmarks.rows import ROOT, Writer, read
from mtf_hetero._support import command_line, tables

REPORTS = ROOT / "benchmarks" / "reports"
_LIST = flags.DEFINE_bool("list", False, "List the cases and their durations, or the variants of one; measure nothing.")
_OUT = flags.DEFINE_string("out", str(RESULTS), "Directory of the rows.")
_ONLY = flags.DEFINE_string("only", None, "Measure only the variants whose name contains this, such as vgg16/256.")
_TOY = flags.DEFINE_bool("toy", False, "Try the case out in small, in seconds; reports leave its rows out.")
_SETTINGS = {
    holder.name: holder
    for holder in (
        flags.DEFINE_integer("repeats", None, "How often each variant is measured; the default is the case's own."),
        flags.DEFINE_integer("steps", None, "Training steps; the default is the case's own."),
        flags.DEFINE_integer("warmup", None, "Steps before the first timing; the default is the case's own."),
        flags.DEFINE_integer("seed", None, "Seed of initial values, data and the order of measurements."),
        flags.DEFINE_list(
            "programs", None, "Programs of any_step, such as vision/cct,nlp/lstm_seq2seq; the default is all."
        ),
        flags.DEFINE_string("before", None, "Of verdicts: a checkout of an earlier version, to compare with."),
        flags.DEFINE_string("data_dir", None, "Directory of the sets that tensorflow-datasets has prepared."),
    )
}

FAILED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141


def read_case(argv: Sequence[str]) -> Case:
    """Return the case that the command line names, with its settings.

    Raises:
      ValueError: there is no such case or setting.
    """
    case = _find_case(argv)
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


def _find_case(argv: Sequence[str]) -> Case:
    if len(argv) != 2:
        raise ValueError(f"{len(argv) - 1} cases are named; name one of {', '.join(CASES)}")
    if argv[1] not in CASES:
        raise ValueError(f"case is {argv[1]!r}; it must be one of {', '.join(CASES)}")
    return CASES[argv[1]]


def choose_variants(case: Case, only: str | None) -> tuple[str, ...]:
    """Return the variants of a case whose name contains a text.

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


def _list(argv: Sequence[str]) -> None:
    """Print all cases with their durations, or the variants of one that --only selects."""
    if len(argv) > 1:
        print("\n".join(choose_variants(_find_case(argv), _ONLY.value)))
        return
    lines = [(case.name, usual_duration(case), case.summary) for case in CASES.values()]
    for line in tables.lines([("case", "usual", "measures"), *lines], "<><"):
        print(line)
    print("\nTimes are those of a whole case on two cores. --list CASE shows its variants.")


def _show(writer: Writer) -> None:
    """Print the tables of the run, and where its rows and the report are."""
    from benchmarks.renderers import RENDERERS  # matplotlib takes a second to load
    from benchmarks.renderers.writer import write_report

    rows = read(writer.path, toy=writer.toy)
    of_run = [row for row in rows if row["run"] == writer.run]
    print(RENDERERS[writer.case](of_run).as_text())
    if compared := papers.compare(writer.case, _ONLY.value):
        print(f"\n{compared}")
    print(f"\nrows of run {writer.run}: {writer.path}")
    if not writer.toy:
        folder = REPORTS if writer.directory == RESULTS else writer.directory
        print(f"report on all rows: {write_report(writer.case, rows, folder)}")


def main(argv: Sequence[str]) -> int:
    """Measures as the flags say; returns the exit code."""
    writer = None
    try:
        if _LIST.value:
            _list(argv)
            return 0
        case = read_case(argv)
        variants = choose_variants(case, _ONLY.value)
        writer = Writer(case.name, _make_directory(_OUT.value), case.toy)
        case.measure(writer, variants)
        _show(writer)
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
    except BrokenPipeError:  # as of `... --list | head`
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the interpreter flushes it at its end
        return BROKEN_PIPE
    return 0


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)

"""A report as files: Markdown, and a picture beside it."""

import pathlib
from collections.abc import Sequence

from benchmarks.cases import CASES
from benchmarks.renderers import RENDERERS
from benchmarks.renderers.document import Report
from benchmarks.renderers.provenance import describe_measurement, describe_provenance
from benchmarks.renderers.tables import Row
from mtf_hetero._support import files


def to_markdown(name: str, report: Report, rows: Sequence[Row]) -> str:
    """Return the Markdown of a case's report on some rows."""
    return report.as_markdown(
        f"{name}: {CASES[name].summary}",
        name=name,
        measured=describe_measurement(rows),
        provenance=describe_provenance(rows),
    )


def write_report(name: str, rows: Sequence[Row], out: pathlib.Path) -> pathlib.Path:
    """Write a case's report on some rows, and its picture, and return the Markdown file."""
    out.mkdir(parents=True, exist_ok=True)
    report, path = RENDERERS[name](rows), out / f"{name}.md"
    if report.draw is not None:
        report.draw(out / f"{name}.png")
    files.write_text(path, to_markdown(name, report, rows))
    return path

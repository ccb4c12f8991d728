"""Make reports from stored rows: a Markdown file and a picture per case.

    python -m benchmarks.report [--results=benchmarks/results] [--reports=benchmarks/reports]

The newest row of each variant counts. Rows of --toy runs are left out.

Exit codes: 0, or 2 for a wrong flag or value, which one line names.
"""

import pathlib
from collections.abc import Sequence

from absl import app, flags

from benchmarks import rows as rows_lib
from benchmarks.renderers import RENDERERS
from benchmarks.renderers.writer import write_report
from mtf_hetero._support import command_line

_FOLDER = rows_lib.ROOT / "benchmarks"
_RESULTS = flags.DEFINE_string("results", str(_FOLDER / "results"), "Directory of the rows.")
_REPORTS = flags.DEFINE_string("reports", str(_FOLDER / "reports"), "Directory of the reports.")


def write_reports(results: pathlib.Path, out: pathlib.Path) -> list[pathlib.Path]:
    """Write a report for each case that has rows, and return the Markdown files.

    Raises:
      ValueError: there are no rows, or they cannot be read.
    """
    written = []
    for name in RENDERERS:
        path = results / f"{name}.jsonl"
        rows = rows_lib.read(path) if path.is_file() else []
        if rows:
            written.append(write_report(name, rows, out))
    if not written:
        raise ValueError(f"--results is {str(results)!r}, which has no rows of {', '.join(RENDERERS)}; measure first")
    return written


def main(argv: Sequence[str]) -> int:
    """Write the reports, and return the exit code."""
    try:
        if len(argv) > 1:
            raise ValueError(f"{argv[1]!r} is not a flag; write --name=value")
        for path in write_reports(pathlib.Path(_RESULTS.value), pathlib.Path(_REPORTS.value)):
            print(path)
    except (ValueError, OSError) as error:
        command_line.say(error)
        return command_line.WRONG_USAGE
    return 0


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)

"""The usual duration of a case, apart from the runner, whose flags collide with those of other programs in tests."""

from benchmarks.cases import Case
from benchmarks.rows import ROOT, read, run_seconds

RESULTS = ROOT / "benchmarks" / "results"


def usual_duration(case: Case) -> str:
    """Return the time that all variants of a case take: by the stored rows where they say so, or by the case itself."""
    path = RESULTS / f"{case.name}.jsonl"
    seconds = run_seconds(read(path)) if path.is_file() else None
    minutes = case.minutes if seconds is None else seconds / 60
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{max(round(minutes), 1)} min"

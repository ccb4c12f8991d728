"""The report on random sequences of faults: whether each training ended, its losses, and the pauses."""

import functools
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.sequences import TOLERANCE
from benchmarks.renderers.document import Report
from benchmarks.renderers.tables import Row, bullets, could_not, span, succeeded, table

_KINDS = {" lost": "lost", " again": "back", " joined": "joined", " removed": "removed", " as slow as": "shares"}


def _kind(change: Mapping[str, str]) -> str:
    """Return the kind of the first reason of a change."""
    places = {kind: change["why"].find(text) for text, kind in _KINDS.items() if text in change["why"]}
    return min(places, key=places.__getitem__)


def _pauses(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return {kind of change: the pauses}."""
    pauses: dict[str, list[float]] = {kind: [] for kind in _KINDS.values()}
    for row in rows:
        for change in row["changes"]:
            pauses[_kind(change)].append(change["seconds_paused"])
    return {kind: seconds for kind, seconds in pauses.items() if seconds}


def _conclude(rows: Sequence[Row], pauses: Mapping[str, Sequence[float]]) -> list[str]:
    done = succeeded(rows)
    texts = [f"{len(done)} of {len(rows)} trainings ended by themselves, with the loss of every batch."]
    if done:
        largest = max(row["difference"] for row in done)
        texts.append(
            f"Losses differ by at most {largest:.0e} from those of an undisturbed training; the limit is {TOLERANCE:g}."
        )
    changes = sum(map(len, pauses.values()))
    steps = sum(row["repeated"] for row in rows)
    if changes:
        every = [seconds for of_kind in pauses.values() for seconds in of_kind]
        texts.append(f"{changes} changes of the place paused for {span(every, '.1f')} s, and repeated {steps} steps.")
    return texts


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a line per sequence."""
    pauses = _pauses(rows)
    header = ["sequence", "layout", "workers", "changes", "steps repeated", "s", "difference", "step, and what happens"]
    lines = [
        [
            *(row["variant"].rpartition("/")[2], row["layout"], len(row["devices"]), len(row["changes"])),
            *(row["repeated"], row["seconds"], row["difference"] and f"{row['difference']:.0e}"),
            "; ".join(row["happenings"]),
        ]
        for row in rows
    ]
    parts = [
        "A small network in float64 on workers of this machine. A worker counts as lost after 2 to 5 s. `12 kill 1`: "
        "after step 12, worker 1 is killed; `+1.5 s`: so much later. A pause has the wait for a lost worker, too.",
        "## Sequences",
        table(header, lines),
        bullets(could_not("trained to the end", rows, "variant")),
    ]
    return Report(
        _conclude(rows, pauses),
        parts,
        "Pauses",
        functools.partial(drawing.dots, values=pauses, label="s between two steps") if pauses else None,
    )

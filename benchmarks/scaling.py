"""Figures of partitioned volumes: speedups, errors of the planner's predictions, and expected memory."""

import math
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def _step_seconds(row: Row) -> float:
    """Return the median of the steps that were timed."""
    return row["wall_seconds_per_step"]["median"]


def speedup(row: Row, first: Row) -> float:
    """Voxels per second over those of the first way."""
    voxels, of_first = (math.prod(one["extents"]) for one in (row, first))
    return voxels / of_first * _step_seconds(first) / _step_seconds(row)


def error(row: Row) -> float:
    """Return the relative error of a row's predicted step time."""
    return row["predicted_seconds"] / _step_seconds(row) - 1


def expected_bytes(row: Row, alone: Row) -> list[float]:
    """Return the expected memory of each worker, given the row of one worker alone.

    It is the replicated part, its planes' share of the rest, and its halos.
    """
    (alone_peak,), (whole,) = alone["peak_bytes"], alone["whole_bytes"]
    shares = [planes / sum(row["split"]) for planes in row["split"]]
    halos = [worker["halo_bytes"] for worker in row["exchanged"]]
    return [whole + share * (alone_peak - whole) + halo for share, halo in zip(shares, halos, strict=True)]

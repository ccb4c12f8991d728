"""What rows of partitioned volumes say: speedups, how far the planner's predictions are off, and memory to expect."""

import math
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def _step_seconds(row: Row) -> float:
    """The median of the steps that were timed."""
    return row["wall_seconds_per_step"]["median"]


def speedup(row: Row, first: Row) -> float:
    """How many times as many voxels a second as the first way does."""
    voxels, of_first = (math.prod(one["extents"]) for one in (row, first))
    return voxels / of_first * _step_seconds(first) / _step_seconds(row)


def error(row: Row) -> float:
    """By which part of it the step of a row is predicted too long."""
    return row["predicted_seconds"] / _step_seconds(row) - 1


def expected_bytes(row: Row, alone: Row) -> list[float]:
    """The memory that each worker should take, beside the row of one alone.

    That is what is whole everywhere, its share of the rest by the planes that it has, and its halos.
    """
    (alone_peak,), (whole,) = alone["peak_bytes"], alone["whole_bytes"]
    shares = [planes / sum(row["split"]) for planes in row["split"]]
    halos = [worker["halo_bytes"] for worker in row["exchanged"]]
    return [whole + share * (alone_peak - whole) + halo for share, halo in zip(shares, halos, strict=True)]

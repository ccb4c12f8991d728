"""A table of the memory that each device needs."""

import dataclasses
from collections.abc import Mapping

from mtf_hetero._support import tables
from mtf_hetero.memory.estimation import Estimate


def table(estimates: Mapping[str, Estimate], measured: Mapping[str, int] | None = None) -> str:
    """What each device needs, in megabytes (10^6 bytes); beside it what was measured.

    Args:
      estimates: {device: Estimate}.
      measured: {device: bytes}.
    """
    columns = [*(field.name for field in dataclasses.fields(Estimate)), "peak"]
    rows = [["MB", *columns, *(("measured", "off by") if measured is not None else ())]]
    for device, estimate in estimates.items():
        row = [device, *(_megabytes(getattr(estimate, name)) for name in columns)]
        if measured is not None and device in measured:
            row += [_megabytes(measured[device]), f"{100 * (estimate.peak / measured[device] - 1):+.1f} %"]
        elif measured is not None:
            row.append("-")
        rows.append(row)
    least = (0, *[11] * (len(columns) + 1), 8)
    return "\n".join(tables.lines(rows, "<" + ">" * (len(columns) + 2), gap=" ", least=least))


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.1f}"

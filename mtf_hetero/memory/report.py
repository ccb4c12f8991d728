"""A table of the memory that each device needs."""

import dataclasses
import math
from collections.abc import Mapping

from mtf_hetero.memory.estimation import Estimate


def table(estimates: Mapping[str, Estimate], measured: Mapping[str, int] | None = None) -> str:
    """What each device needs, in megabytes (10^6 bytes); beside it what was measured.

    Args:
      estimates: {device: Estimate}.
      measured: {device: bytes}.
    """
    columns = [*(field.name for field in dataclasses.fields(Estimate)), "peak"]
    width = max([len("MB"), *map(len, estimates)])
    lines = [f"{'MB':{width}} " + " ".join(f"{name:>11}" for name in columns)]
    if measured is not None:
        lines[0] += f" {'measured':>11} {'off by':>8}"
    for device, found in estimates.items():
        line = f"{device:{width}} " + " ".join(f"{getattr(found, name) / 1e6:11.1f}" for name in columns)
        if measured is not None:
            peak = measured.get(device, math.nan)
            line += f" {peak / 1e6:11.1f} {100 * (found.peak / peak - 1):+6.1f} %" if peak == peak else f" {'-':>11}"
        lines.append(line)
    return "\n".join(lines)

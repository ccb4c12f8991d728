"""Lowering of an mtf graph whose slices need not be equal: `Lowering`, and a rule per operation that needs one."""

# Importing these modules registers their rules
from mtf_hetero.lowering import (
    batch_norm,
    conv,
    draws,
    local,
    lookup,
    loop,
    pool,
    reshape,
    rounds,
    slices,
    sums,
    windows,
)
from mtf_hetero.lowering.lowering import Lowering

__all__ = [
    "Lowering",
    "batch_norm",
    "conv",
    "draws",
    "local",
    "lookup",
    "loop",
    "pool",
    "reshape",
    "rounds",
    "slices",
    "sums",
    "windows",
]

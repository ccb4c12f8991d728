"""Lowering of an mtf graph whose slices need not be equal: `Lowering`, and a rule per operation that needs one."""

from mtf_hetero.lowering import (  # register rules
    batch_norm,
    conv,
    local,
    lookup,
    loop,
    pool,
    reshape,
    rounds,
    sums,
    windows,
)
from mtf_hetero.lowering.lowering import Lowering

__all__ = ["Lowering", "batch_norm", "conv", "local", "lookup", "loop", "pool", "reshape", "rounds", "sums", "windows"]

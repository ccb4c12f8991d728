"""Operations on unequal slices, one file per family: class, rule, facts for the planner, and the function to call.

A rule says which slices, or boxes of slices, each processor reads, and what it computes of them (`backend`). `registry`
and `traits` look rules and facts up by class. Users find the functions in `mtf_hetero.layers`.

Example:
  >>> y = mtf_hetero.layers.pool(x, kind="max", size=3, strides=2, padding="SAME")
  >>> traits.find_images(y.operation).sizes
  (3, 3)
"""

# They register their rules
from mtf_hetero.ops import (  # noqa: F401
    conv,
    elementwise,
    functions,
    grouped_conv,
    lookup,
    norm,
    pieces,
    pool,
    reshape,
    rounds,
    shuffle,
    sums,
)

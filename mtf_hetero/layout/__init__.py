"""Layouts, and the arithmetic of a split: how a dimension is divided, and which pieces make up a slice. Pure Python.

Example:
  >>> layout = Layout("all:2", "batch:all;filters:all", shares={"all": [3, 1]})
  >>> layout.split("batch", 8), layout.split("channels", 8)
  ((6, 2), (8,))
  >>> layout.bounds("batch", 8)  # where the slices begin, and the size
  (0, 6, 8)
  >>> split_by_share(60, [70, 25, 5])
  (42, 15, 3)
"""

from mtf_hetero.layout.errors import CannotSplitError, UnevenShapeError
from mtf_hetero.layout.layout import Dim, Layout
from mtf_hetero.layout.partition import split_by_share, split_by_time

__all__ = ["CannotSplitError", "Dim", "Layout", "UnevenShapeError", "split_by_share", "split_by_time"]

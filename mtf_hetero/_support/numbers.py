"""Checks of numbers that a user gave."""

import numpy as np


def check_number(value: object, name: str, *, whole: bool = True, zero: bool = False, none: bool = True) -> None:
    """Raise ValueError, in one line, unless `value` is a positive number.

    Args:
      value: what the user gave.
      name: how the user calls it.
      whole: only whole numbers will do.
      zero: zero will do too.
      none: None will do too.
    """
    if value is None and none:
        return
    types = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, types) or not (value > 0 or (zero and value == 0)):
        rule = f"{'zero or ' if zero else ''}a positive {'whole ' if whole else ''}number{' or None' if none else ''}"
        raise ValueError(f"{name} is {value!r}; it must be {rule}")

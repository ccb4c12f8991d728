"""Checks of numbers that a user gave, and of the words in their place."""

import math
import re

import numpy as np

AUTO, FOREVER, OFF = "auto", "forever", "off"
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")


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


def parse_wait(value: float | str | bool, name: str) -> float | None:
    """Return the seconds to wait for a lost worker: infinity if forever; None: its loss is an error.

    Raises:
      ValueError: the value is neither; `name` is the user's word for it.
    """
    if isinstance(value, str) and value.strip() != FOREVER:
        if not _SECONDS.fullmatch(value.strip()):
            raise ValueError(f"{name} is {value!r}; write seconds, such as 60, or {FOREVER}")
        return float(value)
    if not isinstance(value, str | bool):
        check_number(value, name, whole=False, zero=True, none=False)
        return value
    return math.inf if value else None


def parse_rebalance(value: float | str, name: str) -> float | None:
    """Return the least seconds between two changes of the shares: 0 for auto; None: they stay.

    Raises:
      ValueError: the value is none of these; `name` is the user's word for it.
    """
    if not isinstance(value, str):
        check_number(value, name, whole=False, none=False)
        return value
    text = value.strip()
    if text in (AUTO, OFF):
        return None if text == OFF else 0.0
    if not _SECONDS.fullmatch(text) or not float(text):
        raise ValueError(f"{name} is {value!r}; write {AUTO}, {OFF}, or a positive number of seconds")
    return float(text)

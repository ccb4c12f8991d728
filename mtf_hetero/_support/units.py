"""Format seconds, bytes and prices for people."""

import math


def seconds_text(seconds: float) -> str:
    """Return seconds with three digits.

    Example:
      >>> seconds_text(0.01234), seconds_text(2.5)
      ('12.3 ms', '2.50 s')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds >= 100 else f"{seconds:.2f} s"


def bytes_text(count: float) -> str:
    """Return bytes with three digits.

    Example:
      >>> bytes_text(1234567)
      '1.23 MB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} bytes"


def price_text(price: float) -> str:
    """Return a price with three digits, or as many as it has before the point.

    Example:
      >>> price_text(0.000123456), price_text(2.5), price_text(12345.6)
      ('0.000123', '2.50', '12,346')
    """
    digits = max(0, 2 - math.floor(math.log10(price))) if price else 0
    return f"{price:,.{digits}f}"

"""Format seconds and bytes for people."""


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

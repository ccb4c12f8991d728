"""How thoroughly devices are measured. No TensorFlow: it holds the defaults of flags."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Effort:
    """How thoroughly to measure.

    Args:
      sizes: at how many sizes a layer is measured, from one granule to the whole; where the times are found not to lie
        on a line, at up to twice as many.
      repeats: how often at least, if the budget allows.
      precision: the standard error of a median, as a fraction of it, at which repeating ends.
      sample_seconds: how long one sample takes at least, if the layer can be repeated so often. A worker under a CPU
        quota runs at full speed within its period, a tenth of a second: take no less.
      budget_seconds: when to stop repeating. Everything is measured once whatever it takes.

    Raises:
      ValueError: a value that is out of range.
    """

    sizes: int = 6
    repeats: int = 3
    precision: float = 0.02
    sample_seconds: float = 0.1
    budget_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name, least in (("sizes", 2), ("repeats", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, {least} or more")
        for name in ("precision", "sample_seconds", "budget_seconds"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value!r}; it must be a positive number")

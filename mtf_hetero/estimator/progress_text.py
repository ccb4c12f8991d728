"""Text of a training's progress: a line of a log, and the two lines that a terminal shows. No TensorFlow.

Example:
  >>> status = Status(400, 1565, epoch=2, epochs=3, loss=0.412, accuracy=0.91, speed=1230.4, seconds_left=118)
  >>> log_line(status, "images")
  'step 400/1565  epoch 2/3  loss 0.412  acc 0.91  1,230 images/s  2 min left'
"""

import dataclasses
from collections.abc import Callable, Mapping

MOST_DEVICES = 6  # that are shown one by one
_LEAST_BAR, _DEVICE_BARS = 6, (8, 5, 3)  # columns
_DROPPED = ("epoch", "accuracy", "speed", "loss", "left")  # from a narrow terminal, in this order, after the unit


@dataclasses.dataclass(frozen=True)
class Status:
    """One moment of a training. None, or no device, stands for what is unknown.

    Args:
      step: the global step.
      steps: the global step at which training ends.
      epoch: number of the present epoch, from 1 on.
      epochs: number of the last epoch.
      loss: mean over the last steps.
      accuracy: the same.
      speed: examples per second.
      seconds_left: until the last step.
      busy: {device: the share of a step in which the device computes}.
    """

    step: int
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    speed: float | None = None
    seconds_left: float | None = None
    busy: Mapping[str, float] = dataclasses.field(default_factory=dict)


def log_line(status: Status, unit: str) -> str:
    """Return one line for a log.

    Args:
      status: what to show.
      unit: what the examples are called.
    """
    texts = _texts(status, unit)
    order = ("step", "epoch", "loss", "accuracy", "speed", "busy", "left")
    texts |= {"step": f"step {texts['step']}", "busy": _busy_text(status.busy)}
    return "  ".join(texts[name] for name in order if texts.get(name))


def bar_format(status: Status, unit: str, columns: int) -> str:
    """Return the format of a tqdm bar. A narrow terminal gets fewer of the numbers.

    Args:
      status: what to show.
      unit: what the examples are called.
      columns: that the bar may fill.
    """
    texts = _texts(status, unit)
    bar = " |{bar}| " if status.steps else "  "
    for dropped in ("", "unit", *_DROPPED):
        texts.pop(dropped, "")
        if dropped == "unit" and "speed" in texts:
            texts["speed"] = texts["speed"].replace(f" {unit}/", "/")
        left = "  ".join(texts[name] for name in ("epoch", "step") if name in texts)
        right = "  ".join(texts[name] for name in ("loss", "accuracy", "speed", "left") if name in texts)
        if len(left) + len(right) + 4 + _LEAST_BAR <= columns:
            break
    return f"{left}{bar}{right}".rstrip()


def busy_line(busy: Mapping[str, float], columns: int, draw: Callable[[float, int], str]) -> str:
    """Return a line with a short bar for each device; one bar for all of them where they are many.

    Args:
      busy: {device: the share of a step in which it computes}.
      columns: that the line may fill.
      draw: from a share and a number of columns to a bar.
    """
    if not busy:
        return ""
    if len(busy) <= MOST_DEVICES:
        for width in _DEVICE_BARS:
            cells = [f"{device} |{draw(share, width)}| {share:.0%}" for device, share in busy.items()]
            line = f"busy  {'  '.join(cells)}"
            if len(line) <= columns:
                return line
    mean, low, high = sum(busy.values()) / len(busy), min(busy, key=busy.__getitem__), max(busy, key=busy.__getitem__)
    parts = [f"busy  {len(busy)} devices |{draw(mean, _DEVICE_BARS[0])}| {mean:.0%}"]
    parts += [f"least {low} {busy[low]:.0%}", f"most {high} {busy[high]:.0%}"]
    while len("  ".join(parts)) > columns and len(parts) > 1:
        parts.pop()
    return "  ".join(parts)[:columns]


def duration(seconds: float) -> str:
    """Return a time in one or two units.

    Example:
      >>> duration(35), duration(130), duration(12000), duration(200000)
      ('35 s', '2 min', '3 h 20 min', '2 d 8 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 24 * 60 else f"{hours // 24} d {hours % 24} h"


def _texts(status: Status, unit: str) -> dict[str, str]:
    """Return {part: its text} of the parts that are known."""
    texts = {"step": str(status.step) if status.steps is None else f"{status.step}/{status.steps}"}
    if status.epoch is not None:
        texts["epoch"] = f"epoch {status.epoch}" if status.epochs is None else f"epoch {status.epoch}/{status.epochs}"
    if status.loss is not None:
        texts["loss"] = f"loss {status.loss:.{'3f' if 1e-3 <= abs(status.loss) < 1e3 else '1e'}}"
    if status.accuracy is not None:
        texts["accuracy"] = f"acc {status.accuracy:.2f}"
    if status.speed is not None:
        texts["speed"] = f"{status.speed:,.{0 if status.speed >= 100 else 1}f} {unit}/s"
    if status.seconds_left and status.seconds_left > 0:
        texts["left"] = f"{duration(status.seconds_left)} left"
    return texts


def _busy_text(busy: Mapping[str, float]) -> str:
    shares = [f"{share:.2f}" for share in busy.values()]
    if not shares:
        return ""
    return f"busy {' '.join(shares) if len(shares) <= MOST_DEVICES else f'{min(shares)} to {max(shares)}'}"

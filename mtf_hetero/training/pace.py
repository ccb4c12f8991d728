"""The pace of a training after its first steps, and the pace of its measurements."""

import time

WARM_UP_STEPS = 5  # of a session: TensorFlow prepares the graph, and memory, and fills the pipelines of the input

_MEASURED_SECONDS = 10.0  # at least, between two steps in which the devices are measured
_MOST_COST = 0.01  # of the training's time, that measuring takes


class Pace:
    """Counts steps and the seconds that they took, but for the first ones of a session.

    Attributes:
      steps: counted.
      seconds: of these.
    """

    def __init__(self) -> None:
        self.steps, self.seconds = 0, 0.0
        self._warm_up: list[float] = []  # seconds of the steps that are not counted
        self._begin: float | None = None

    def begin_session(self) -> None:
        """Expect the next steps to be as slow as the first ones."""
        self._warm_up, self._begin = [], None

    def begin_step(self) -> None:
        """Note that a step begins."""
        self._begin = time.monotonic()

    def end_step(self, *, counted: bool = True, steps: int = 1) -> None:
        """Note that the step ends, or several; `counted`: they have done nothing out of the ordinary."""
        if self._begin is None:
            return
        seconds = time.monotonic() - self._begin
        if len(self._warm_up) < WARM_UP_STEPS:
            self._warm_up.append(seconds / steps)
        elif counted:
            self.steps, self.seconds = self.steps + steps, self.seconds + seconds

    def reset(self) -> None:
        """Count from 0 again."""
        self.steps, self.seconds = 0, 0.0

    @property
    def steps_per_second(self) -> float | None:
        """Return the speed of the counted steps; without any, of all but the first, or of that one."""
        steps, seconds = self.steps, self.seconds
        if not steps:
            shown = self._warm_up[1:] or self._warm_up
            steps, seconds = len(shown), sum(shown)
        return steps / max(seconds, 1e-9) if steps else None


class MeasuringPace:
    """Chooses the steps of a session in which the devices are measured, the first one after the warm-up.

    Args:
      every_steps: steps between two of them; None: every 10 seconds, and less often if that takes more than 1 % of the
        time.
    """

    def __init__(self, every_steps: int | None = None) -> None:
        self._every_steps, self._next = every_steps, 0.0

    def is_due(self, step: int) -> bool:
        """Return whether a step is measured, by its number in its session."""
        if step < WARM_UP_STEPS:
            return False
        if self._every_steps is None:
            return time.monotonic() >= self._next
        return step % self._every_steps == WARM_UP_STEPS % self._every_steps

    def end_step(self, seconds: float, pace: Pace) -> None:
        """Note how long a measured step was, and how long others are."""
        cost = max(seconds - 1.0 / (pace.steps_per_second or 1e9), 0.0)
        self._next = time.monotonic() + max(_MEASURED_SECONDS, cost / _MOST_COST)

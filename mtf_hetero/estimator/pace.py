"""How fast a training goes, once it has got going."""

import time

WARM_UP_STEPS = 5  # of a session: TensorFlow prepares the graph, and memory, and fills the pipelines of the input


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
        """What follows is as slow at first as the beginning was."""
        self._warm_up, self._begin = [], None

    def begin_step(self) -> None:
        """A step begins."""
        self._begin = time.monotonic()

    def end_step(self, *, counted: bool = True) -> None:
        """The step ends; `counted`: as far as it has done nothing out of the ordinary."""
        if self._begin is None:
            return
        seconds = time.monotonic() - self._begin
        if len(self._warm_up) < WARM_UP_STEPS:
            self._warm_up.append(seconds)
        elif counted:
            self.steps, self.seconds = self.steps + 1, self.seconds + seconds

    def reset(self) -> None:
        """Counts from 0 again."""
        self.steps, self.seconds = 0, 0.0

    @property
    def steps_per_second(self) -> float | None:
        """Of the steps that were counted; where there are none, of all but the first, or of that one."""
        steps, seconds = self.steps, self.seconds
        if not steps:
            shown = self._warm_up[1:] or self._warm_up
            steps, seconds = len(shown), sum(shown)
        return steps / max(seconds, 1e-9) if steps else None

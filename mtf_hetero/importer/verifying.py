"""Decides which first steps are compared with TensorFlow's own, and says so in one line."""

import time
from collections.abc import Callable, Hashable, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import extras
from mtf_hetero._support.free_memory import free_bytes
from mtf_hetero.cluster import Cluster, UnreachableWorkerError
from mtf_hetero.cost import quick
from mtf_hetero.importer.comparing import Arrays, Comparison, Devices, Holder, Own, Side, StepDiffersError, read_state
from mtf_hetero.importer.program import within
from mtf_hetero.importer.work import estimate_flops, made_bytes, size_bytes

AUTO = "auto"
Verify = bool | str

_FLAGS = "verify=True", "verify=False"
_SECONDS, _SHARE = 5.0, 0.05  # that a comparison may take by itself: of these the larger, the share of the training
_NODE_SECONDS, _SLOW_FLOPS = 0.002, 2e9  # of TensorFlow's first run, for each operation; of the slowest host, a second
_BYTES_PER_SECOND = 1e8  # of variables that come from workers
_MEMORY_SHARE = 0.5  # of the memory that is free


def check_verify(verify: object) -> None:
    """Raise ValueError unless an argument is one of the values that `verify` may have."""
    if not isinstance(verify, bool) and verify != AUTO:
        raise ValueError(f"verify is {verify!r}; it must be True, False or {AUTO!r}")


class Verification:
    """Compares the first step of each kind of inputs, while that is cheap.

    Args:
      mode: True: all of them; "auto": those that cost less than 5 % of the training that follows, or 5 seconds.
      steps: number of steps to come; None: it is not known.
      announces: whether to print the line that says so; else it is logged.
      flags: how the user writes the modes True and False.

    Attributes:
      seconds: that comparisons took.
      lines: what was compared, for the user.
    """

    def __init__(
        self, mode: Verify, steps: int | None = None, *, announces: bool = False, flags: tuple[str, str] = _FLAGS
    ) -> None:
        self._mode, self._steps, self._announces, self._flags = mode, steps, announces, flags
        self._own: Own | None = None
        self._done: set[Hashable] = set()
        self.seconds, self.lines = 0.0, list[str]()

    def continue_from(self, other: "Verification | None") -> "Verification":
        """Return this one, for a session whose first steps another one has compared, as far as they need it."""
        if other is not None and self._mode is not True:
            self._done |= other._done
        return self

    def compare_with(self, own: Own | None) -> None:
        """Compare all first steps with another library's own; None: with their traces. Only for mode True."""
        self._own = own if self._mode is True else None

    def is_due(self, kind: Hashable) -> bool:
        """Return whether the next step of a kind of inputs is to be compared."""
        return self._mode is not False and kind not in self._done

    def take(
        self,
        kind: Hashable,
        devices: Devices,
        inputs: Sequence[object],
        take: Callable[[], Arrays],
        holder: Holder,
    ) -> Arrays:
        """Take a step on the devices, compare it with TensorFlow's, and return its results.

        Args:
          kind: of inputs.
          devices: what is compared.
          inputs: of the step.
          take: takes it.
          holder: of the variables.

        Raises:
          StepDiffersError: they differ; the devices have the values from before the step.
        """
        before = read_state(devices.program, holder)
        begin = time.monotonic()
        results = take()
        seconds = time.monotonic() - begin
        try:
            found = Side(results, read_state(devices.program, holder))
        except UnreachableWorkerError:  # the step was taken; the next one has to do with the loss
            self._say("first step not compared with TensorFlow's: a worker was lost after it")
            return results
        comparison = Comparison(devices, before, inputs, self._own)
        try:
            self.compare(kind, comparison, found, seconds)
        except StepDiffersError:
            comparison.restore(holder)
            raise
        return results

    def compare(self, kind: Hashable, comparison: Comparison, found: Side, step_seconds: float) -> None:
        """Compare a step that was taken on the devices.

        Args:
          kind: of inputs.
          comparison: with TensorFlow's step.
          found: results and variables on the devices.
          step_seconds: that the step took.

        Raises:
          StepDiffersError: they differ.
        """
        self._done.add(kind)
        if why := self._excess(comparison.devices, step_seconds):
            self._say(f"first step not compared with TensorFlow's: {why}; {self._flags[0]} compares it")
            return
        begin = time.monotonic()
        try:
            difference = comparison.difference(found)
        except (tf.errors.ResourceExhaustedError, tf.errors.UnimplementedError, tf.errors.NotFoundError) as error:
            if self._mode is True:
                raise
            why = str(error.message).splitlines()[0]
            self._say(f"first step not compared with TensorFlow's, which this host cannot take: {why}")
            return
        if difference is not None:
            raise StepDiffersError(
                f"the first step differs from TensorFlow's: {difference}; the step is not kept; please report this "
                f"with the program, and use {self._flags[1]} to train without the check"
            )
        seconds = time.monotonic() - begin
        self.seconds += seconds
        self._say(f"first step equals TensorFlow's, {seconds:.1f} s{comparison.exceptions()}")

    def _excess(self, devices: Devices, step_seconds: float) -> str:
        """Return why a comparison is not cheap; "" if it is."""
        if self._mode is True:
            return ""
        program = devices.program
        held = sum(size_bytes(v.before) for v in program.variables)
        budget = max(_SECONDS, _SHARE * step_seconds * (self._steps or 0)) - self.seconds
        flops = sum(op.times * estimate_flops(op) for op in within(program.operations))
        fixed = len(program.concrete.graph.get_operations()) * _NODE_SECONDS
        fixed += held / _BYTES_PER_SECOND if devices.on_workers else 0.0
        seconds = fixed + flops / _SLOW_FLOPS
        if seconds > budget:
            seconds = fixed + 2 * flops / quick.measure_rates(Cluster.local(["cpu:0"]))["cpu:0"]
        if seconds > budget:
            return f"that would take about {seconds:.0f} s on this host"
        needed = made_bytes(program) + 4 * held
        if needed > _MEMORY_SHARE * free_bytes():
            return f"that would need up to {needed / 2**30:.1f} GiB of this host's memory"
        return ""

    def _say(self, line: str) -> None:
        """Print the first line, and log the others: a last batch of another size, and a test, have their own."""
        self.lines.append(line)
        if self._announces and len(self.lines) == 1:
            extras.write_above_bars(line)
        else:
            tf.logging.info("%s", line)

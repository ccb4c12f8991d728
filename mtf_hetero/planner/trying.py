"""Plans tried beside each other: whole steps in turns, and which plan wins."""

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost.trial import Trial
from mtf_hetero.planner.plan import Plan

ROUNDS = 5  # of the candidates' turns
LEAST_ROUNDS = 2  # if the time is short
_TURN_SECONDS = 0.3  # a worker under a CPU quota runs in periods of a tenth of a second


def race(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    candidates: Mapping[str, Plan],
    *,
    rounds: int = ROUNDS,
    opened: Mapping[str, Trial] | None = None,
    done: Callable[[], object] = lambda: None,
) -> dict[str, tuple[float, ...]]:
    """Return {name: seconds of a step in each turn} of plans that take turns.

    After a time limit, the complete rounds count if there are at least two; otherwise the result is {}.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: where the devices are.
      candidates: {name: the plan}; the first one begins, then the fastest by prediction.
      rounds: of turns, at most.
      opened: {name: a trial that runs already}.
      done: called after each round.
    """
    first, *others = candidates
    turns: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        trials: dict[str, Trial] = {}
        with contextlib.suppress(OutOfTimeError):
            for name in [first, *sorted(others, key=lambda name: candidates[name].seconds)]:
                trial = (opened or {}).get(name) or stack.enter_context(
                    Trial(build, candidates[name].layout, candidates[name].devices, cluster)
                )
                trial.run()  # TensorFlow prepares the graph
                trials[name] = trial
            turns = {name: [] for name in candidates}
            for number in range(rounds):
                for name in candidates:
                    turns[name].append(_turn(trials[name], first=number == 0))
                done()
    complete = min((len(times) for times in turns.values()), default=0)
    if complete < min(LEAST_ROUNDS, rounds):
        return {}
    return {name: tuple(times[:complete]) for name, times in turns.items()}


def _turn(trial: Trial, *, first: bool) -> float:
    """Return the mean seconds of the steps of a turn."""
    steps = [trial.run()]
    if first or steps[0] < _TURN_SECONDS:  # the first step after a pause, or after the very first one
        steps.pop()
    while not steps or math.fsum(steps) < _TURN_SECONDS:
        steps.append(trial.run())
    return statistics.fmean(steps)


def race_seconds(plans: Mapping[str, Plan], opened: Mapping[str, object], build_seconds: float) -> float:
    """Estimate the seconds of a race of the fewest rounds."""
    turn = math.fsum(max(plan.seconds, 2 * _TURN_SECONDS) for plan in plans.values())
    steps = math.fsum(plan.seconds for name, plan in plans.items() if name not in opened)
    return build_seconds * len(set(plans) - set(opened)) + 2 * steps + LEAST_ROUNDS * turn


def winner(trials: Mapping[str, Sequence[float]]) -> str:
    """Return the winner: a later candidate only if it wins more than 75 % of the rounds.

    Args:
      trials: {name: seconds of a step in each round}, the simplest first.

    Example:
      >>> winner({"alone": (1.0, 1.1, 1.0), "batch": (0.9, 1.2, 1.1), "plan": (0.8, 0.9, 0.8)})
      'plan'
    """
    best, *others = trials
    for other in others:
        ratios = [b / a for a, b in zip(trials[best], trials[other], strict=True)]
        if statistics.quantiles(ratios, n=4, method="inclusive")[2] < 1.0:
            best = other
    return best

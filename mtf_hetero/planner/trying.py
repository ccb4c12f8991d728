"""Plans tried beside each other: whole steps in turns, and which plan wins."""

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost.trial import Trial
from mtf_hetero.planner.objective import NO_GAIN
from mtf_hetero.planner.plan import Plan

# In 20 settings whose races were replayed, the median of the rounds and of the prediction finds the faster candidate in
# 96 % of them, and a step takes 0.3 % longer than the fastest. A split that had to win 75 % of the rounds: 87 %, 1.6 %.
ROUNDS = 5  # of the candidates' turns; twice as many while the winner is not clear
_CLEAR = 0.75  # of the rounds, which a clear winner wins
_TURN_SECONDS = 0.3  # a worker under a CPU quota runs in periods of a tenth of a second


def race(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    candidates: Mapping[str, Plan],
    *,
    rounds: int = ROUNDS,
    least: int = 1,
    opened: Mapping[str, Trial] | None = None,
    done: Callable[[], object] = lambda: None,
) -> dict[str, tuple[float, ...]]:
    """Return {name: seconds of a step in each turn} of plans that take turns.

    After a time limit, the complete rounds count if there are enough; otherwise the result is {}.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: where the devices are.
      candidates: {name: the plan}; the first one begins, then the fastest by prediction.
      rounds: of turns. If the winner is not clear then, there are at most twice as many.
      least: rounds that are enough.
      opened: {name: a trial that runs already}.
      done: called after each round.
    """
    first, *others = candidates
    predicted = {name: plan.seconds for name, plan in candidates.items()}
    turns: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        trials: dict[str, Trial] = {}
        with contextlib.suppress(OutOfTimeError):
            for name in [first, *sorted(others, key=predicted.__getitem__)]:
                trial = (opened or {}).get(name) or stack.enter_context(
                    Trial(build, candidates[name].layout, candidates[name].devices, cluster)
                )
                trial.run()  # TensorFlow prepares the graph
                trials[name] = trial
            turns = {name: [] for name in candidates}
            for number in itertools.count():
                if number >= rounds and (number >= 2 * rounds or _is_clear(turns, predicted)):
                    break
                for name in candidates:
                    turns[name].append(_turn(trials[name], first=number == 0))
                if number < rounds:
                    done()
    complete = min((len(times) for times in turns.values()), default=0)
    if complete < least:
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


def race_seconds(
    plans: Mapping[str, Plan], opened: Mapping[str, object], build_seconds: float, least: int = 1
) -> float:
    """Estimate the seconds of a race of the fewest rounds, of which the first one takes twice as long."""
    turn = math.fsum(max(plan.seconds, 2 * _TURN_SECONDS) for plan in plans.values())
    steps = math.fsum(plan.seconds for name, plan in plans.items() if name not in opened)
    return build_seconds * len(set(plans) - set(opened)) + steps + (least + 1) * turn


def winner(trials: Mapping[str, Sequence[float]], predicted: Mapping[str, float]) -> str:
    """Return the candidate with the least expected time of a step; the simplest one if no other is 2 % faster.

    The expected time is the median of the rounds and of the prediction, which is about as exact as one round. So one
    slow round decides nothing.

    Args:
      trials: {name: seconds of a step in each round}, the simplest first.
      predicted: {name: seconds of a step}.

    Example:
      >>> winner({"alone": (2.9, 2.9, 2.8), "plan": (3.0, 2.4, 2.4)}, {"alone": 2.9, "plan": 2.3})
      'plan'
    """
    expected = {name: statistics.median([*times, predicted[name]]) for name, times in trials.items()}
    limit = (1.0 + NO_GAIN) * min(expected.values())
    return next(name for name, seconds in expected.items() if seconds <= limit)


def _is_clear(trials: Mapping[str, Sequence[float]], predicted: Mapping[str, float]) -> bool:
    """Return whether the winner is faster than each other candidate in most of the rounds."""
    best = winner(trials, predicted)
    wins = ([a < b for a, b in zip(trials[best], times, strict=True)] for name, times in trials.items() if name != best)
    return all(statistics.fmean(of_other) >= _CLEAR for of_other in wins)

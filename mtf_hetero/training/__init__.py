"""A training that goes on: one runtime, and one course for lost, returned, new, slower and faster devices.

    runtime      opens a session, runs a step in it, reads and writes its variables, rescues them
    course       finds the next place of a training (elastic moves it there, changes tells about it)
    steps        takes steps that outlive the workers: a copy of the state, and the steps since then
    rebalancing  decides on other shares (load and meter measure, at some pace; balance tells noise from a change)

`Estimator.train` takes an Elastic; `mtf_hetero.function` and `mtf_hetero.keras.fit` take ElasticSteps.

Example:
  >>> elastic = Elastic(without=lambda lost: Place(smaller_estimator, input_fn))
  >>> estimator.train(input_fn, max_steps=1000, elastic=elastic)  # goes on elsewhere if a worker is lost
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.training.course import Course
    from mtf_hetero.training.elastic import Elastic, Event
    from mtf_hetero.training.runtime import Runtime
    from mtf_hetero.training.steps import Changes, ElasticSteps, Policy

__all__ = ["Changes", "Course", "Elastic", "ElasticSteps", "Event", "Policy", "Runtime"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        **dict.fromkeys(__all__, "steps"),
        "Course": "course",
        "Elastic": "elastic",
        "Event": "elastic",
        "Runtime": "runtime",
    },
)

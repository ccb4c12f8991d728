"""Programs of the benchmark any_step give what TensorFlow gives: the small ones of each kind, divided unevenly."""

import pytest
import tiers

from benchmarks.frameworks.any_step import BATCH, PLANNED, WEIGHTS, AnyStep
from benchmarks.programs import programs, registry

FIRST = ["loops/logistic_newton", "structured_data/structured_data_classification_with_feature_space"]
ON_EVERY_LAYOUT = ["vision/metric_learning", "vision/forwardforward"]
OTHERS = [
    *("vision/mnist_convnet", "vision/grad_cam", "rl/actor_critic_cartpole", "rl/ppo_cartpole"),
    *("loops/meta_learning", "loops/normalizing_flow", "loops/kalman_filter", "generative/conditional_gan"),
    *("timeseries/timeseries_weather_forecasting", "graph/node2vec_movielens", "vision/handwriting_recognition"),
]


@tiers.parametrize("name", [*FIRST, *tiers.in_turn([*ON_EVERY_LAYOUT, *OTHERS])], first=FIRST)
def test_a_program(name):
    layouts = [BATCH, WEIGHTS, PLANNED] if name in ON_EVERY_LAYOUT else [BATCH]
    found = AnyStep().run(name, layouts, steps=3)
    assert "refused" not in found, found["refused"]
    for layout in layouts:
        differences = found["layouts"][layout]
        assert max(differences["results"], differences["variables"]) <= programs()[name].tolerance
    assert found["layouts"][BATCH]["replicated_examples"] < 0.02


def test_programs_say_why_they_are_not_exact():
    for entry in programs().values():
        assert entry.source and (entry.reason or (entry.dtype, entry.tolerance) == ("float64", registry.EXACT))


def test_a_program_needs_a_reason_and_a_name_of_its_own():
    with pytest.raises(ValueError, match=r"^dtype is float32 and tolerance 1e-09 without a reason; give reason=$"):
        registry.program("vision", source="x", dtype="float32")

    def mnist_convnet():
        raise AssertionError

    assert "vision/mnist_convnet" in programs()

    with pytest.raises(ValueError, match=r"^program vision/mnist_convnet is registered twice; rename one$"):
        registry.program("vision", source="x")(mnist_convnet)

"""Programs of the benchmark any_step give what TensorFlow gives: the small ones of each kind, divided unevenly."""

import pytest
import tiers

from benchmarks.frameworks.any_step import BATCH, PLANNED, WEIGHTS, AnyStep
from benchmarks.programs import programs, registry

FIRST = [  # the smallest of each kind
    *("vision/grad_cam", "vision/metric_learning", "vision/mnist_convnet", "vision/forwardforward"),
    *("loops/logistic_newton", "loops/matrix_factorisation", "rl/actor_critic_cartpole"),
    *("nlp/multi_label_classification", "structured_data/structured_data_classification_with_feature_space"),
    *("timeseries/timeseries_anomaly_detection", "graph/node2vec_movielens", "guides/writing_your_own_callbacks"),
]
QUICK = [
    *FIRST,
    *("vision/gradient_centralization", "vision/consistency_training", "vision/autoencoder"),
    *("loops/meta_learning", "loops/normalizing_flow", "loops/burgers_equation", "loops/kalman_filter"),
    *("structured_data/imbalanced_classification", "nlp/pretrained_word_embeddings", "generative/conditional_gan"),
    *("timeseries/timeseries_weather_forecasting", "generative/vae", "rl/ppo_cartpole"),
]


def check(name, layouts):
    found = AnyStep().run(name, layouts, steps=3)
    assert "refused" not in found, found["refused"]
    for layout in layouts:
        differences = found["layouts"][layout]
        assert max(differences["results"], differences["variables"]) <= programs()[name].tolerance
    assert found["layouts"][BATCH]["replicated_examples"] < 0.02


@tiers.parametrize("name", QUICK, first=[*FIRST[2:5:2], *FIRST[6:]])  # one of each kind
def test_a_program(name):
    check(name, [BATCH])


@pytest.mark.full
@pytest.mark.parametrize("name", FIRST[:4])
def test_weights_and_plans(name):
    check(name, [BATCH, WEIGHTS, PLANNED])


def test_programs_say_why_they_are_not_exact():
    for entry in programs().values():
        assert entry.source and (entry.reason or (entry.dtype, entry.tolerance) == ("float64", registry.EXACT))


def test_a_program_needs_a_reason_and_a_name_of_its_own():
    with pytest.raises(ValueError, match=r"^dtype is float32 and tolerance 1e-09 without a reason; give reason=$"):
        registry.program("vision", source="x", dtype="float32")

    def mnist_convnet():
        raise AssertionError

    with pytest.raises(ValueError, match=r"^program vision/mnist_convnet is registered twice; rename one$"):
        registry.program("vision", source="x")(mnist_convnet)

"""Programs of the benchmark any_step, by their own train steps: `keras.fit` gives what `model.fit` gives."""

from typing import Any

import keras
import numpy as np
from fit_oracle import PLACES, check, make_model
from keras_oracle import floatx
from tiers import in_turn, parametrize

from benchmarks.programs import programs
from benchmarks.programs.registry import BATCH
from mtf_hetero import tf

WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, BATCH)


def make_callbacks():
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: float(rate) * 0.7),
        keras.callbacks.EarlyStopping(monitor="loss", patience=0, restore_best_weights=True),
    ]


# Each has a way to train, a layer, or options that the others have not
OPTIONS = {
    "applications/ConvNeXtTiny": {"epochs": 1},
    "applications/MobileNetV2": {"epochs": 1},
    "guides/training_with_built_in_methods": {"sample_weight": (WEIGHTS, WEIGHTS[::-1])},  # of two outputs
    "vision/knowledge_distillation": {},  # a loss of a network that stays
    "vision/semisupervised_simclr": {},  # two views of an example, and two optimizers
    "vision/mixup": {},
    "vision/mnist_convnet": {"validation_split": 0.3, "validation_freq": 2, "epochs": 3},
    "vision/involution": {},  # patches of images
    "vision/swin_transformers": {},  # windows that are shifted, and dropped paths
    "generative/vae": {},  # metrics of its own, and draws within the model
    "generative/wgan_gp": {},  # two networks in turn, and a gradient of a gradient
    "nlp/bidirectional_lstm_imdb": {"class_weight": {0: 0.5, 1: 2.0}},
    "nlp/text_classification_with_switch_transformer": {},  # experts that are chosen
    "timeseries/timeseries_classification_transformer": {"callbacks": make_callbacks, "epochs": 3},
    "structured_data/wide_deep_cross_networks": {"sample_weight": WEIGHTS},
}


FIRST, *OTHERS = sorted(OPTIONS, key=lambda name: name != "vision/knowledge_distillation")


@parametrize("name", [FIRST, *in_turn(OTHERS)], first=[FIRST])
def test_a_program(name):
    make: Any = programs()[name].make
    with floatx(tf.float64):
        data = make_model(make).data
    place = PLACES[list(OPTIONS).index(name) % 2]
    arguments = data if isinstance(data, tuple) else (data,)
    check(lambda: make().model, *arguments, places=[place], **OPTIONS[name])

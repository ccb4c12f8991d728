"""Keras models on stages, by `fit` and `build`: each device has blocks of the model, and the results are Keras's."""

import keras
import keras_oracle
import numpy as np
import pytest
import staged_models
from fit_oracle import check, images, same
from import_oracle import DEVICES
from steps import crossentropy

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.layouts import LAYOUTS

STAGES = {"devices": DEVICES, "layout": "stages", "list_speed": [2, 2, 1]}


def make():
    model = staged_models.resnet()
    model.compile(keras.optimizers.Adam(0.01), crossentropy(), metrics=["accuracy"])
    return model


def test_fit_evaluate_and_predict_are_those_of_keras():
    """The last batch has one example. A second fit goes on, also on another layout."""
    data = images(17, 8)
    (model,) = check(make, *data, places=[STAGES], validation_data=images(8, 8, seed=1), again=True)
    found = mtf_hetero.keras.evaluate(model, *data, verbose=0, **STAGES)
    same(dict(enumerate(found)), dict(enumerate(model.evaluate(*data, verbose=0))), 1e-6)
    predicted = mtf_hetero.keras.predict(model, data[0], verbose=0, **STAGES)
    np.testing.assert_allclose(predicted, model.predict(data[0], verbose=0), atol=1e-6)
    history = mtf_hetero.keras.fit(model, *data, verbose=0, **STAGES | {"layout": "batch"})
    assert list(history.layout) == ["batch"]


@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_builder_gives_stages_names_of_the_batch(training):
    def layouts(graph):
        layout = LAYOUTS["stages"](graph, mesh_shape="all:3", shares={"all": [2, 2, 1]})
        assert "stage1/batch" in dict(layout.rules)
        return [layout]

    with keras_oracle.floatx(tf.float64):
        model = staged_models.resnet() if training else staged_models.residual()
        keras_oracle.check(model, training=training, dtype=tf.float64, layouts=layouts, is_staged=True)

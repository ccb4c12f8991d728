"""`mtf_hetero.keras.fit` on stages: each device has blocks of the model, and the results are Keras's."""

import keras
import numpy as np
import staged_models
from fit_oracle import check, images, same
from import_oracle import DEVICES
from steps import crossentropy

import mtf_hetero.keras

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

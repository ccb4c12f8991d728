"""Fine-tuning: a network that Keras trained on some digits learns others, over two workers, and is Keras's again."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
from tiers import on_workers

import mtf_hetero.keras
from mtf_hetero.data import mnist5k

FIRST = 5  # digits below it are learnt first


def digits(name, *, others):
    """Images of five digits, and which of the five each shows."""
    images, labels = mnist5k.split(name)
    chosen = (labels >= FIRST) == others
    return images[chosen].astype(np.float32) / 255, labels[chosen] % FIRST


def block(x, filters):
    x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = keras.layers.Activation("relu")(keras.layers.BatchNormalization(momentum=0.9)(x))
    return keras.layers.MaxPooling2D()(x)


def with_head(base):
    inputs = keras.Input((28, 28, 1))
    model = keras.Model(inputs, keras.layers.Dense(FIRST, activation="softmax")(base(inputs)))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@on_workers
@pytest.mark.slow
def test_a_network_learns_other_digits(workers, tmp_path):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((28, 28, 1))
    x = keras.layers.Flatten()(block(block(block(inputs, 8), 16), 24))
    base = keras.Model(inputs, x, name="base")
    with_head(base).fit(*digits("train", others=False), epochs=3, batch_size=50, verbose=0)
    base.trainable = False
    learnt = base.get_weights()

    model, test = with_head(base), digits("test", others=True)
    before = model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
    history = mtf_hetero.keras.fit(
        model,
        digits("train", others=True),
        epochs=4,
        batch_size=60,  # the last one has 20
        validation_data=test,
        verbose=0,
        workers=workers.addresses[:2],
        layout="filters",
        list_speed=np.array([2, 1]),
    ).history
    assert all(np.array_equal(a, b) for a, b in zip(base.get_weights(), learnt, strict=True))
    assert before < 0.5
    assert history["val_accuracy"][-1] > 0.75

    model.save(tmp_path / "tuned.keras")
    loaded: Any = keras.models.load_model(tmp_path / "tuned.keras")
    alone = loaded.evaluate(*test, batch_size=60, verbose=0, return_dict=True)
    assert alone["accuracy"] == history["val_accuracy"][-1]
    np.testing.assert_allclose(alone["loss"], history["val_loss"][-1], rtol=1e-5)

    place = {"workers": workers.addresses[:2], "layout": "filters", "list_speed": [2, 1]}
    losses, some = [], [part[:280] for part in digits("train", others=True)]
    for tuned, train in ((loaded, loaded.fit), (model, functools.partial(mtf_hetero.keras.fit, model, **place))):
        tuned.get_layer("base").trainable = True  # and all of it, a little
        tuned.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
        train(*some, epochs=1, batch_size=60, shuffle=False, verbose=0)
        losses.append(tuned.evaluate(*test, verbose=0))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-2)  # float32: 4e-4 on one device; float64: 2e-15

"""Data of unknown length: Keras asks for a batch that does not exist, and the updates that do not need it are made."""

from typing import Any

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, check, images, network
from tiers import parametrize

from mtf_hetero import tf

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras warns so at the end of the data

IMAGES, LABELS = images(16)
SPEC = tf.TensorSpec((None, 6, 6, 3), tf.float64), tf.TensorSpec((None,), tf.int64)


def arrays():
    return tf.compat.v2.data.Dataset.from_tensor_slices((IMAGES, LABELS))


def filtered():
    return arrays().batch(4).filter(lambda x, y: tf.reduce_sum(y) >= 0)


def filtered_of_one_size():
    """Sizes are known: metrics count the examples of a batch without reading it."""
    return arrays().batch(4, drop_remainder=True).filter(lambda x, y: tf.reduce_sum(y) >= 0)


def generated():
    batches = [(IMAGES[begin : begin + 4], LABELS[begin : begin + 4]) for begin in range(0, 16, 4)]
    return tf.compat.v2.data.Dataset.from_generator(lambda: iter(batches), output_signature=SPEC)


def bucketed():
    buckets: Any = arrays()  # TensorFlow's stubs know no buckets
    return buckets.bucket_by_sequence_length(lambda x, y: tf.cast(y, tf.int32) % 2, [1], [3, 5])


def known():
    return filtered().apply(tf.compat.v2.data.experimental.assert_cardinality(4))


def made(optimizer, dropout=0.0, **options):
    def make():
        model = network(dropout)
        model.compile(optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"], **options)
        return model

    return make


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5))


def averaged():
    return keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))


def accumulated():
    return keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)


@parametrize(
    ("data", "optimizer", "iterations"),
    [
        (filtered, adam, 10),
        (generated, averaged, 10),
        (filtered_of_one_size, keras.optimizers.Nadam, 10),
        (bucketed, sgd, None),
        (generated, scaled, 8),
        (generated, accumulated, 4),
        (known, adam, 8),
    ],
    first=[(filtered_of_one_size, keras.optimizers.Nadam, 10)],
)
def test_the_end_of_data_counts_as_in_keras(data, optimizer, iterations):
    models = check(made(optimizer, 0.3), data(), batch_size=None, shuffle=None, places=(BATCH,))
    if iterations is not None:
        assert {int(model.optimizer.iterations) for model in models} == {iterations}


@pytest.mark.full
def test_the_end_of_validation_data_counts_as_in_keras():
    data = filtered_of_one_size()
    check(made(adam), data, batch_size=None, shuffle=None, validation_data=data)


@pytest.mark.full
def test_the_end_of_data_counts_as_in_keras_for_several_steps_at_once():
    check(made(adam, steps_per_execution=3), filtered(), batch_size=None, shuffle=None)


@pytest.mark.full
def test_callbacks_see_what_was_updated_at_the_end_of_the_data():
    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["step"] = int(self.model.optimizer.iterations)
            logs["kernel"] = float(np.sum(self.model.layers[1].kernel))

    check(made(averaged), generated(), batch_size=None, shuffle=None, callbacks=lambda: [Rates()], again=True)

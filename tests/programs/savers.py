"""Savers of several kinds, and the values in their checkpoints."""

import numpy as np

from mtf_hetero import tf
from mtf_hetero.checkpoint import Saver, SliceSaverBuilder

SAVERS = {
    "plain": lambda: tf.train.Saver(),
    "plain sharded": lambda: tf.train.Saver(sharded=True),
    "large groups": lambda: tf.train.Saver(builder=SliceSaverBuilder()),
    "slices": lambda: tf.train.Saver(builder=SliceSaverBuilder(100)),
    "slices sharded": lambda: tf.train.Saver(builder=SliceSaverBuilder(100), sharded=True),
    "slices once": lambda: Saver(builder=SliceSaverBuilder(100)),
    "slices sharded once": lambda: Saver(builder=SliceSaverBuilder(100), sharded=True),
}


def read(path):
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value, err_msg=name)

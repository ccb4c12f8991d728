"""Loops of TensorFlow, as functions or as operations."""

import contextlib

from mtf_hetero import tf


@contextlib.contextmanager
def control_flow(version):
    """TensorFlow's loops: of functions (2), or of operations (1), as after tf.disable_v2_behavior()."""
    was_2 = tf.control_flow_v2_enabled()
    (tf.enable_control_flow_v2 if version == 2 else tf.disable_control_flow_v2)()
    try:
        yield
    finally:
        (tf.enable_control_flow_v2 if was_2 else tf.disable_control_flow_v2)()

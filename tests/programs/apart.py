"""Workers that need not run: operations of a graph lie on them."""

from mtf_hetero import tf

WORKERS = [f"/job:worker/task:{task}/device:CPU:0" for task in range(4)]
A, B = WORKERS[:2]


def on(device, function, *args, **kwargs):
    """function(*args, **kwargs), whose operations lie on a device."""
    with tf.device(device):
        return function(*args, **kwargs)

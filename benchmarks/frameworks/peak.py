"""What the machine can do: a large float32 product, and a large convolution, in TensorFlow."""

from typing import Any

import numpy as np

from benchmarks.frameworks.trainer import Trainer
from mtf_hetero import tf

_MATMUL_SIZE = 4096
_CONV = {"images": 64, "pixels": 32, "channels": 128, "filters": 128, "kernel": 3}


class Peak(Trainer):
    """A "step" is one product of square matrices, or one forward convolution."""

    def build(self, values: list[Any], *, operation: str) -> int:
        """As in Trainer; `operation`: "matmul" or "conv"; the initial values are not used."""
        with tf.Graph().as_default():
            self._fetch = tf.reduce_max(self._result(operation))  # so that little is copied out
            self._session = tf.Session(config=tf.ConfigProto(device_count={"GPU": 0}))
            self._session.run(tf.global_variables_initializer())
        return 0

    def _result(self, operation: str) -> Any:
        rng = np.random.default_rng(0)

        def variable(*shape: int) -> Any:
            return tf.Variable(rng.standard_normal(shape, np.float32), use_resource=True)

        if operation == "matmul":
            n = _MATMUL_SIZE
            self._flops_per_step = 2 * n**3
            return tf.matmul(variable(n, n), variable(n, n))
        images, pixels, channels, filters, kernel = _CONV.values()
        self._flops_per_step = 2 * images * pixels**2 * kernel**2 * channels * filters
        x, w = variable(images, pixels, pixels, channels), variable(kernel, kernel, channels, filters)
        return tf.nn.conv2d(x, w, strides=1, padding="SAME")

    def step(self) -> float:
        return self._session.run(self._fetch)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "flops_per_step": self._flops_per_step}

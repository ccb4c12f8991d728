"""A rank of tf.distribute.MultiWorkerMirroredStrategy that trains on images in files."""

import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from benchmarks.frameworks.reading import RATE, Problem
from benchmarks.frameworks.slow_link import sent_bytes
from mtf_hetero import tf


class Rank:
    """One worker of the strategy. Keras 3 refuses the strategy in `fit`, so this is the loop of TensorFlow's guide."""

    def __init__(self, rank: int, addresses: Sequence[str], **problem: Any) -> None:
        cluster = tf.train.ClusterSpec({"worker": list(addresses)})
        task = {"task_type": "worker", "task_id": rank, "rpc_layer": "grpc"}
        resolver = tf.compat.v2.distribute.cluster_resolver.SimpleClusterResolver(cluster, **task)
        self._strategy = tf.compat.v2.distribute.MultiWorkerMirroredStrategy(resolver)
        self._problem = Problem(**problem)

    def run(self, epochs: int) -> dict[str, Any]:
        """Train; returns the seconds, the bytes sent and this rank's part of the loss of each epoch."""
        batches = iter(self._strategy.distribute_datasets_from_function(self._read))
        step = self._make_step()
        found: dict[str, list[float]] = {"seconds": [], "sent_bytes": [], "losses": []}
        for _ in range(epochs):
            begin, sent = time.perf_counter(), sent_bytes()
            losses = [step(batches) for _ in range(self._problem.images // self._problem.batch_size)]
            found["losses"].append(float(np.mean(losses)))
            found["seconds"].append(time.perf_counter() - begin)
            found["sent_bytes"].append(sent_bytes() - sent)
        return found

    def _read(self, context: Any) -> Any:
        """Return this rank's images of each batch: a rank that is given batches would read all of them.

        Without an end: where its data end, the strategy asks all ranks in each step whether they have more.
        """
        return self._problem.read(context.input_pipeline_id, context.num_input_pipelines).repeat()

    def _make_step(self) -> Any:
        with self._strategy.scope():
            model, optimizer = self._problem.make_model(), keras.optimizers.SGD(RATE)

        def replica_step(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True))
                loss = tf.reduce_sum(losses) / self._problem.batch_size
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        @tf.compat.v2.function
        def step(batches: Any) -> Any:
            return self._strategy.run(replica_step, next(batches))

        return step

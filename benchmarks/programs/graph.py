"""Programs on graphs, as in keras.io's folder graph."""

from typing import Any

import keras
import numpy as np

from benchmarks.programs.pieces import integers
from benchmarks.programs.registry import KerasStep, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops
SOURCE = "keras.io examples/graph/{}.py"
NODES, EDGES, FEATURES = 21, 70, 12


def _graph() -> tuple[np.ndarray, np.ndarray]:
    """Return features of nodes, and pairs of nodes that have an edge."""
    rng = np.random.default_rng(12)
    features = rng.integers(0, 2, (NODES, FEATURES)).astype(keras.config.floatx())
    return features, rng.integers(0, NODES, (EDGES, 2)).astype("int32")


class GraphAttention(L.Layer):
    """Weighs the neighbours of each node by scores of the edges."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[0][-1], self.units))
        self.score = self.add_weight(shape=(2 * self.units, 1))

    def call(self, inputs: Any) -> Any:
        x, edges = inputs
        z = K.matmul(x, self.kernel)
        source, target = K.take(z, edges[:, 1], axis=0), K.take(z, edges[:, 0], axis=0)
        scores = K.leaky_relu(K.matmul(K.concatenate([target, source], axis=-1), self.score))[:, 0]
        scores = K.exp(K.clip(scores, -2, 2))
        total = K.segment_sum(scores, edges[:, 0], num_segments=NODES)
        shares = scores / (K.take(total, edges[:, 0], axis=0) + 1e-8)
        return K.segment_sum(source * shares[:, None], edges[:, 0], num_segments=NODES)


class AttentionNetwork(keras.Model):
    """Layers of attention heads over a whole graph; the batch names the nodes that count."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.edges = _graph()
        self.first, self.last = L.Dense(28, "relu"), L.Dense(5)
        self.heads = [[GraphAttention(7) for _ in range(4)] for _ in range(2)]

    def call(self, nodes: Any) -> Any:
        x = self.first(self.features)
        for heads in self.heads:
            x = K.relu(K.concatenate([head([x, self.edges]) for head in heads], axis=-1)) + x
        return K.take(self.last(x), nodes, axis=0)


@program("graph", source=SOURCE.format("gat_node_classification"))
def gat_node_classification() -> KerasStep:
    """Attention over the edges of a graph that the model holds."""
    model = AttentionNetwork()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=keras.optimizers.SGD(0.003, momentum=0.9), metrics=["accuracy"])
    return KerasStep(model, (integers(NODES), integers(5)))


def _feedforward(units: int) -> Any:
    layers = [[L.BatchNormalization(), L.Dropout(0.3), L.Dense(units, "gelu")] for _ in range(2)]
    return keras.Sequential([layer for some in layers for layer in some])


class Convolution(L.Layer):
    """Prepares messages of neighbours, takes their mean, and joins it with the node."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.prepare, self.update = _feedforward(units), _feedforward(units)

    def call(self, inputs: Any) -> Any:
        x, edges, weights = inputs
        messages = self.prepare(K.take(x, edges[:, 1], axis=0)) * weights[:, None]
        mean = tf.math.unsorted_segment_mean(messages, edges[:, 0], NODES)
        return tf.nn.l2_normalize(self.update(K.concatenate([x, mean], axis=1)), axis=-1)


class CitationNetwork(keras.Model):
    """Graph convolutions with residual sums over a whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.edges = _graph()
        weights = np.ones(EDGES)
        self.weights_of_edges = (weights / weights.sum()).astype(keras.config.floatx())
        self.first, self.second, self.after = _feedforward(14), [Convolution(14), Convolution(14)], _feedforward(14)
        self.head = L.Dense(5)

    def call(self, nodes: Any) -> Any:
        x = self.first(self.features)
        for convolution in self.second:
            x = convolution([x, self.edges, self.weights_of_edges]) + x
        return self.head(K.take(self.after(x), nodes, axis=0))


@program("graph", source=SOURCE.format("gnn_citations"))
def gnn_citations() -> KerasStep:
    """Graph convolutions with means over neighbours and batch norms over nodes."""
    model = CitationNetwork()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")])
    return KerasStep(model, (integers(NODES), integers(5)))


@program("graph", source=SOURCE.format("node2vec_movielens"))
def node2vec_movielens() -> KerasStep:
    """Return the product of the embeddings of two nodes says whether a walk joins them."""
    inputs = {name: keras.Input((), name=name, dtype="int32") for name in ("target", "context")}
    embedding = L.Embedding(NODES, 7, embeddings_initializer="he_normal", name="nodes")
    product = L.Dot(axes=1, normalize=False)([embedding(inputs["target"]), embedding(inputs["context"])])
    model = keras.Model(inputs, product)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.001), loss)
    data = {"target": integers(NODES), "context": integers(NODES)[::-1].copy()}
    return KerasStep(model, (data, integers(2), np.linspace(0.1, 2.0, 14)))

"""Self-supervision and domain adaptation of images."""

from typing import Any

from benchmarks.programs.registry import KerasStep, Made, keras, program
from benchmarks.programs.vision_classification import CLASSES, images, labels
from benchmarks.programs.vision_steps import Own, encoder, update, views
from mtf_hetero import tf

L, K = keras.layers, keras.ops
WIDTH = 14


def project(norm: bool = False) -> Any:
    """Return a head of two dense layers."""
    hidden = [L.Dense(WIDTH), L.BatchNormalization(), L.ReLU()] if norm else [L.Dense(WIDTH, activation="relu")]
    return keras.Sequential([keras.Input((WIDTH,)), *hidden, L.Dense(WIDTH)])


class SimClr(Own):
    """Two views of an image are nearer to each other than to other images; a probe learns the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = encoder(), project()
        self.probe = keras.Sequential([keras.Input((WIDTH,)), L.Dense(CLASSES)])
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")
        self.contrast = keras.metrics.SparseCategoricalAccuracy(name="c_acc")

    def compile(self, optimizer: Any, probe: Any) -> None:
        super().compile(optimizer)
        self.probe_optimizer = probe

    @property
    def metrics(self) -> Any:
        return [self.loss_tracker, self.contrast, self.accuracy]

    def train_step(self, data: Any) -> Any:
        x, y = data
        cross = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            a, b = (self.head(self.encoder(views(self.draws, x), training=True), training=True) for _ in range(2))
            scores = K.matmul(K.normalize(a, axis=1), K.transpose(K.normalize(b, axis=1))) / 0.1
            own = K.arange(K.shape(x)[0], dtype="int32")
            both = K.concatenate([own, own]), K.concatenate([scores, K.transpose(scores)])
            loss = cross(*both)
            self.contrast.update_state(*both)
        update(self, tape, loss, self.encoder.trainable_weights + self.head.trainable_weights)
        rows = self.encoder(x, training=False)
        with tf.GradientTape() as tape:
            scores = self.probe(rows, training=True)
            probed = cross(y, scores)
        update(self, tape, probed, self.probe.trainable_weights, self.probe_optimizer)
        self.accuracy.update_state(y, scores)
        self.loss_tracker.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


@program("vision", source="keras.io examples/vision/semisupervised_simclr.py")
def semisupervised_simclr() -> Made:
    """Return a contrastive loss in both directions, and a probe with an optimizer of its own."""
    model = SimClr()
    model.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    return KerasStep(model, (images(12), labels()))


class SimSiam(Own):
    """Predicts one view's row from the other's, without a gradient to the latter."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = keras.Sequential([encoder(), L.BatchNormalization()]), project(norm=True)

    def train_step(self, x: Any) -> Any:
        def near(p: Any, z: Any) -> Any:
            z = tf.stop_gradient(z)
            return -K.mean(K.sum(K.normalize(p, axis=1) * K.normalize(z, axis=1), axis=1))

        with tf.GradientTape() as tape:
            z = [self.encoder(views(self.draws, x), training=True) for _ in range(2)]
            p = [self.head(of, training=True) for of in z]
            loss = near(p[0], z[1]) / 2 + near(p[1], z[0]) / 2
        update(self, tape, loss, self.encoder.trainable_variables + self.head.trainable_variables)
        return self.tracked(loss)


@program("vision", source="keras.io examples/vision/simsiam.py")
def simsiam() -> Made:
    """No negative pairs."""
    model = SimSiam()
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.03, 20), momentum=0.6))
    return KerasStep(model, images(12))


class BarlowTwins(Own):
    """The correlation of two views over the batch comes near to one on the diagonal and zero elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.network = keras.Sequential([encoder(), L.BatchNormalization(), L.Dense(7)])

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            z = [self.network(views(self.draws, x), training=True) for _ in range(2)]
            z = [(of - K.mean(of, axis=0)) / (K.std(of, axis=0) + 1e-3) for of in z]
            found = K.matmul(K.transpose(z[0]), z[1]) / K.cast(K.shape(x)[0], x.dtype)
            away = K.square(found - K.eye(7))
            loss = K.sum(away * K.eye(7)) + 5e-3 * K.sum(away * (1 - K.eye(7)))
        update(self, tape, loss, self.network.trainable_variables)
        return self.tracked(loss)


@program("vision", source="keras.io examples/vision/barlow_twins.py")
def barlow_twins() -> Made:
    """Return a matrix of correlations, with the LAMB optimizer."""
    model = BarlowTwins()
    model.compile(keras.optimizers.Lamb(1e-3))
    return KerasStep(model, images(12))


class Nnclr(SimClr):
    """SimCLR whose positives are nearest neighbours in a queue of former rows."""

    def build(self, shape: Any) -> None:
        start = keras.random.normal((28, WIDTH), seed=1)
        self.queue = self.add_weight(
            shape=(28, WIDTH), initializer=lambda *_, **__: K.normalize(start, axis=1), trainable=False, name="queue"
        )

    def nearest(self, rows: Any) -> Any:
        scores = K.matmul(rows, K.transpose(self.queue))
        found = K.take(self.queue, K.argmax(scores, axis=1), axis=0)
        return rows + tf.stop_gradient(found - rows)

    def train_step(self, data: Any) -> Any:
        x, y = data
        cross = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            pair = [self.head(self.encoder(views(self.draws, x), training=True), training=True) for _ in range(2)]
            a, b = (K.normalize(of, axis=1) for of in pair)
            scores = [K.matmul(self.nearest(a), K.transpose(b)) / 0.1, K.matmul(a, K.transpose(self.nearest(b))) / 0.1]
            own = K.arange(K.shape(x)[0], dtype="int32")
            both = K.concatenate([own] * 4), K.concatenate([*scores, *map(K.transpose, scores)])
            loss = cross(*both)
        update(self, tape, loss, self.encoder.trainable_weights + self.head.trainable_weights)
        self.contrast.update_state(own, scores[0])  # two rows may have one neighbour, so columns of others are equal
        self.queue.assign(K.concatenate([a, self.queue[: -a.shape[0]]], axis=0))
        with tf.GradientTape() as tape:
            scores = self.probe(self.encoder(x, training=False))
            probed = cross(y, scores)
        update(self, tape, probed, self.probe.trainable_weights, self.probe_optimizer)
        self.accuracy.update_state(y, scores)
        self.loss_tracker.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


@program("vision", source="keras.io examples/vision/nnclr.py")
def nnclr() -> Made:
    """Return a queue as a variable, from which the step takes rows and to which it adds them."""
    model = Nnclr()
    model.build(None)
    model.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    return KerasStep(model, (images(12), labels()))


@program("vision", source="keras.io examples/vision/semantic_image_clustering.py")
def semantic_image_clustering() -> Made:
    """Images and their neighbours get one cluster; the entropy of all clusters is high."""
    inputs, near = keras.Input((12, 12, 3)), keras.Input((2, 12, 12, 3))
    network = encoder()
    cluster = L.Dense(CLASSES, activation="softmax")
    anchor = cluster(L.Dropout(0.2)(L.BatchNormalization()(network(inputs))))
    others = K.reshape(cluster(network(K.reshape(near, (-1, 12, 12, 3)))), (-1, 2, CLASSES))
    same = K.einsum("bk,bnk->bn", anchor, others)

    class Consistency(L.Layer):
        """Adds the two losses."""

        def call(self, same: Any, anchor: Any) -> Any:
            share = K.mean(anchor, axis=0)
            self.add_loss(2.0 * K.sum(share * K.log(K.clip(share, 1e-8, 1.0))))
            self.add_loss(keras.losses.binary_crossentropy(K.ones_like(same), same))
            return same

    model = keras.Model([inputs, near], Consistency()(same, anchor))
    model.compile(keras.optimizers.AdamW(5e-4, weight_decay=1e-4), loss=None)
    x = images(12)
    return KerasStep(model, ((x, K.convert_to_numpy(K.stack([x[::-1], x + 1.0], axis=1))),))


class AdaMatch(Own):
    """Pseudo labels of another domain, whose distribution is aligned and whose doubtful ones are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.network = keras.Sequential([encoder(), L.BatchNormalization(), L.Dropout(0.2), L.Dense(CLASSES)])

    def train_step(self, data: Any) -> Any:
        (source, target), y = data
        with tf.GradientTape() as tape:
            every = K.concatenate([views(self.draws, x) for x in (source, source, target, target)], axis=0)
            scores = self.network(every, training=True)
            count = source.shape[0]
            alone = self.network(every[: 2 * count], training=True)
            share = keras.random.uniform((2 * count, CLASSES), seed=self.draws, dtype=scores.dtype)
            of_source = share * scores[: 2 * count] + (1 - share) * alone
            weak, strong = scores[2 * count : 3 * count], scores[3 * count :]
            found = K.softmax(of_source[:count]), K.softmax(weak)
            aligned = K.normalize(found[1] * K.mean(found[0], axis=0) / K.mean(found[1], axis=0), axis=1, order=1)
            least = 0.9 * K.mean(K.max(found[0], axis=-1))
            sure = K.cast(K.max(aligned, axis=-1) >= least, scores.dtype)
            cross = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
            labelled = K.mean(cross(y, of_source[:count])) + K.mean(cross(y, of_source[count:]))
            loss = labelled + 0.3 * K.mean(cross(tf.stop_gradient(K.argmax(aligned, axis=1)), strong) * sure)
        update(self, tape, loss, self.network.trainable_variables)
        return self.tracked(loss)


@program("vision", source="keras.io examples/vision/adamatch.py")
def adamatch() -> Made:
    """Return a step of two domains."""
    model = AdaMatch()
    model.compile(keras.optimizers.Adam(3e-2))
    x = images(12)
    return KerasStep(model, ((x, x[::-1] + 0.5), labels()))

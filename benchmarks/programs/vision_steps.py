"""Training steps of their own for images: teachers, pairs, self-supervision."""

from typing import Any

import numpy as np

from benchmarks.programs.registry import BATCH, KerasStep, Loop, Made, keras, program
from benchmarks.programs.vision_classification import CLASSES, images, labels
from mtf_hetero import tf

L, K = keras.layers, keras.ops
WIDTH = 14


def encoder(width: int = WIDTH, size: int = 12) -> Any:
    """Return two convolutions and a dense layer."""
    return keras.Sequential(
        [
            keras.Input((size, size, 3)),
            L.Conv2D(7, 3, strides=2, padding="same", activation="relu"),
            L.Conv2D(7, 3, strides=2, padding="same", activation="relu"),
            L.Flatten(),
            L.Dense(width, activation="relu"),
        ]
    )


def update(model: Any, tape: Any, loss: Any, weights: Any, optimizer: Any = None) -> None:
    """Take a step of an optimizer."""
    gradients = tape.gradient(loss, weights)
    (optimizer or model.optimizer).apply_gradients(zip(gradients, weights, strict=True))


def views(generator: Any, x: Any) -> Any:
    """Return images with random noise, turned around at random."""
    shape = K.shape(x)
    turned = K.where(keras.random.uniform((shape[0], 1, 1, 1), seed=generator) < 0.5, x[:, :, ::-1], x)
    return turned + 0.1 * keras.random.normal(shape, seed=generator, dtype=x.dtype)


class Own(keras.Model):
    """A model whose step gives its losses by name."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_tracker, self.draws = keras.metrics.Mean(name="loss"), keras.random.SeedGenerator(5)

    @property
    def metrics(self) -> Any:
        return [self.loss_tracker]

    def tracked(self, loss: Any) -> dict[str, Any]:
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


class Distiller(keras.Model):
    """A student whose loss also compares it with a teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = keras.Sequential([encoder(21), L.Dense(CLASSES)])
        self.student = keras.Sequential([encoder(7), L.Dense(CLASSES)])

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
        teacher = K.softmax(self.teacher(x, training=False) / 10.0, axis=1)
        distilled = keras.losses.KLDivergence()(teacher, K.softmax(y_pred / 10.0, axis=1)) * 100.0
        return 0.1 * super().compute_loss(x, y, y_pred) + 0.9 * distilled

    def call(self, x: Any) -> Any:
        return self.student(x)


@program("vision", source="keras.io examples/vision/knowledge_distillation.py")
def knowledge_distillation() -> Made:
    """Return a small network learns the softened classes of a large one."""
    model = Distiller()
    model.teacher.trainable = False
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return KerasStep(model, (images(12), labels()))


class Consistent(Own):
    """A student with the teacher's classes on other views of the same images."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = keras.Sequential([encoder(), L.Dense(CLASSES)])
        self.student = keras.Sequential([encoder(), L.Dropout(0.3), L.Dense(CLASSES)])
        self.teacher.trainable = False

    def train_step(self, data: Any) -> Any:
        x, y = data
        clean, noisy = x, views(self.draws, x)
        teacher = K.softmax(self.teacher(clean, training=False) / 10)
        with tf.GradientTape() as tape:
            scores = self.student(noisy, training=True)
            distance = keras.losses.KLDivergence()(teacher, K.softmax(scores / 10))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, scores) + distance
        update(self, tape, loss, self.student.trainable_variables)
        return self.tracked(loss)


@program("vision", source="keras.io examples/vision/consistency_training.py")
def consistency_training() -> Made:
    """Return a student agrees with its teacher on noisy images."""
    model = Consistent()
    model.compile(keras.optimizers.Adam(1e-3))
    return KerasStep(model, (images(12), labels()))


class Centralized(keras.optimizers.RMSprop):
    """RMSprop on gradients whose mean over inputs is taken away."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        grads = [
            g - K.mean(g, axis=list(range(len(g.shape) - 1)), keepdims=True) if len(g.shape) > 1 else g for g in grads
        ]
        return super().apply(grads, trainable_variables)


@program("vision", source="keras.io examples/vision/gradient_centralization.py")
def gradient_centralization() -> Made:
    """Return an optimizer that changes gradients."""
    model = keras.Sequential([encoder(), L.Dropout(0.5), L.Dense(1, activation="sigmoid")])
    model.compile(Centralized(1e-4), "binary_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (images(12), labels(2).astype("float64")))


class ForwardForward(Own):
    """Layers that each learn to have large activity for true labels and small for false ones."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [L.Dense(14, activation="relu"), L.Dense(7, activation="relu")]
        self.rules = [keras.optimizers.Adam(0.03) for _ in self.parts]

    def build(self, shape: Any) -> None:
        for part, width in zip(self.parts, (shape[-1], 14), strict=True):
            part.build((None, width))
        for part, rule in zip(self.parts, self.rules, strict=True):
            rule.build(part.trainable_variables)

    def train_step(self, data: Any) -> Any:
        x, y = data
        rows = K.reshape(x, (K.shape(x)[0], -1))
        wrong = K.take(y, keras.random.shuffle(K.arange(BATCH, dtype="int32"), seed=self.draws), axis=0)
        good, bad = (K.concatenate([K.one_hot(of, CLASSES), rows], axis=1) for of in (y, wrong))
        total = 0.0
        for part, rule in zip(self.parts, self.rules, strict=True):
            with tf.GradientTape() as tape:
                goodness = [K.mean(K.square(part(of)), axis=1) for of in (good, bad)]
                loss = K.mean(K.log(1 + K.exp(K.concatenate([1.5 - goodness[0], goodness[1] - 1.5]))))
            update(self, tape, loss, part.trainable_variables, rule)
            good, bad = (of / (K.norm(of, axis=1, keepdims=True) + 1e-6) for of in (part(good), part(bad)))
            total = total + loss
        return self.tracked(total)


@program("vision", source="keras.io examples/vision/forwardforward.py")
def forwardforward() -> Made:
    """No gradient goes from one layer to another."""
    model = ForwardForward()
    model.build((BATCH, 8 * 8 * 3 + CLASSES))
    model.compile("adam")
    return KerasStep(model, (images(8), labels()))


def _twins() -> tuple[np.ndarray, np.ndarray]:
    x = images(12)
    return x, x[::-1] + 0.5


def _cosine(a: Any, b: Any) -> Any:
    return K.sum(K.normalize(a, axis=1) * K.normalize(b, axis=1), axis=1)


@program("vision", source="keras.io examples/vision/siamese_network.py")
def siamese_network() -> Made:
    """Return a triplet of images through one network; a margin between two distances."""

    class Siamese(Own):
        """A network, called three times."""

        def __init__(self) -> None:
            super().__init__()
            self.network = keras.Sequential([encoder(), L.BatchNormalization(), L.Dense(7)])

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                anchor, near, far = (self.network(x, training=True) for x in data[0])
                distances = [K.sum(K.square(anchor - other), axis=-1) for other in (near, far)]
                loss = K.mean(K.maximum(distances[0] - distances[1] + 0.5, 0.0))
            update(self, tape, loss, self.network.trainable_variables)
            return self.tracked(loss)

    model = Siamese()
    model.compile(keras.optimizers.Adam(1e-4))
    a, b = _twins()
    return KerasStep(model, ((a, b, 2 * a[::-1]),))


@program("vision", source="keras.io examples/vision/siamese_contrastive.py")
def siamese_contrastive() -> Made:
    """Return a distance of two images, with a contrastive loss."""
    network = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            L.BatchNormalization(),
            L.Conv2D(7, 5, activation="tanh"),
            L.AveragePooling2D(2),
            L.Flatten(),
            L.BatchNormalization(),
            L.Dense(10, activation="tanh"),
        ]
    )
    inputs = [keras.Input((12, 12, 3)) for _ in range(2)]
    a, b = map(network, inputs)
    distance = K.sqrt(K.maximum(K.sum(K.square(a - b), axis=1, keepdims=True), keras.config.epsilon()))
    model = keras.Model(inputs, L.Dense(1, activation="sigmoid")(L.BatchNormalization()(distance)))

    def contrastive(y: Any, found: Any) -> Any:
        return K.mean((1 - y) * K.square(found) + y * K.square(K.maximum(1.0 - found, 0)))

    model.compile("RMSprop", contrastive, metrics=["accuracy"])
    return KerasStep(model, (_twins(), labels(2).astype("float64")[:, None]))


@program("vision", source="keras.io examples/vision/metric_learning.py")
def metric_learning() -> Made:
    """All products of anchors and positives are the logits of a classification."""

    class Embeddings(keras.Model):
        """A functional model with a step of its own."""

        def train_step(self, data: Any) -> Any:
            anchors, positives = data[0]
            with tf.GradientTape() as tape:
                found = [self(x, training=True) for x in (anchors, positives)]
                scores = K.einsum("ae,pe->ap", *found) / 0.2
                loss = self.compute_loss(y=K.arange(scores.shape[0], dtype="int32"), y_pred=scores)
                self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            for metric in self.metrics:
                metric.update_state(loss) if metric.name == "loss" else metric.update_state(data[0], scores)
            return {metric.name: metric.result() for metric in self.metrics}

    inputs = keras.Input((12, 12, 3))
    x = L.GlobalAveragePooling2D()(L.Conv2D(14, 3, strides=2, activation="relu")(inputs))
    model = Embeddings(inputs, L.UnitNormalization()(L.Dense(7)(x)))
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return KerasStep(model, (_twins(),))


@program("vision", source="keras.io examples/vision/supervised-contrastive-learning.py")
def supervised_contrastive_learning() -> Made:
    """Pairs of one class attract each other: an n-pairs loss of all images of a batch."""

    def attract(y: Any, rows: Any) -> Any:
        rows = K.normalize(rows, axis=1)
        scores = K.matmul(rows, K.transpose(rows)) / 0.05
        same = K.cast(K.equal(K.reshape(y, (-1, 1)), K.reshape(y, (1, -1))), scores.dtype)
        return K.categorical_crossentropy(same / K.sum(same, axis=1, keepdims=True), scores, from_logits=True)

    model = keras.Sequential([encoder(), L.Dropout(0.5), L.Dense(7, activation="relu")])
    model.compile(keras.optimizers.Adam(1e-3), attract)
    return KerasStep(model, (images(12), labels()))


@program("vision", source="keras.io examples/vision/reptile.py")
def reptile() -> Made:
    """Inner steps of gradient descent on a task; then weights move a part of the way, and jump back if asked to."""
    inputs = keras.Input((12, 12, 1))
    x = inputs
    for _ in range(2):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(7, 3, strides=2, padding="same")(x)))
    model = keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(L.Flatten()(x)))
    optimizer = keras.optimizers.SGD(0.003)
    optimizer.build(model.trainable_variables)

    @tf.compat.v2.function
    def step(x: Any, y: Any, share: Any) -> Any:
        old = [tf.identity(v.value) for v in model.trainable_variables]
        for part in range(2):
            with tf.GradientTape() as tape:
                found = model(x + 0.1 * part, training=True)
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, found))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        for variable, before in zip(model.trainable_variables, old, strict=True):
            variable.assign(before + (variable.value - before) * share)
        return loss

    return Loop(step, (images(12, 1), labels(), np.float64(0.25)))

"""Callbacks of `mtf_hetero.keras.fit` read the weights of the present step; the next step uses what they write."""

from typing import Any

import keras
import numpy as np
import pytest
import tiers
from fit_oracle import BATCH, FILTERS, ONE, check, images, make_model

import mtf_hetero.keras
from mtf_hetero.training import Runtime

X, Y = images(16)


def small():
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.Dense(6, activation="relu")(keras.layers.GlobalAveragePooling2D()(inputs))
    return keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(x))


def compiled():
    model = small()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def averaged():
    model = small()
    model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7), "sparse_categorical_crossentropy")
    return model


class Callback(keras.callbacks.Callback):
    """Notes what it sees, of each model in turn."""

    def __init__(self, seen: list[list[float]]) -> None:
        super().__init__()
        self.seen: list[float] = []
        seen.append(self.seen)

    @property
    def trained(self) -> Any:
        """Return the model."""
        return self.model

    @property
    def kernel(self) -> Any:
        """Return a weight."""
        return self.trained.layers[-1].kernel

    def double(self) -> None:
        """Change a weight."""
        self.kernel.assign(self.kernel * 2)


class ClipsCritic(Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.kernel.assign(keras.ops.clip(self.kernel, -0.1, 0.1))
        self.seen.append(float(keras.ops.sum(self.trained.layers[2].kernel)))


class PrunesByOldName(Callback):
    def on_batch_end(self, batch, logs=None):
        small = np.abs(np.asarray(self.kernel)) < 0.1
        self.kernel.assign(keras.ops.where(small, 0.0, self.kernel))


class ChangesBeforeBatch(Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(float(self.trained.optimizer.iterations))
        self.kernel.assign(self.kernel * 0.9)


class PredictsAfterTest(Callback):
    def on_test_end(self, logs=None):
        self.seen.extend(self.trained.predict(X[:2], verbose=0).ravel())


class SwapsForTest(Callback):
    def on_test_begin(self, logs=None):
        self.kept = np.asarray(self.kernel).copy()
        self.double()

    def on_test_end(self, logs=None):
        self.kernel.assign(self.kept)


class EvaluatesSwapped(Callback):
    def on_epoch_end(self, epoch, logs=None):
        kept = np.asarray(self.kernel).copy()
        self.double()
        self.seen.append(self.trained.evaluate(X, Y, verbose=0)[0])
        self.kernel.assign(kept)


class ReadsAfterTestBatch(Callback):
    def on_test_batch_end(self, batch, logs=None):
        self.seen.append(float(keras.ops.sum(self.kernel)))


class TrainsByItself(Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.trained.train_on_batch(X[:8], Y[:8])
        self.seen.append(float(keras.ops.sum(self.kernel)))


class CountsAnew(Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.trained.optimizer.iterations.assign(50)


class LooksBeforeAndAfter(Callback):
    def on_train_begin(self, logs=None):
        self.seen.extend(self.trained.evaluate(X[:8], Y[:8], verbose=0))
        self.double()

    def on_train_end(self, logs=None):
        self.double()
        self.seen.extend(self.trained.evaluate(X, Y, verbose=0))


# Callbacks of one training look at the same moments: one that looks more often would hide the others' mistakes
KINDS = {
    "in training": [ClipsCritic],
    "by an old name": [PrunesByOldName],
    "before a batch": [ChangesBeforeBatch],
    "around a test": [SwapsForTest, PredictsAfterTest],
    "within a test": [ReadsAfterTestBatch],
    "after an epoch": [EvaluatesSwapped, TrainsByItself, CountsAnew],
    "around training": [LooksBeforeAndAfter],
}


@tiers.parametrize("name", KINDS, first=["in training"])
def test_they_see_and_change_what_keras_shows(name):
    seen: list[list[float]] = []
    kinds, place = KINDS[name], BATCH if name == "in training" else FILTERS
    options = {"callbacks": lambda: [kind(seen) for kind in kinds], "places": [place]}
    check(compiled, X, Y, validation_data=(X[:8], Y[:8]), **options)
    for found, expected in zip(seen[len(kinds) :], seen, strict=False):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@tiers.parametrize("on_epoch", [False, True], first=[False])
def test_averages_are_swapped_for_tests(on_epoch):
    swap = keras.callbacks.SwapEMAWeights
    check(averaged, X, Y, validation_data=(X, Y), callbacks=lambda: [swap(swap_on_epoch=on_epoch)], places=[FILTERS])


@pytest.mark.full
def test_a_list_of_callbacks_that_keras_made():
    def own(model):
        return keras.callbacks.CallbackList([ClipsCritic([])], add_history=True, model=model, epochs=2)

    models = [make_model(compiled) for _ in range(2)]
    lists = [own(model) for model in models]
    options = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
    models[0].fit(X, Y, callbacks=lists[0], **options)
    mtf_hetero.keras.fit(models[1], X, Y, callbacks=lists[1], **options, **BATCH)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert [type(callback).__name__ for callback in lists[1].callbacks] == ["ClipsCritic", "History"]


def counted_reads(monkeypatch):
    """Return a list that gets an entry each time that weights are read from the devices."""
    reads, read = [], Runtime.read

    def counted(self, names):
        reads.extend([None] if names else [])
        return read(self, names)

    monkeypatch.setattr(Runtime, "read", counted)
    return reads


@pytest.mark.parametrize(
    ("callbacks", "reads"),
    [
        ([keras.callbacks.TerminateOnNaN(), keras.callbacks.ModelCheckpoint("unused.keras", save_freq="epoch")], 2),
        ([keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)], 4),
    ],
    ids=["nobody looks", "somebody may"],
)
def test_weights_are_read_only_where_somebody_looks(callbacks, reads, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    count = counted_reads(monkeypatch)
    options = {"epochs": 2, "batch_size": 8, "verbose": 0, "verify": False, **ONE}
    mtf_hetero.keras.fit(make_model(compiled), X, Y, callbacks=callbacks, **options)
    assert len(count) == reads


class Tracker(Callback):
    """Does what WandbMetricsLogger and MlflowCallback do: logs each batch and each test, with the learning rate."""

    def log(self, logs: dict[str, float] | None) -> None:
        optimizer = self.trained.optimizer
        self.seen += [*(logs or {}).values(), float(optimizer.learning_rate), int(optimizer.iterations.numpy())]

    def on_train_begin(self, logs=None):
        self.seen.append(self.trained.optimizer.get_config()["momentum"])
        self.trained.summary(print_fn=lambda line, **_: None)

    def on_batch_end(self, batch, logs=None):
        self.log(logs)

    def on_train_batch_end(self, batch, logs=None):
        self.on_batch_end(batch, logs)

    def on_test_end(self, logs=None):
        self.log(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.log(logs)


TRACKERS = [
    "wandb.integration.keras.callbacks.metrics_logger.WandbMetricsLogger",
    "mlflow.keras.callback.MlflowCallback",
    "tqdm.keras.TqdmCallback",
]


def scheduled():
    model = small()
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.full
@pytest.mark.parametrize("name", TRACKERS)
def test_trackers_log_what_keras_shows_and_have_no_weights_read(name, monkeypatch):
    module, _, kind = name.rpartition(".")
    tracker = type(kind, (Tracker,), {"__module__": module, "__qualname__": kind})
    reads, seen = counted_reads(monkeypatch), []
    check(
        scheduled,
        X,
        Y,
        validation_data=(X[:8], Y[:8]),
        callbacks=lambda: [tracker(seen)],
        places=[BATCH | {"verify": False}],
    )
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-9)
    assert len(reads) == 2  # at the end of each epoch


class LooksAtEpochs(Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.seen.extend([*(logs or {}).values(), *self.trained.predict(X[:2], verbose=0).ravel()])


@pytest.mark.full
def test_a_tracker_that_takes_the_place_of_fit(monkeypatch):
    """Act like mlflow.tensorflow.autolog: add a callback, and look at the model and its data afterwards."""
    seen, plain = [], keras.Model.fit

    def fit(self, x: Any = None, y: Any = None, **options: Any):
        options["callbacks"] = [*(options.get("callbacks") or []), LooksAtEpochs(seen)]
        history: Any = plain(self, x, y, **options)
        seen[-1].extend(history.model.predict(x[:2], verbose=0).ravel())
        return history

    monkeypatch.setattr(keras.Model, "fit", fit)
    check(compiled, X, Y, places=[FILTERS])
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-9)

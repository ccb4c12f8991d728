"""Callbacks of `mtf_hetero.keras.fit` read the weights of the present step; the next step uses what they write."""

from typing import Any

import keras
import numpy as np
import pytest
import tiers
from fit_oracle import BATCH, FILTERS, ONE, check, images, make_model
from keras_oracle import floatx

import mtf_hetero.keras
from mtf_hetero import tf
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


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_they_see_and_change_what_keras_shows(name):
    seen: list[list[float]] = []
    kinds, place = KINDS[name], BATCH if name == "in training" else FILTERS
    options = {"callbacks": lambda: [kind(seen) for kind in kinds], "places": [place]}
    check(compiled, X, Y, validation_data=(X[:8], Y[:8]), **options)
    for found, expected in zip(seen[len(kinds) :], seen, strict=False):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.full
@pytest.mark.parametrize("on_epoch", [False, True])
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


class LooksOnceInAnEpoch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            self.model.get_weights()


NOTES = {"on_train_batch_begin": lambda batch, logs: None, "on_train_batch_end": lambda batch, logs: dict(logs)}


@pytest.mark.parametrize(
    ("callbacks", "reads"),
    [
        ([keras.callbacks.TerminateOnNaN(), keras.callbacks.ModelCheckpoint("unused.keras", save_freq="epoch")], 2),
        ([keras.callbacks.LambdaCallback(**NOTES)], 2),
        ([LooksOnceInAnEpoch()], 4),
    ],
    ids=["of Keras", "nobody looks", "one look"],
)
def test_weights_are_read_only_where_somebody_looks(callbacks, reads, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    count = counted_reads(monkeypatch)
    options = {"epochs": 2, "batch_size": 8, "verbose": 0, "verify": False, **ONE}
    mtf_hetero.keras.fit(make_model(compiled), X, Y, callbacks=callbacks, **options)
    assert len(count) == reads


def make_function(variable):
    return tf.compat.v2.function(lambda: 2.0 * variable)


def save_and_load(model, directory):
    model.save(directory / "model.keras")
    return keras.saving.load_model(directory / "model.keras").layers[-1].kernel


def write_checkpoint(model, directory):
    path = tf.compat.v2.train.Checkpoint(model=model).write(str(directory / "checkpoint"))
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    return [reader.get_tensor(name) for name in sorted(shapes) if shapes[name] == [6, 5]]


def differentiate(model):
    kernel = model.layers[-1].kernel.value
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(kernel))
    return tape.gradient(loss, kernel)


LOOKS = {  # all that a callback may do after a batch, with a function that was traced before the training
    "a Keras variable": lambda model, known: model.layers[-1].kernel.numpy(),
    "a tf.Variable": lambda model, known: known.variable.numpy(),
    "an operation": lambda model, known: known.variable + 1.0,
    "a raw operation": lambda model, known: tf.raw_ops.Mul(x=known.variable, y=known.variable),
    "its handle": lambda model, known: tf.raw_ops.ReadVariableOp(resource=known.variable.handle, dtype=tf.float64),
    "get_weights": lambda model, known: model.get_weights()[-2],
    "the model is called": lambda model, known: model(X[:2]),
    "predict": lambda model, known: model.predict(X[:2], verbose=0),
    "predict_on_batch": lambda model, known: model.predict_on_batch(X[:2]),
    "evaluate": lambda model, known: model.evaluate(X[:2], Y[:2], verbose=0)[0],
    "a function traced before": lambda model, known: known.function(),
    "a function traced now": lambda model, known: make_function(known.variable)(),
    "a slot of the optimizer": lambda model, known: model.optimizer.variables[-1].numpy(),
    "a gradient": lambda model, known: differentiate(model),
    "a copy": lambda model, known: keras.models.clone_model(model).set_weights(model.get_weights()) or 0.0,
    "a file": lambda model, known: save_and_load(model, known.directory),
    "a checkpoint": lambda model, known: write_checkpoint(model, known.directory),
    "assign": lambda model, known: model.layers[-1].kernel.assign(0.5 * np.ones((6, 5))) is None or 0.0,
    "assign_add": lambda model, known: known.variable.assign_add(np.ones((6, 5))) is None or 0.0,
    "set_weights": lambda model, known: model.set_weights([0.9 * x for x in model.get_weights()]) or 0.0,
    "train_on_batch": lambda model, known: model.train_on_batch(X[:8], Y[:8])[0],
}


class Known:
    """A variable of a model, and a function that reads it, which a program has before the training."""

    def __init__(self, model, directory):
        self.directory, self.variable = directory, model.layers[-1].kernel.value
        self.function = make_function(self.variable)
        self.function()
        model.predict(X[:2], verbose=0)


class LooksInTurn(Callback):
    """Looks in one way after each batch, and in no other way."""

    def __init__(self, seen, known):
        super().__init__(seen)
        self.known = known

    def on_train_batch_end(self, batch, logs=None):
        (_, look) = list(LOOKS.items())[batch]
        self.seen.append(np.asarray(look(self.trained, self.known)))


@tiers.parametrize("place", [BATCH, FILTERS], first=[BATCH])
def test_whatever_looks_sees_the_present_weights(place, tmp_path):
    x, y = images(len(LOOKS) * 4)
    options = {"batch_size": 4, "shuffle": False, "verbose": 0}
    seen: list[list[float]] = []
    with floatx(tf.float64):
        models = [make_model(compiled) for _ in range(2)]
        callbacks = [LooksInTurn(seen, Known(model, tmp_path)) for model in models]
        models[0].fit(x, y, callbacks=callbacks[0], **options)
        mtf_hetero.keras.fit(models[1], x, y, callbacks=callbacks[1], **options, **place)
        for name, found, expected in zip(LOOKS, seen[1], seen[0], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12, err_msg=name)
        for found, expected in zip(models[1].get_weights(), models[0].get_weights(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_nothing_is_watched_outside_of_hooks():
    """TensorFlow's classes are as they were: also after a callback has raised an error."""

    def fail(batch, logs):
        assert hasattr(type(model.layers[-1].kernel.value), "_handle")
        raise RuntimeError("stop here")

    model = make_model(compiled)
    with pytest.raises(RuntimeError, match="stop here"):
        mtf_hetero.keras.fit(model, X, Y, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail)], **ONE)
    assert not hasattr(type(model.layers[-1].kernel.value), "_handle")


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


def scheduled():
    model = small()
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.full
def test_a_tracker_logs_what_keras_shows_and_has_no_weights_read(monkeypatch):
    reads, seen = counted_reads(monkeypatch), []
    check(
        scheduled,
        X,
        Y,
        validation_data=(X[:8], Y[:8]),
        callbacks=lambda: [Tracker(seen)],
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

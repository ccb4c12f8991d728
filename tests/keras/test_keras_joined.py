"""Steps that become one call by themselves: logs, weights and callbacks are those of single steps."""

import keras
import numpy as np
import pytest
from batch_oracle import Undisturbed
from fit_oracle import BATCH, FILTERS, ONE, check, images, make_model, network, same, state
from keras_oracle import floatx
from tiers import losing_workers, parametrize

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.keras import joining

COUNT = 4  # steps of a call, once they are joined
SINGLE = 4  # that are taken one by one before
BATCHES = SINGLE + 3 * COUNT + 2
EXAMPLES = 8 * BATCHES + 3  # the last batch is smaller


def compiled():
    def make():
        model = network(0.3)
        loss, metrics = "sparse_categorical_crossentropy", ["accuracy"]
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True)
        model.compile(optimizer, loss, metrics=metrics)
        return model

    return make


@pytest.fixture
def joined(monkeypatch, calls):
    """The same, while all steps that may be joined are."""
    monkeypatch.setattr(joining, "WARM_UP_STEPS", 1)
    monkeypatch.setattr(joining, "_SAMPLES", SINGLE - 1)
    monkeypatch.setattr(joining, "_SHORT_SECONDS", 1e6)
    monkeypatch.setattr(joining, "_CALL_SHARE", 1e6)
    monkeypatch.setattr(joining, "_MOST_STEPS", COUNT)
    monkeypatch.setattr(joining.Joining, "_decide", lambda self, gain: None)
    return calls


@parametrize("place", [ONE, BATCH, FILTERS], first=[BATCH])
def test_joined_steps_are_those_steps(place, joined):
    check(compiled(), *images(EXAMPLES), places=[place], validation_data=images(8 * BATCHES, seed=1))
    assert joined.count(COUNT) > 4


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("place", [ONE, BATCH])
@pytest.mark.parametrize("steps", [None, BATCHES - 1])
@pytest.mark.parametrize("prefetches", [None, True, False])
def test_tests_and_predictions_are_joined(place, steps, prefetches, joined):
    """Arrays, and a pipeline that Python feeds; without a `prefetch` it may depend on the steps before."""
    x, y = images(EXAMPLES)
    data, options = (x, y), {"verbose": 0, "steps": steps}
    if prefetches is None:
        options["batch_size"] = 8
    else:
        dataset = tf.compat.v2.data.Dataset.from_generator(lambda: batches(), output_signature=SPEC)
        data = (dataset.prefetch(2) if prefetches else dataset,)
    with floatx(tf.float64):
        model = make_model(compiled())
        expected = model.evaluate(*data, **options)
        np.testing.assert_allclose(mtf_hetero.keras.evaluate(model, *data, **options, **place), expected, 1e-9)
        assert (COUNT in joined) == (prefetches is not False)
        joined.clear()
        expected = model.predict(data[0], **options)
        found = mtf_hetero.keras.predict(model, data[0], **options, **place)
        np.testing.assert_allclose(found, expected, 1e-9)
        assert (COUNT in joined) == (prefetches is not False)


@parametrize("looks", [True, False], first=[False])
def test_callbacks_see_each_prediction(looks, joined):
    """Keras's own bar looks at no prediction; a callback that gets them keeps steps single."""
    x, _ = images(EXAMPLES)
    model, seen = make_model(compiled()), []
    callback = keras.callbacks.ProgbarLogger()
    if looks:
        callback = keras.callbacks.LambdaCallback()
        callback.on_predict_batch_end = lambda batch, logs=None: seen.append(np.asarray(logs["outputs"]))
    expected = model.predict(x, batch_size=8, verbose=0)
    found = mtf_hetero.keras.predict(model, x, batch_size=8, verbose=0, callbacks=[callback], **BATCH)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (COUNT in joined) != looks
    if looks:
        np.testing.assert_array_equal(np.concatenate(seen), found)


@pytest.mark.full
def test_an_error_of_the_data_ends_predictions(joined):
    model = make_model(compiled())
    with pytest.raises(Exception, match="no more"):
        mtf_hetero.keras.predict(model, batches(error=RuntimeError("no more")), verbose=0, **BATCH)
    assert COUNT in joined


def test_callbacks_see_each_step(joined):
    """Keras's progress bar, and the list of callbacks, have each step with its own logs."""
    steps = []
    for fit in (keras.Model.fit, mtf_hetero.keras.fit):
        model, seen = make_model(compiled()), []
        bar = keras.callbacks.ProgbarLogger()
        bar._update_progbar = lambda batch, logs=None, seen=seen: seen.append((batch, dict(logs)))
        place = {} if fit is keras.Model.fit else BATCH
        fit(model, *images(EXAMPLES), callbacks=[bar], batch_size=8, shuffle=False, verbose=0, epochs=2, **place)
        steps.append(seen)
    assert COUNT in joined
    assert [batch for batch, _ in steps[1]] == [batch for batch, _ in steps[0]]
    for (_, found), (_, expected) in zip(*steps, strict=True):
        same(found, expected, 1e-5)


def watching():
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)


def saving(save_freq):
    return keras.callbacks.ModelCheckpoint("x.weights.h5", save_freq=save_freq, save_weights_only=True)


@parametrize(
    ("callbacks", "may_join"),
    [
        (watching, False),
        (keras.callbacks.TerminateOnNaN, False),
        (lambda: saving(5), False),
        (lambda: saving("epoch"), True),
        (lambda: keras.callbacks.BackupAndRestore("backup"), True),
        (lambda: [keras.callbacks.EarlyStopping("loss"), keras.callbacks.LearningRateScheduler(lambda n: 0.01)], True),
    ],
    first=[(watching, False)],
)
def test_who_looks_between_two_steps_keeps_them_single(callbacks, may_join, joined, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = make_model(compiled())
    mtf_hetero.keras.fit(model, *images(EXAMPLES), callbacks=callbacks(), batch_size=8, verbose=0, epochs=2, **ONE)
    assert (COUNT in joined) == may_join


class Looping(keras.Model):
    """Its own loop may look at the model between two steps."""

    def fit(self, *arguments, **options):
        return super().fit(*arguments, **options)


@pytest.mark.full
def test_a_loop_of_the_model_keeps_steps_single(joined):
    model = Looping(*(lambda plain: (plain.inputs, plain.outputs))(network()))
    model.compile("sgd", "sparse_categorical_crossentropy")
    mtf_hetero.keras.fit(model, *images(EXAMPLES), batch_size=8, verbose=0, **ONE)
    assert set(joined) == {1}


def batches(*, endless=False, error=None):
    """The batches of the images, again and again perhaps, and an error behind them."""
    x, y = images(EXAMPLES)
    while True:
        yield from ((x[first : first + 8], y[first : first + 8]) for first in range(0, len(x), 8))
        if error is not None:
            raise error
        if not endless:
            return


SPEC = tf.TensorSpec((None, 6, 6, 3), tf.float64), tf.TensorSpec((None,), tf.int64)


@pytest.mark.full
@pytest.mark.parametrize("prefetches", [False, True])
def test_data_that_python_makes_when_it_is_asked_keep_steps_single(joined, prefetches):
    """Without a `prefetch`, the Python code may depend on the steps before."""
    dataset = tf.compat.v2.data.Dataset.from_generator(lambda: batches(endless=True), output_signature=SPEC)
    dataset = dataset.prefetch(2) if prefetches else dataset
    check(compiled(), dataset, places=[ONE], batch_size=None, steps_per_epoch=BATCHES)
    assert (COUNT in joined) == prefetches


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps_per_epoch", [None, 7, BATCHES + 5])
def test_data_of_any_length(joined, steps_per_epoch):
    x, y = images(EXAMPLES)
    dataset = tf.compat.v2.data.Dataset.from_tensor_slices((x, y)).batch(8).filter(lambda x, y: tf.size(y) > 0)
    dataset = dataset.repeat() if steps_per_epoch == 7 else dataset
    check(compiled(), dataset, places=[BATCH], batch_size=None, steps_per_epoch=steps_per_epoch, epochs=4)
    assert COUNT in joined


@pytest.mark.full
def test_an_error_of_the_data_comes_after_the_steps_before_it(joined):
    model = make_model(compiled())
    with pytest.raises(Exception, match="no more"):
        mtf_hetero.keras.fit(model, batches(error=RuntimeError("no more")), shuffle=False, verbose=0, **BATCH)
    assert int(model.optimizer.iterations) == BATCHES + 1
    assert COUNT in joined


@pytest.mark.full
def test_an_error_within_a_call_leaves_the_last_epoch(joined):
    """Steps of the call are under way at once: no single step is the last one."""
    x, y = images(8 * BATCHES)
    model, values = make_model(compiled()), []
    y[8 * (SINGLE + COUNT + 1)] = 99  # of the second step of the first call of several steps

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: values.extend(model.get_weights()))
    with pytest.raises(Exception, match="label"):
        mtf_hetero.keras.fit(model, x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[callback], **BATCH)
    assert joined[-1] == COUNT
    for found, expected in zip(model.get_weights(), values, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert int(model.optimizer.iterations) == 0


@pytest.mark.full
def test_joined_steps_are_the_same_bits(joined, monkeypatch):
    results = []
    for seconds in (1e6, 0.0):
        monkeypatch.setattr(joining, "_SHORT_SECONDS", seconds)
        model = make_model(compiled())
        options = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": 3}
        history = mtf_hetero.keras.fit(model, *images(EXAMPLES), **options, **BATCH)
        results.append((history.history, state(model)))
    for found, expected in zip(*results, strict=True):
        same(found, expected, 0)


class Ready:
    """A step of which many may be one call."""

    most_steps, preparation_seconds, made_bytes = 50, 0.5, 0


@pytest.mark.parametrize(
    ("step_seconds", "call_seconds", "total", "kept"),
    [
        (0.01, 0.01, 10_000, 16),
        (0.01, 0.01, 1_000, 7),  # the root of (0.02 / 2 * 3000 / 0.5)
        (0.01, -0.01, 10_000, 1),  # slower together
        (0.01, 0.01, 200, 1),  # too few are to come
        (0.05, 0.01, 10_000, 1),  # long
        (0.01, 0.01, None, 4),  # as soon as so many were taken that it may be worth it
    ],
)
def test_several_steps_are_one_call_if_that_is_faster(step_seconds, call_seconds, total, kept, monkeypatch):
    """With `call_seconds` of its own for each call; negative: a call takes longer with each step."""
    now, lines = [0.0], []
    monkeypatch.setattr(joining.time, "monotonic", lambda: now[0])
    steps = joining.Joining(3, lines.append)

    def take(count):
        now[0] += count * step_seconds + (call_seconds if call_seconds > 0 else -call_seconds * count**2)
        return [None] * count

    done = 0
    while done < (total or 10_000):
        count = steps.count(done, total, lambda: Ready)
        steps.measure(lambda count=count: take(count))
        done += count
    assert steps.most == kept
    assert len(lines) == (kept > 1)
    if lines:
        gain = (step_seconds + call_seconds) / (step_seconds + call_seconds / kept)
        assert lines == [f"Steps: {kept} in one call, {gain:.2f}x faster than one by one"]


class Silent(keras.callbacks.Callback):
    """Looks at no step."""

    logs = ()

    def __init__(self, acts=None):
        super().__init__()


UNDISTURBED = Undisturbed(compiled(), *images(8 * BATCHES), epochs=3, batch_size=8, shuffle=False, verbose=0)


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient", "joined")
@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.01])
def test_a_worker_is_lost_within_a_call(seconds, check_loss_in_a_call):
    check_loss_in_a_call(UNDISTURBED, Silent, COUNT, seconds)

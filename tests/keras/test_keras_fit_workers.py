"""`mtf_hetero.keras.fit` over workers; an error, Ctrl-C or a lost worker leaves the model whole, and nothing hangs."""

import os
import signal

import keras
import pytest
from fit_oracle import BATCH, images, make_model, network, same, state

import mtf_hetero.keras
from mtf_hetero.cluster import LocalCluster, UnreachableWorkerError
from mtf_hetero.keras import imported


def compiled():
    model = network()
    model.compile(
        keras.optimizers.Adam(0.01, global_clipnorm=1.0), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_is_said_in_one_line(how):
    x, y = images()
    kept = {}

    def lose(epoch, logs):
        if epoch == 0:
            kept.update(state(model))
            os.kill(local.pids[1], how)

    local = LocalCluster([1.0, 1.0], report=lambda line: None)
    with local as cluster:
        model = make_model(compiled)
        place = {"workers": cluster.workers, "devices": "worker:0/cpu:0,worker:1/cpu:0", "layout": "batch"}
        place["wait_for_workers"] = False
        with pytest.raises(
            UnreachableWorkerError, match="a worker was lost .* weights of the last complete epoch.*worker 1"
        ):
            mtf_hetero.keras.fit(
                model,
                x,
                y,
                epochs=3,
                batch_size=8,
                verbose=0,
                callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lose)],
                **place,
            )
    same(state(model), kept, 0)
    model.evaluate(x, y, verbose=0)


@pytest.mark.full
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_broken_off_in_an_epoch_the_model_has_the_last_step(error):
    x, y = images(32)

    def stop(batch, logs):
        if batch == 2:
            raise error

    model, reference = make_model(compiled), make_model(compiled)
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with pytest.raises(error):
        mtf_hetero.keras.fit(model, x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[callback], **BATCH)
    mtf_hetero.keras.fit(reference, x[:24], y[:24], batch_size=8, shuffle=False, verbose=0, **BATCH)
    same(state(model), state(reference), 0)
    assert int(model.optimizer.iterations) == 3
    assert model.train_function is vars(model)[imported._TRACED][0][0]  # Keras's own again

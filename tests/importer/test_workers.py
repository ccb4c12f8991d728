"""Steps over workers: on any layout, planned, and after the loss of a worker."""

import os
import signal

import numpy as np
import pytest
import staged_models
from estimator_oracle import await_wanted
from import_oracle import check, rows
from slow_links import assert_pipeline, plan_for_slow_links
from steps import STEPS, of_keras, sgd
from tiers import losing_workers, on_workers

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.cluster import LocalCluster, UnreachableWorkerError

PLACE = {"devices": "worker:0/cpu:0,worker:1/cpu:0,worker:2/cpu:0", "layout": "batch", "list_speed": "4,2,1"}


@on_workers
@pytest.mark.full
@pytest.mark.parametrize(("name", "layout"), [("perceptron", "filters"), ("LSTM", "batch")])
def test_over_workers(workers, name, layout):
    check(STEPS[name], {**PLACE, "workers": workers.addresses, "layout": layout})


@on_workers
@pytest.mark.full
def test_planned_for_workers(workers):
    (divided,) = check(STEPS["perceptron"], {"workers": ",".join(workers.addresses), "measure_seconds": 5})
    assert 1 <= divided.layout.size <= 3


@pytest.mark.full
@pytest.mark.usefixtures("impatient")
def test_a_lost_worker_is_said_in_one_line():
    local = LocalCluster([1.0, 1.0], report=lambda line: None)
    step, variables, inputs = STEPS["perceptron"]()
    with local as cluster:
        place = {"workers": cluster.workers, "layout": "batch", "list_speed": [1, 1]}
        divided = mtf_hetero.function(step, inputs[0], wait_for_workers=False, **place)
        divided(*inputs[0])
        divided.pull()
        pulled = [v.numpy() for v in variables]
        divided(*inputs[1])
        os.kill(local.pids[1], signal.SIGKILL)

        def go_on():
            for _ in range(100):
                divided(*inputs[2])

        with pytest.raises(UnreachableWorkerError, match="^a worker was lost .*; the tf.Variables have the values of "):
            go_on()
        for variable, array in zip(variables, pulled, strict=True):
            np.testing.assert_array_equal(variable.numpy(), array)
        divided.close()


def make_step():
    """Return a step of momentum in float64, which draws by a seed that it is given, and its variables."""
    generator = np.random.default_rng(3)
    weight, bias = tf.Variable(generator.normal(size=(6, 7)), name="weight"), tf.Variable(np.zeros(7))
    out, speed = tf.Variable(generator.normal(size=(7, 1))), tf.Variable(np.zeros((6, 7)))

    @tf.compat.v2.function
    def step(x, y, number):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ weight + bias)
            hidden *= tf.cast(tf.random.stateless_uniform((16, 7), [number, 1]) < 0.8, tf.float64)
            loss = tf.reduce_mean(tf.square(hidden @ out - y))
        gradients = tape.gradient(loss, [weight, bias, out])
        speed.assign(0.9 * speed + gradients[0])
        weight.assign_sub(0.1 * speed)
        bias.assign_sub(0.1 * gradients[1])
        out.assign_sub(0.1 * gradients[2])
        return loss

    return step, [weight, bias, out, speed]


def list_batches():
    """Yield the same two arrays with other numbers each time, as a loop that fills a buffer does."""
    generator, x, y = np.random.default_rng(5), np.empty((16, 6)), np.empty((16, 1))
    for number in range(12):
        x[:], y[:] = generator.normal(size=x.shape), generator.normal(size=y.shape)
        yield x, y, np.int32(number)


LOSSES = {  # the layout, the signal, the share of time for copies: with 1e-9 steps are taken again
    "batch, killed": ("batch", signal.SIGKILL, 0.01),
    "units, stopped, taken again": ("weight/1:all", signal.SIGSTOP, 1e-9),
    "units, killed, copied": ("weight/1:all", signal.SIGKILL, 1e9),
}


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", LOSSES)
def test_steps_go_on_without_a_lost_worker(name, workers, monkeypatch):
    """Each call returns what TensorFlow's own step returns, also after values were pulled and changed."""
    layout, how, share = LOSSES[name]
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", share)
    step, own = make_step()
    expected = []
    for number, batch in enumerate(list_batches()):
        if number == 4:
            own[0].assign(0.5 * own[0])
        expected.append(step(*map(tf.constant, batch)).numpy())
    step, variables = make_step()
    place = {"workers": workers.addresses, "layout": layout, "list_speed": [4, 2, 1]}
    try:
        with mtf_hetero.function(step, next(list_batches()), wait_for_workers=1, **place) as divided:
            found = []
            for number, batch in enumerate(list_batches()):
                if number == 4:
                    divided.pull()
                    variables[0].assign(0.5 * variables[0])
                    divided.push()
                if number == 7:
                    os.kill(workers.pids[1], how)
                found.append(divided(*batch).numpy())
            devices = {device for sizes in divided.sizes.values() for device in sizes}
            assert devices == {"worker:0/cpu:0", "worker:2/cpu:0"}
            (change,) = divided.changes
            assert change["why"] == f"worker 1 ({workers.addresses[1]}) was lost"
    finally:
        workers.restart(1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for variable, other in zip(variables, own, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), rtol=1e-9)


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
def test_a_worker_of_a_pipeline_is_lost(workers, monkeypatch):
    """The other ones go on with a pipeline of two, and take steps again."""
    plan_for_slow_links(monkeypatch, [2, 1, 1])
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", 1e-9)
    make = of_keras(staged_models.residual, sgd, rows)
    (step, own, inputs), (same_step, variables, _) = make(), make()
    place = {"workers": workers.addresses, "layout": "auto", "wait_for_workers": 1}
    try:
        with mtf_hetero.function(same_step, inputs[0], progress=False, **place) as divided:
            assert_pipeline(divided.sizes, *(f"worker:{number}/cpu:0" for number in range(3)))
            for number in range(9):
                if number == 5:
                    os.kill(workers.pids[1], signal.SIGKILL)
                batch = inputs[number % len(inputs)]
                for found, expected in zip(divided(*batch).values(), step(*batch).values(), strict=True):
                    np.testing.assert_allclose(found, expected, rtol=1e-12)
            assert_pipeline(divided.sizes, "worker:0/cpu:0", "worker:2/cpu:0")
            assert len(divided.changes) == 1
    finally:
        workers.restart(1)
    for variable, other in zip(variables, own, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), rtol=1e-9)


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
def test_a_worker_that_answers_again_takes_steps_again(workers, monkeypatch):
    monkeypatch.setattr("mtf_hetero.training.elastic._LOOK_SECONDS", 0.2)
    (step, own), (same_step, variables) = make_step(), make_step()
    batches = [tuple(np.array(x) for x in batch) for batch in list_batches()]
    place = {"workers": workers.addresses, "layout": "batch", "list_speed": [4, 2, 1]}
    with mtf_hetero.function(same_step, batches[0], wait_for_workers=1, **place) as divided:
        for number, batch in enumerate(batches):
            if number == 3:
                os.kill(workers.pids[1], signal.SIGKILL)
            if number == 8:
                workers.restart(1)
                await_wanted(divided._elastic._elastic)
            found = divided(*batch).numpy()
            assert found == pytest.approx(step(*map(tf.constant, batch)).numpy(), rel=1e-12)
        assert len(next(iter(divided.sizes.values()))) == 3
        lost, back = (str(change["why"]) for change in divided.changes)
        assert lost.endswith("was lost") and back.endswith("answers again")
    for variable, other in zip(variables, own, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), rtol=1e-9)


@on_workers
@pytest.mark.full
@pytest.mark.parametrize("layout", ["batch", "x/2:all"])
@pytest.mark.parametrize("how", ["read", "sent"])
def test_batches_of_a_pipeline(workers, layout, how):
    """The second batch is smaller; a step without workers gets the same Parts."""
    rng = np.random.default_rng(0)
    data, targets = rng.standard_normal((28, 3, 5)), rng.standard_normal((28, 4))
    dataset = tf.compat.v2.data.Dataset.from_tensor_slices((data, targets))
    if how == "read":
        dataset = dataset.map(lambda x, y: (x[::-1] / 2.0, y))
    dataset = dataset.batch(16)

    def train(batches, **place):
        weights = tf.compat.v2.Variable(np.ones((5, 4)), name="weights")

        def step(x, y, rate):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.einsum("bsx,xy->by", x, weights) - y) ** 2.0)
            weights.assign_sub(rate * tape.gradient(loss, weights))
            return loss

        with mtf_hetero.function(step, (data[:16], targets[:16], 0.1), progress=False, **place) as divided:
            losses = [float(divided(x, y, np.float64(0.1))) for _ in range(3) for x, y in batches()]
        return losses, weights.numpy()

    def parts():
        return mtf_hetero.batches(dataset, passes=9)

    place = {**PLACE, "layout": layout, "verify": False}
    expected, last = train(lambda: dataset, devices="cpu:0", layout="batch")
    for where in ({**place, "workers": workers.addresses}, {"devices": "cpu:0,cpu:1", "layout": "batch"}):
        found, weights = train(parts, **where)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(weights, last, rtol=1e-12)


def test_batches_of_unknown_sizes_are_refused():
    ragged = tf.compat.v2.data.Dataset.range(3).map(lambda n: tf.ones([n])).padded_batch(2)
    with pytest.raises(ValueError, match="dense tensors whose sizes"):
        mtf_hetero.batches(ragged)

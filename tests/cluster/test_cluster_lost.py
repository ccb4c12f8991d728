"""A worker that is lost where nothing is trained: evaluation, predictions and measurements end in one line."""

import os
import signal
import threading
import time

import pytest
from tiers import losing_workers, parametrize

from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, UnreachableWorkerError, watch
from mtf_hetero.cluster.probe import Answer, Outcome
from mtf_hetero.cluster.watch import run_watched
from mtf_hetero.estimator import Estimator, EstimatorSpec, RunConfig

pytestmark = losing_workers
LOST = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


@pytest.fixture(name="lose")
def _lose(workers):
    """Loses worker 1 in one of the ways, and has it back in the end."""
    yield lambda how: os.kill(workers.pids[1], LOST[how])
    workers.restart(1)


class LoseHook(tf.train.SessionRunHook):
    """Loses a worker before a step."""

    def __init__(self, lose, at=3):
        self.lose, self.at, self.steps = lose, at, 0

    def before_run(self, run_context):
        self.steps += 1
        if self.steps == self.at:
            self.lose()


def estimator(cluster, directory):
    def model_fn(features, mode):
        with tf.device(cluster.devices[1]):
            weight = tf.get_variable("weight", initializer=2.0, use_resource=True)
            outputs = weight * features
        loss = tf.reduce_sum(outputs)
        train = tf.assign_add(tf.train.get_global_step(), 1)
        return EstimatorSpec(mode, predictions={"y": outputs}, loss=loss, train_op=tf.group(train))

    config = RunConfig(
        workers=cluster.workers, master=cluster.target, session_config=cluster.session_config(), wait_for_workers=False
    )
    return Estimator(model_fn, directory, config)


def batches():
    return tf.data.Dataset.from_tensors([1.0, 2.0]).repeat(100_000)


@parametrize(
    ("what", "how"),
    [("evaluate", "killed"), ("evaluate", "stopped"), ("predict", "stopped"), ("train", "killed")],
    first=[("evaluate", "killed")],
)
def test_what_cannot_go_on_without_a_worker_ends(what, how, workers, lose, tmp_path, capfd, request):
    if (what, how) != ("evaluate", "stopped"):  # which waits as long as it does for a user
        request.getfixturevalue("impatient")
    cluster = Cluster.from_workers(workers.addresses[:2])
    made = estimator(cluster, tmp_path)
    made.train(batches, steps=1)
    hook, begin = LoseHook(lambda: lose(how)), time.monotonic()
    calls = {
        "evaluate": lambda: made.evaluate(batches, hooks=[hook]),
        "predict": lambda: list(made.predict(batches, hooks=[hook])),
        "train": lambda: made.train(batches, steps=100_000, hooks=[hook]),
    }
    with pytest.raises(UnreachableWorkerError, match=rf"^worker 1 \({cluster.workers[1]}\): .*; start it there with `"):
        calls[what]()
    assert hook.steps >= 3 and time.monotonic() - begin < 60
    assert " is gone" not in capfd.readouterr().err


@pytest.mark.full
def test_a_worker_that_does_not_answer_at_first(workers, lose, tmp_path):
    cluster = Cluster.from_workers(workers.addresses[:2])
    made = estimator(cluster, tmp_path)
    made.train(batches, steps=1)
    lose("killed")
    for call in (lambda: made.evaluate(batches), lambda: list(made.predict(batches))):
        with pytest.raises(UnreachableWorkerError, match=r"^worker 1 "):
            call()


@pytest.mark.full
@pytest.mark.parametrize("how", LOST)
def test_what_is_watched_ends(how, workers, lose):
    cluster = Cluster.from_workers(workers.addresses[:2])

    def work():
        with tf.Graph().as_default(), tf.device(cluster.devices[1]):
            total = tf.random.normal([1000])
            with tf.Session(cluster.target, config=cluster.session_config()) as session:
                for number in range(100_000):
                    session.run(total)
                    if number == 3:
                        lose(how)

    with pytest.raises(UnreachableWorkerError, match=rf"^worker 1 \({cluster.workers[1]}\): "):
        run_watched(work, cluster.workers, interval_seconds=0.2, timeout_seconds=3.0)


def test_another_process_at_the_address_of_a_worker_is_not_the_worker(monkeypatch):
    """A worker that was killed and started again within three seconds has lost what the work waits for."""
    answers = [Answer(Outcome.ANSWERED, status=b"one"), Answer(Outcome.ANSWERED, status=b"two")]
    monkeypatch.setattr(
        watch, "ask_all", lambda workers, timeout: {0: answers.pop(0) if len(answers) > 1 else answers[0]}
    )
    waits = threading.Event()
    with pytest.raises(UnreachableWorkerError):
        run_watched(waits.wait, ["127.0.0.1:1"], interval_seconds=0.01, timeout_seconds=0.1)
    waits.set()


def test_other_errors_of_what_is_watched_stay(workers):
    def fails():
        raise ZeroDivisionError("mine")

    for addresses in ((), workers.addresses):
        with pytest.raises(ZeroDivisionError, match="mine"):
            run_watched(fails, addresses)
        assert run_watched(lambda: 3, addresses) == 3


def test_a_worker_that_is_back_is_told(workers):
    def fails():
        raise tf.errors.UnavailableError(None, None, "lost")

    with pytest.raises(
        UnreachableWorkerError, match="^a worker was lost and now answers again; run the same command again$"
    ):
        run_watched(fails, workers.addresses)

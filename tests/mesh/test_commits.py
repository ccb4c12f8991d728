"""The values after the last finished step are rescued, or nothing: devices of one process stand for workers."""

import threading
import time

import numpy as np
import pytest

from mtf_hetero import tf
from mtf_hetero.mesh import commits as commits_lib
from mtf_hetero.mesh.commits import Commits

FIRST, SECOND = "/device:CPU:0", "/device:CPU:1"
PRIMARY, REPLICA = tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.LOCAL_VARIABLES


def variable(name, device, collection=PRIMARY, **options):
    with tf.device(device):
        made = tf.Variable(np.zeros(3), name=name, collections=[collection], trainable=False, **options)
    made._set_save_slice_info(tf.Variable.SaveSliceInfo(name, [3], [0], [3]))
    return made


class Training:
    """A step that adds 1 to `early` at once, and to `late` once the other device has sent a number.

    Args:
      copies: whether the second device has replicas.
    """

    def __init__(self, copies=True):
        options = {"use_resource": True}
        self.updates = []
        with tf.device(SECOND):
            queue = tf.FIFOQueue(10, [tf.float64], shapes=[[]])
            sent = queue.dequeue()
        for device, collection in ((FIRST, PRIMARY), (SECOND, REPLICA))[: 1 + copies]:
            early, late = (variable(name, device, collection, **options) for name in ("early", "late"))
            with tf.device(device):
                self.updates += [early.assign_add(tf.ones(3, tf.float64)).op]
                self.updates += [late.assign_add(sent + tf.zeros(3, tf.float64)).op]
        self.commits = Commits()
        self.commits.hold(tf.group(*self.updates))
        self.session = tf.Session(config=tf.ConfigProto(device_count={"CPU": 2}))
        self.session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        self.send = queue.enqueue(np.float64(1.0))

    def step(self):
        self.session.run(self.updates)

    def rescued(self, steps, **known):
        """The values of both variables; None: nothing."""
        found = self.commits.rescue(self.session, steps, known)
        return found and {name: value.tolist() for name, value in found.items()}

    def go_ahead(self, device):
        self.session.run(self.commits.counters[device].assign_add(1))


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default():
        yield


def after(steps):
    return {"early": [steps] * 3, "late": [steps] * 3}


def test_a_step_that_is_cut_off_has_changed_nothing():
    training = Training()
    training.session.run(training.send)
    training.step()
    step = threading.Thread(target=training.step)
    step.start()  # `late` waits for a number
    time.sleep(0.2)
    assert training.rescued(1) == after(1)
    assert training.rescued(0) is None
    training.session.run(training.send)
    step.join()
    assert training.rescued(1) is None
    assert training.rescued(2) == after(2)


def test_a_device_that_has_begun_its_updates_is_left_out():
    training = Training()
    training.go_ahead(FIRST)
    assert training.rescued(0) == after(0)  # of the replicas
    training.go_ahead(SECOND)
    assert training.rescued(0) is None


def test_a_variable_that_no_other_device_has_must_be_known():
    training = Training(copies=False)
    assert training.rescued(0) == after(0)
    training.go_ahead(FIRST)
    assert training.rescued(0) is None
    known = {name: np.full(3, 5.0) for name in ("early", "late")}
    assert training.rescued(0, **known) == after(5.0)


def test_a_device_may_begin_meanwhile(monkeypatch):
    training, run = Training(), tf.Session.run

    def late(session, fetches, *args):
        found = run(session, fetches, *args)
        if len(fetches) == 2:  # the variables
            for device in (FIRST, SECOND):
                run(session, training.commits.counters[device].assign_add(1))
        return found

    monkeypatch.setattr(tf.Session, "run", late)
    assert training.rescued(0) is None


def chained():
    first, second = (variable(name, FIRST, use_resource=True) for name in ("first", "second"))
    with tf.control_dependencies([first.assign_add(tf.ones(3, tf.float64))]):
        return second.assign_add(first.read_value())


def by_reference():
    return variable("of_old", FIRST, use_resource=False).assign_add(tf.ones(3, tf.float64))


def by_another_operation():
    with tf.device(FIRST):
        return tf.scatter_add(variable("rows", FIRST, use_resource=True), [1], [1.0])


@pytest.mark.parametrize("update", [chained, by_reference, by_another_operation])
def test_updates_that_cannot_wait_are_not_rescued(update):
    step, commits = update(), Commits()
    commits.hold(step.op)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(step)
        assert commits.rescue(session, 1) is None


def test_large_values_have_more_time(monkeypatch):
    monkeypatch.setattr(commits_lib, "_READ_SECONDS", 0.0)
    monkeypatch.setattr(commits_lib, "_BYTES_PER_SECOND", 1.0)
    training = Training()
    training.session.run(training.send)
    training.step()
    assert training.rescued(1) == {"early": [1.0] * 3, "late": [1.0] * 3}

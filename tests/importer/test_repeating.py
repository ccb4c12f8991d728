"""Copies of a step in one graph, run in one call, give what the step gives in calls of its own."""

import numpy as np
import pytest

from mtf_hetero import tf
from mtf_hetero.importer.repeating import Carried, Copy, Row

COUNT = 5


class Program:
    """A step on variables of two devices: one that is added to, one that is only written, and one of this process."""

    def __init__(self, extra=lambda x: x):
        self.graph = tf.Graph()
        with self.graph.as_default():
            with tf.device("/cpu:0"):
                self.fed, self.hosted = tf.placeholder(tf.float64, [2]), tf.placeholder(tf.float64, [])
                sums = tf.Variable(np.zeros(2), use_resource=True)
            with tf.device("/cpu:1"):
                last = tf.Variable(np.ones(2), use_resource=True)
                before = tf.identity(self.hosted)
            with tf.device("/cpu:0"):
                old, previous = sums.read_value(), last.read_value()
                turns = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 0.5 + old), (0, self.fed))[1]
                new = extra(old + turns * before)
                result = tf.reduce_sum(new) + tf.reduce_sum(previous)
            with tf.device("/cpu:1"):
                after = before + 1.0
                with tf.control_dependencies([previous]):
                    written = last.assign(self.fed, read_value=False)
            done = tf.group(sums.assign(new, read_value=False), written)
            self.step = Copy([result, after], done, {self.fed: self.fed, self.hosted: self.hosted})
            self.row = Row(self.step, [Carried([before], [after])])
            self.variables, self.start = [sums, last], tf.global_variables_initializer()

    def session(self):
        return tf.Session(graph=self.graph, config=tf.ConfigProto(device_count={"CPU": 2}))


def test_a_row_gives_what_single_steps_give():
    program = Program()
    batches = np.random.default_rng(0).standard_normal((COUNT, 2))
    with program.session() as session:
        session.run(program.start)
        expected, hosted = [], 1.0
        for batch in batches:
            found, _ = session.run(
                (program.step.results, program.step.done), {program.fed: batch, program.hosted: hosted}
            )
            expected.append(found)
            hosted = found[1]
        values = session.run(program.variables)
        assert program.row.is_possible
        copies = program.row.repeat(COUNT)
        feed = {copy.places[program.fed]: batch for copy, batch in zip(copies, batches, strict=True)}
        for _ in range(20):  # no order of operations gives anything else
            session.run(program.start)
            fetches = [copy.results for copy in copies], copies[-1].done
            found, _ = session.run(fetches, feed | {program.hosted: 1.0})
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(session.run(program.variables), values)
    assert all(program.hosted not in copy.places for copy in copies[1:])


@pytest.mark.parametrize(
    "extra",
    [
        lambda x: x + tf.random.uniform([2], dtype=tf.float64, seed=1),
        lambda x: tf.numpy_function(np.abs, [x], tf.float64),
    ],
    ids=["random numbers", "Python"],
)
def test_states_outside_of_variables_are_in_no_row(extra):
    assert not Program(extra).row.is_possible

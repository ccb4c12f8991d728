"""The end of the data: a step that finds it changes no variable, whatever its updates need."""

import numpy as np
import pytest

from mtf_hetero import tf
from mtf_hetero.estimator.inputs import hold_updates

pytestmark = pytest.mark.usefixtures("own_graph")


def batches(count):
    return tf.data.make_one_shot_iterator(tf.data.Dataset.range(count)).get_next()


def variables(**options):
    return [tf.Variable(np.int64(0), name=name, **options) for name in ("first", "second", "third")]


def run_to_the_end(step, read):
    """Return the values of variables after three steps, and one that finds the end of the data."""
    hold_updates(step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(step)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(step)
        return session.run(read)


@pytest.mark.parametrize("options", [{"use_resource": True}, {"use_resource": False}], ids=["resources", "references"])
def test_an_update_waits_for_the_batches_of_all_processors(options):
    early, of_long, of_short = variables(**options)
    step = tf.group(early.assign_add(1), of_long.assign_add(batches(5)), of_short.assign_add(batches(3)))
    assert run_to_the_end(step, [early, of_long, of_short]) == [3, 3, 3]


def test_an_update_in_a_condition_waits_too():
    early, late, _ = variables(use_resource=True)
    updated = tf.cond(early < 10, lambda: early.assign_add(1), lambda: early.assign_add(0))
    assert run_to_the_end(tf.group(updated, late.assign_add(batches(3))), [early, late]) == [3, 3]


def test_an_update_that_is_part_of_the_data_does_not_wait():
    drawn, late, _ = variables(use_resource=True)
    with tf.control_dependencies([drawn.assign_add(1)]):
        batch = batches(3)
    assert run_to_the_end(late.assign_add(batch), [drawn, late]) == [4, 3]

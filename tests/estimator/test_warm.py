"""Sessions that are made in advance."""

import gc
import threading

from estimator_oracle import line_data, line_model

from mtf_hetero import Estimator, EstimatorSpec, RunConfig, tf
from mtf_hetero.estimator import Elastic, training
from mtf_hetero.estimator.warm import WarmSession


def test_a_session_made_in_advance_is_closed_if_nobody_takes_it(tmp_path, monkeypatch):
    closed, close = threading.Event(), tf.Session.close
    monkeypatch.setattr(tf.Session, "close", lambda session: [close(session), closed.set()])
    prepared = Estimator(line_model, tmp_path)
    prepared.prepare(line_data, Elastic())
    assert not closed.is_set()
    del prepared
    gc.collect()
    assert closed.wait(20)


def test_a_session_made_in_advance_needs_no_feeds(own_graph):
    """A hook may feed what a step needs."""
    fed = tf.placeholder(tf.float32, [])
    tf.train.create_global_step()
    warm = WarmSession(
        tf.train.Scaffold(), "", tf.ConfigProto(), [fed + tf.cast(tf.train.get_global_step(), tf.float32)]
    )
    with warm.take() as session:
        assert session.run(fed + 1.0, {fed: 1.0}) == 2.0


def test_no_session_is_made_in_advance_where_it_would_share_the_variables_of_another():
    server = tf.train.Server.create_local_server()
    step = training.TrainingStep(EstimatorSpec("infer", predictions={}), tf.constant(0), [])
    assert training.warm_up(RunConfig(master=server.target), step) is step
